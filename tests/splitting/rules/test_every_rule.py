"""Every rule gives what one device gives, whatever states its operands have.

`RULES_FULL=1 pytest tests/splitting/rules` tries all states in all settings.
"""

import pytest

from replicate.splitting import splitter  # noqa: F401 - registers the rules
from replicate.splitting.rules import registry
from tests.splitting.rules import (
    cases_contractions,
    cases_elementwise,
    cases_gathers,
    cases_images,
    cases_loops,
    cases_matrices,
    cases_normalisation,
    cases_random,
    cases_reductions,
    cases_shapes,
    cases_strings,
    harness,
)

FAMILIES = [module.FAMILY for module in (cases_elementwise, cases_shapes)]
SETTINGS = [
    harness.Setting("batch", 3, (5, 2)),  # all of them; the others take some of each case
    harness.Setting("batch", 2, (5, 2, 1), most=1),
    harness.Setting("batch", 3, (5,), is_static=True, most=1),
    harness.Setting("picked", 3, (7, 2), most=1),
]
EVERY = SETTINGS[0]


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_rules_give_what_one_device_gives(family, setting):
    outcome = harness.tried(family, setting)
    assert not outcome.failures, "\n".join(["", *outcome.failures])


def test_every_case_makes_its_kind():
    for family in FAMILIES:
        assert not harness.tried(family, EVERY).missing


def test_every_rule_has_a_case():
    kinds = {case.kind for family in FAMILIES for case in family.cases}
    assert sorted(set(registry.RULES) - kinds) == []


def test_every_rule_splits_one_of_its_cases():
    split, whole = set(), {}
    for family in FAMILIES:
        outcome = harness.tried(family, EVERY)
        split |= outcome.split
        whole |= outcome.whole
    missing = sorted(set(registry.RULES) - split)
    assert missing == [], "\n".join(f"{kind}: {whole.get(kind)}" for kind in missing)
