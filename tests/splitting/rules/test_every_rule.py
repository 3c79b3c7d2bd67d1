"""Every rule gives what one device gives, whatever states its operands have.

`RULES_FULL=1 pytest tests/splitting/rules` tries all states in all settings.
"""

import pytest

from replicate.compat.tensorflow import tf1
from replicate.splitting.rules import families
from tests.splitting.corpus import running
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

FAMILIES = [
    *(
        module.FAMILY
        for module in (
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
        )
    ),
    cases_random.OWN,
]
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
# Kinds of picked rows, which whole models compare with one device in tests/splitting/test_spaces.
IN_MODELS = {
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
# Kinds that have a test of their own in tests/splitting/test_arrays.
IN_TESTS = {"TensorArraySizeV3"}
ELSEWHERE = {*NOT_HERE, *IN_MODELS, *IN_TESTS}
SETTINGS = [
    harness.Setting("batch", 3, (5, 2)),  # all of them; the others take some of each case
    harness.Setting("batch", 2, (5, 2), most=1),
    harness.Setting("batch", 3, (5,), is_static=True, most=1),
    harness.Setting("picked", 3, (7, 2), most=1),
]
EVERY = SETTINGS[0]
RULES = families.load()


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_rules_give_what_one_device_gives(family, setting):
    outcome = harness.tried(family, setting)
    assert not outcome.failures, "\n".join(["", *outcome.failures])


def test_every_case_makes_its_kind():
    for family in FAMILIES:
        assert not harness.tried(family, EVERY).missing


def test_every_rule_has_a_case():
    kinds = {kind for family in FAMILIES for case in family.cases for kind in case.kind.split()}
    assert sorted(set(RULES) - kinds - ELSEWHERE) == []


def split_in(name, is_new):
    """Returns the kinds that are split in a model, with loops of version 1 or of version 2."""
    was_new = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if is_new else tf1.disable_control_flow_v2)()
    try:
        built = running.Built(running.Setting(name, (7,), False, 3))
    finally:
        (tf1.enable_control_flow_v2 if was_new else tf1.disable_control_flow_v2)()
    ops = built.graph.get_operations()
    return {op.type for op in ops if built.result.how(op) == "split"}


@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
def test_every_rule_splits_one_of_its_cases():
    split, whole = set(), {}
    for family in FAMILIES:
        outcome = harness.tried(family, EVERY)
        split |= outcome.split
        whole |= outcome.whole
    # NOTE: in a graph of many cases one list that must be whole makes all of them whole.
    split |= split_in("lstm_dynamic", False) | split_in("lstm_dynamic", True)
    split |= split_in("crf", True) | split_in("condition_around_layers", True)
    missing = sorted(set(RULES) - split - ELSEWHERE - OF_WHOLE_ARRAYS)
    assert missing == [], "\n".join(f"{kind}: {whole.get(kind)}" for kind in missing)
