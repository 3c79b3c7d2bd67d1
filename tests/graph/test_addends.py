"""Addends: what is apart comes out, whatever linear stands above it."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import addends, ancestry


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


def rows():
    return tf1.placeholder_with_default(np.float32([2, 3]), [2])


def weight(name="w", start=5.0):
    return tf1.get_variable(name, initializer=start, use_resource=True)


def split(value, **options):
    """Returns what depends on the batch, and what depends on the weights alone."""
    varying = ancestry.varying(tf1.get_default_graph())
    parts = addends.split(value, lambda op: None if op in varying else "weights", **options)
    return parts.get(None), parts.get("weights")


def numbers(*tensors):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(tensors)


# The batch gives 2 + 3 = 5, the weight w is 5, its square 25.
SUMS = {
    "a sum": (lambda data, w: data + w * w, 5, 25),
    "three addends": (lambda data, w: tf.add_n([w, data, w * w]), 5, 30),
    "a difference": (lambda data, w: data - w * w, 5, -25),
    "a difference of the weight": (lambda data, w: w * w - data, -5, 25),
    "a scaled sum": (lambda data, w: 2.0 * (data + w * w), 10, 50),
    "a divided sum": (lambda data, w: (w * w + data) / w, 1, 5),
    "a negated sum": (lambda data, w: -(tf.identity(w * w) + data), -5, -25),
    "a sum of another precision": (lambda data, w: tf.cast(data + w * w, tf.float64), 5, 25),
    "a sum of a list": (lambda data, w: tf.reduce_sum([data, w * w, w]), 5, 30),
    "a checked sum": (lambda data, w: tf.debugging.check_numerics(data + w, "finite"), 5, 5),
    "a sum divided where it can be": (lambda data, w: tf.math.divide_no_nan(data + w, w), 1, 1),
    "nested sums": (lambda data, w: (data + w) * 3.0 + (w + data) / 2.0, 17.5, 17.5),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_depends_on_weights_alone_comes_out(name):
    build, of_batch, of_weights = SUMS[name]
    value = build(tf.reduce_sum(rows()), weight())
    stays, apart = split(value)
    assert stays.shape == apart.shape == []
    assert stays.dtype == apart.dtype == value.dtype
    np.testing.assert_allclose(numbers(stays, apart), [of_batch, of_weights], 1e-6)


WHOLES = {
    "a product": lambda data, w: data * w,
    "a power": lambda data, w: tf.square(data + w),
    "a sum with what is random": lambda data, w: data + w * tf.random.uniform([]),
    "a weight repeated for each row": lambda data, w: rows() + w,
}


@pytest.mark.parametrize("name", WHOLES)
def test_what_is_no_sum_stays_whole(name):
    value = WHOLES[name](tf.reduce_sum(rows()), weight())
    count = len(tf1.get_default_graph().get_operations())
    stays, apart = split(value)
    assert stays is value
    assert apart is None
    assert len(tf1.get_default_graph().get_operations()) == count


def test_a_value_of_weights_alone_is_apart_as_a_whole():
    value = tf.nn.l2_loss(weight()) + 1.0
    assert split(value) == (None, value)


def test_what_may_not_be_looked_into_stays_whole():
    value = tf.reduce_sum(rows()) + weight()
    assert split(value, whole=[value.op]) == (value, None)


SHAPES = {
    "reshaped": lambda value: tf.reshape(value, [1, 2]),
    "expanded": lambda value: tf.expand_dims(value, 0),
    "transposed": lambda value: tf.transpose(tf.reshape(value, [1, 2])),
    "squeezed": lambda value: tf.squeeze(tf.reshape(value, [2, 1]), 1),
    "summed": lambda value: tf.reduce_sum(value, 0, keepdims=True),
    "multiplied": lambda value: tf.matmul(tf.reshape(value, [1, 2]), [[2.0], [1.0]]),
    "multiplied from the left": lambda value: tf.matmul(
        [[2.0, 1.0]], tf.reshape(value, [1, 2]), transpose_b=True
    ),
    "of a sigmoid": lambda value: tf.raw_ops.SigmoidGrad(y=[0.5, 0.25], dy=value),
    "of a tanh": lambda value: tf.raw_ops.TanhGrad(y=[0.5, 0.25], dy=value),
    "of a relu": lambda value: tf.raw_ops.ReluGrad(gradients=value, features=[1.0, -1.0]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_linear_above_a_sum_is_looked_through(name):
    w = tf1.get_variable("w", initializer=[5.0, 7.0], use_resource=True)
    data, of_weights = tf.identity(rows()), w * 1.0
    stays, apart = split(SHAPES[name](data + of_weights))
    expected = [SHAPES[name](data), SHAPES[name](of_weights)]
    found = numbers(stays, apart, *expected)
    for i in range(2):
        np.testing.assert_allclose(found[i], found[i + 2], 1e-6)


def test_slices_are_the_sum_of_their_slices():
    w = tf1.get_variable("w", initializer=[[1.0], [2.0]], use_resource=True)
    slices = tf.IndexedSlices(
        tf.concat([rows()[:, None], tf.identity(w)], 0), tf.concat([[1, 1], [0, 1]], 0), [2, 1]
    )
    stays, apart = split(slices)
    found = numbers(stays.values, stays.indices, apart.values, apart.indices)
    for one, other in zip(found, ([[2], [3]], [1, 1], [[1], [2]], [0, 1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_long_chain_of_sums_is_no_deep_recursion():
    value = tf.reduce_sum(rows())
    for i in range(1500):
        value = value + weight(f"w{i}", 1.0)
    np.testing.assert_allclose(numbers(*split(value)), [5, 1500])


def test_shortcuts_do_not_multiply_the_ways_back():
    # 60 sums of two branches that meet again: 2^60 ways, of which none needs to be gone.
    value = tf.reduce_sum(rows())
    factor = weight("factor", 1.0)
    for _ in range(60):
        value = value + value * factor
    assert split(value) == (value, None)


def test_addends_behind_shortcuts_come_out():
    data, factor = tf.reduce_sum(rows()), weight("factor", 2.0)
    value = data + factor  # 5 + 2
    for _ in range(3):
        value = value + value * factor  # three times as much each time
    np.testing.assert_allclose(numbers(*split(value)), [5 * 27, 2 * 27])


def test_a_weight_that_was_written_in_the_same_step_depends_on_the_batch():
    kept = weight()
    with tf1.control_dependencies([kept.assign(tf.reduce_sum(rows()), read_value=False)]):
        late = kept.read_value()
    varying = ancestry.varying(tf1.get_default_graph())
    assert late.op in varying
    assert kept.value().op not in varying


def test_a_batch_of_constants_is_a_batch():
    batch = tf.constant([1.0, 2.0])
    value = tf.reduce_sum(batch) + weight()
    given = ancestry.varying(tf1.get_default_graph(), [batch.op])
    assert value.op in given
    assert value.op not in ancestry.varying(tf1.get_default_graph())


def test_the_way_back_to_an_operation_is_found():
    data, w = rows(), weight().value()
    assert ancestry.is_made_from(tf.reduce_sum(data * w), {w.op})
    assert not ancestry.is_made_from(tf.reduce_sum(data), {w.op})
