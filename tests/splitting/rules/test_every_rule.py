"""Every rule gives what one device gives, whatever states its operands have.

A rule asks which states its operands have, whoever's rows they are: so each case is tried with nine
combinations of states, all that most of two operands have, on a batch of any size, and with two of
them on a static one and on picked rows. `RULE_STATES=24 pytest tests/splitting/rules` tries all.
"""

import dataclasses
import os

import pytest

from replicate.splitting.rules import RULES
from tests.splitting.rules import (
    cases_contractions,
    cases_elementwise,
    cases_gathers,
    cases_images,
    cases_loops,
    cases_matrices,
    cases_networks,
    cases_random,
    cases_reductions,
    cases_shapes,
    harness,
)

MODULES = (
    cases_contractions,
    cases_elementwise,
    cases_gathers,
    cases_images,
    cases_loops,
    cases_matrices,
    cases_networks,
    cases_reductions,
    cases_shapes,
)
FAMILIES = [*(module.FAMILY for module in MODULES), cases_random.OWN, cases_random.FAMILY]
# Kinds that no graph of this TensorFlow can be made of, or that have no kernel for a CPU.
NOT_HERE = {
    "AdjustContrast": "gone since version 2 of graphs",
    "Conv2DBackpropFilterV2": "no kernel for a CPU",
    "Conv2DBackpropInputV2": "no kernel for a CPU",
    "Conv3DBackpropFilter": "gone since version 10 of graphs",
    "Conv3DBackpropInput": "gone since version 10 of graphs",
    "EncodePng": "makes one text of each picture alone",
    **{f"{kind}FFTND": "no kernel for a CPU" for kind in ("", "I", "R", "IR")},
    "LoopCond": "each device computes the whole truth by itself",
    "LookupTableFind": "of tables with references",
    "MaxPoolGradGradWithArgmax": "no kernel for a CPU",
    "RandomPoisson": "gone since version 25 of graphs",
    "RefEnter": "of variables with references",
    "RefExit": "of variables with references",
    "RefNextIteration": "of variables with references",
    "TopK": "gone since version 7 of graphs",
}
# Kinds of picked rows, which whole models compare with one device in tests/splitting/corpus/picked.
IN_MODELS = {
    "DynamicPartition",
    "DynamicStitch",
    "ParallelDynamicStitch",
    "SparseCross",
    "SparseCrossHashed",
    "SparseCrossV2",
    "StringSplit",
    "StringSplitV2",
    "UniqueWithCounts",
    "UniqueWithCountsV2",
}
# Kinds whose rule says that their array is one, and not one for each device.
OF_WHOLE_ARRAYS = {"TensorArrayConcatV3", "TensorArrayGradWithShape", "TensorArraySplitV3"}
# Kinds that have a test of their own in tests/splitting/test_stacks.
IN_TESTS = {"TensorArraySizeV3"}
ELSEWHERE = {*NOT_HERE, *IN_MODELS, *IN_TESTS}
MOST = os.environ.get("RULE_STATES")
SOME = harness.Setting("batch", 3, (5, 2), some=3)
OTHERS = dataclasses.replace(SOME, others=int(MOST or 6))
STATIC = harness.Setting("batch", 3, (5,), is_static=True, some=int(MOST or 2))
PICKED = harness.Setting("picked", 3, (7, 2), some=int(MOST or 2))


def kinds_of(family):
    return {kind for case in family.cases for kind in case.kind.split()}


def own_kinds(family):
    """Returns the kinds with a rule of which no family before has a case."""
    before = set().union(*map(kinds_of, FAMILIES[: FAMILIES.index(family)]))
    return (kinds_of(family) & set(RULES)) - before - ELSEWHERE - OF_WHOLE_ARRAYS


def tried(family, setting):
    """Tries a family in a setting; returns what came of it."""
    outcome = harness.tried(family, setting)
    assert not outcome.failures, "\n".join(["", *outcome.failures])
    return outcome


# Loops take nearly as long as all others.
@pytest.mark.thorough(*(repr(each) for each in FAMILIES if each is not cases_loops.FAMILY))
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_rules_give_what_one_device_gives(family):
    outcome = tried(family, SOME)
    assert not outcome.missing
    missing = sorted(own_kinds(family) - outcome.split)
    assert not missing, "\n".join(f"{kind}: {outcome.whole.get(kind)}" for kind in missing)


@pytest.mark.thorough(f"static-{cases_loops.FAMILY}")
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(
    "setting", [OTHERS, STATIC, PICKED], ids=["in other states", "static", "picked"]
)
def test_rules_give_what_one_device_gives_otherwise(family, setting):
    tried(family, setting)


def test_every_rule_has_a_case():
    kinds = set().union(*map(kinds_of, FAMILIES))
    assert sorted(set(RULES) - kinds - ELSEWHERE) == []
