"""Variables on a parameter device, in sessions that move no operation."""

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1

DEVICES = ["/cpu:1", "/cpu:2"]
W = np.array([[1.0], [0.0], [3.0], [0.0]], np.float32)


def between_two_conditions(w, x):
    def outer():
        read = w.read_value()
        return tf.cond(x > 1, lambda: 0.0, lambda: tf.reduce_sum(read * read))

    return tf.cond(x > 0, outer, lambda: 0.0)


def in_a_loop_in_a_condition(w, x):
    def body(i, total):
        return i + 1, total + tf.cond(x > 0, lambda: tf.reduce_sum(w * w), lambda: 0.0)

    def loop():
        return tf.while_loop(lambda i, total: i < 2, body, [0, 0.0])[1]

    return tf.cond(x > 0, loop, lambda: 0.0)


def in_a_switch(w, x):
    return tf.switch_case(tf.cast(x, tf.int32), [lambda: 0.0, lambda: tf.nn.zero_fraction(w)])


def some_rows(w, x):
    return tf.reduce_sum(tf.gather(w, [0, 2, 2]) ** 2) * x


def read_now(w, x):
    return tf.reduce_sum(w.read_value() ** 2) * x


def scanned(w, x):
    """A linear chain, forward, of as many rows as x says."""

    def body(alphas, found):
        return tf.reduce_logsumexp(alphas[:, :, None] + w[None] * [1.0, 2.0, 3.0, 4.0], 1) + found

    words = tf.ones([3, tf.cast(x, tf.int32) + 1, 4]) * x
    return tf.reduce_sum(tf.scan(body, words[1:], initializer=words[0])[-1])


MODELS = [
    scanned,
    between_two_conditions,
    in_a_loop_in_a_condition,
    in_a_switch,
    some_rows,
    read_now,
]


def value_and_gradient(model):
    w = tf1.get_variable("w", initializer=W, use_resource=True)
    value = model(w, tf1.placeholder_with_default(1.0, []))
    return value, tf.convert_to_tensor(tf1.gradients(value + tf.reduce_sum(w), w)[0])


STRATEGIES = {
    "elsewhere": lambda: core.LocalParameterServerStrategy(DEVICES, "/cpu:0"),
    "with a tower": lambda: core.LocalParameterServerStrategy(DEVICES, "/cpu:1"),
    "mirrored": lambda: core.MirroredStrategy(DEVICES),
}
# With an aggregation a variable is a mirrored one of one copy, as in a batch; else a plain one.
AGGREGATIONS = [tf.VariableAggregation.MEAN, tf.VariableAggregation.NONE]


@pytest.mark.thorough("*loop*-MEAN", "some_rows-*-MEAN", "read_now-*-MEAN")
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices:UserWarning")
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda found: found.name)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
def test_towers_read_variables_wherever_they_are(session, model, make, aggregation):
    with tf.Graph().as_default(), tf1.Session() as one:
        expected = value_and_gradient(model)
        one.run(tf1.global_variables_initializer())
        expected = one.run(expected)

    def tower():
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            tf1.get_variable("w", initializer=W, aggregation=aggregation)
            return value_and_gradient(model)

    with make().scope() as strategy:
        towers = strategy.run_towers(tower)
    session.run(tf1.global_variables_initializer())
    for found in session.run(towers):
        np.testing.assert_allclose(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1])


def test_reads_of_some_rows_are_with_the_variable(fresh_graph):
    def tower():
        w = tf1.get_variable("w", initializer=W)
        return tf.gather(w, [0]), tf.gather_nd(w, [[0]]), w.read_value() + 0.0

    with core.LocalParameterServerStrategy(DEVICES, "/cpu:0").scope() as strategy:
        strategy.run_towers(tower)
    kinds = ("ResourceGather", "ResourceGatherNd", "ReadVariableOp")
    places = {op.device for op in fresh_graph.get_operations() if op.type in kinds}
    assert places <= {"", "/device:CPU:0"}
