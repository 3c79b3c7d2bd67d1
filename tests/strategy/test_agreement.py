"""What workers say of differences; that they find them is in `tests/cluster`."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import agreement, cluster

THREE = cluster.of(
    {"cluster": {"worker": ["a:1", "b:2", "c:3"]}, "task": {"type": "worker", "index": 0}}
)


def test_one_text_is_said_of_each_group():
    said = agreement._difference(THREE, [["2.21"], ["2.15"], ["2.21"]])
    assert said == "worker:0, worker:2 has 2.21; worker:1 has 2.15"


def test_of_a_list_the_first_difference_is_said():
    said = agreement._difference(THREE, [["w", "b"], ["w"], ["w", "b"]])
    assert said == "The 2nd: worker:0, worker:2 has b; worker:1 has none"


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_numbers_are_counted(number, text):
    assert agreement._ordinal(number) == text


def test_a_sum_that_is_each_towers_own_cannot_be_saved(fresh_graph):
    import replicate

    strategy = replicate.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        tf1.get_variable(
            "count",
            initializer=0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    with pytest.raises(ValueError, match=r"saves alone.* count:0 is each tower's own"):
        agreement._refuse_saved_sums()
