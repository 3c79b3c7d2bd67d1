"""What tasks say of differences; that they find them is in `tests/cluster`."""

import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.strategy.cluster import manifest, sessions
from replicate.training import weight_decay


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


# What variables are updated with.


class ByHand(tf1.train.Optimizer):
    """Assigns, as the optimizer of BERT does."""

    def __init__(self, rate, use_locking=False):
        super().__init__(use_locking, "ByHand")
        self._rate = rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        written = [w.assign(w - self._rate * tf.sqrt(g * g)) for g, w in grads_and_vars]
        return tf.group(*written, global_step.assign_add(1))


def descend(rate):
    return tf1.train.GradientDescentOptimizer(rate)


def piecewise(boundary=10, second=0.01):
    step = tf1.train.get_global_step()
    return descend(tf1.train.piecewise_constant(step, [boundary], [0.1, second]))


def polynomial(steps=10, rate=0.1):
    return descend(tf1.train.polynomial_decay(rate, tf1.train.get_global_step(), steps))


def warmed_up(rate=0.1, steps=10):
    """A rate of BERT's, with which one assigns."""
    step = tf.cast(tf1.train.get_global_step(), tf.float32)
    return ByHand(tf.where(step < steps, rate * step / steps, rate))


def momentum(nesterov=False):
    return tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=nesterov)


def lines_of(make, *args, batch=4, towers=1, resources=True):
    """The manifest of what `make` returns, which has a loss over a batch."""
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        w = tf1.get_variable("w", [3], use_resource=resources)
        with tf.name_scope("replicate_own"):
            own = tf.constant(1 / towers)
        features = tf1.placeholder(tf.float32, [batch, 3])
        make(*args).minimize(tf.reduce_mean(features * w) * own, global_step=step)
        return manifest.of({})


@pytest.mark.parametrize("resources", [True, False], ids=["resources", "references"])
@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (descend, [0.1], [0.2]),
        (warmed_up, [0.1, 10], [0.1, 99]),
        (weight_decay.AdamW, [0.1], [0.2]),
        (weight_decay.LAMB, [0.1, 0.9], [0.1, 0.8]),
        (piecewise, [10, 0.01], [10, 0.02]),
        (polynomial, [10], [99]),
        (momentum, [False], [True]),
    ],
)
def test_rates_schedules_and_options_are_compared(make, first, second, resources):
    usual = lines_of(make, *first, resources=resources)
    assert (
        manifest.difference({"a": usual, "b": lines_of(make, *first, resources=resources)}) is None
    )
    said = manifest.difference({"a": usual, "b": lines_of(make, *second, resources=resources)})
    assert said.startswith("the update ")


@pytest.mark.parametrize("make", [descend, ByHand, weight_decay.AdamW, weight_decay.LAMB])
def test_batches_and_towers_may_be_each_tasks_own(make):
    others = lines_of(make, 0.1, batch=6, towers=2)
    assert manifest.difference({"a": lines_of(make, 0.1), "b": others}) is None


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
