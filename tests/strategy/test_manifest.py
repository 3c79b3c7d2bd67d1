"""What tasks say of differences; that they find them is in `tests/cluster`."""

import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.strategy.cluster import manifest, sessions


def three(*texts):
    """The manifests of three workers, which have the same numpy."""
    return {f"worker:{n}": {"numpy": "2", "thing": text} for n, text in enumerate(texts)}


def test_one_text_is_said_of_each_group():
    said = manifest.difference(three("2.21", "2.15", "2.21"))
    assert said == "thing. worker:0, worker:2 has 2.21; worker:1 has 2.15"


def test_what_one_has_alone_is_a_difference():
    with pytest.raises(errors.ClusterError, match=r"differ in w\. a has w of 3; b has none\."):
        manifest.require_alike({"a": {"w": "w of 3"}, "b": {}})


def test_of_several_differences_the_first_is_said():
    said = manifest.difference({"a": {"w": "1", "v": "1"}, "b": {"w": "1", "v": "2", "u": "3"}})
    assert said == "v. a has 1; b has 2"


def test_manifests_that_are_alike_differ_in_nothing():
    assert manifest.difference(three("w", "w", "w")) is None


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
        sessions.first_values(
            collectives.CollectiveWorkers(collectives.Options(2, 0), "/device:CPU:0")
        )
