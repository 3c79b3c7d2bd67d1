"""Graphs that cut, compare numbers of rows, or lose the axis of rows where there is one row.

A graph is split once, for all sizes of the batch: each must give what one device gives.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike

F64 = tf.float64
MANY, CUT = 2500, 2040  # rows, and where they are cut
MODELS = {}


def model(function):
    """Adds a function of x, [B, 3], and of its number of rows."""
    MODELS[function.__name__] = function
    return function


def column(x):
    return tf.tanh(tf.reduce_sum(x, 1, keepdims=True))


def to_the_first(x):
    """[B, min(B, 3)]: each row's products with the first ones."""
    return tf.matmul(x, x[:3], transpose_b=True)


@model
def squeezed(x, rows):
    """[B], and of one row []."""
    return [tf.squeeze(column(x))]


@model
def beside_a_whole_value(x, rows):
    """[B, 4], of which Python makes one column, all rows at once; and the gradient's parts."""
    whole = tf.numpy_function(lambda values: values[:, :1], [x], F64)
    whole.set_shape([None, 1])
    joined = tf.concat([tf.tanh(x), whole], 1)
    return [joined, *tf.gradients(tf.reduce_sum(joined**2), [x])]


@model
def reduced_behind_a_squeeze(x, rows):
    """[B, 4], of which the largest is taken of all rows; [4], of all four."""
    wide = tf.squeeze(column(x)[:, :, tf.newaxis] * np.linspace(-0.3, 1.0, 4))
    return [tf.reduce_max(wide, 0), tf.reduce_sum(tf.reduce_max(wide, 0)), wide]


@model
def squeezed_twice_as_many(x, rows):
    """[2 * B], never one."""
    both = tf.reshape(tf.concat([column(x), column(x) * 2.0], 1), [-1, 1])
    return [tf.squeeze(both), tf.reduce_sum(tf.squeeze(both), 0)]


@model
def at_least_three(x, rows):
    """Compares a shape, not a number."""
    return [tf.reduce_sum(tf.ones(tf.maximum(tf.shape(x), [3, 1]), F64) + tf.reduce_sum(x))]


@model
def the_larger_of_a_list(x, rows):
    return [tf.reduce_sum(tf.ones([tf.reduce_max([rows, 3]), 2], F64) + tf.reduce_sum(x))]


@model
def what_is_missing_and_what_is_there(x, rows):
    """Compares nothing: a function of real and whole numbers cuts below zero."""
    number = tf.nn.relu(3 - rows) + rows
    return [tf.reduce_mean(tf.ones([number, 2], F64) * tf.reduce_sum(x), 0)]


@model
def two_of_two_and_more(x, rows):
    """At one row another length, and of even and odd numbers."""
    even = tf.ones([rows + rows % 2], F64)
    return [tf.reduce_sum(x[:2]), tf.reduce_mean(even * tf.reduce_sum(x), 0)]


@model
def beside_a_branch_of_six_rows(x, rows):
    """[B * min(B, 3)]; the branch cannot be taken by fewer."""

    def of_six():
        return tf.reduce_sum(tf.tanh(tf.reshape(x[:6], [2, 3, 3])), [0, 1])

    guarded = tf.cond(rows > 5, of_six, lambda: tf.reduce_sum(x, 0))
    return [guarded, tf.reshape(to_the_first(x) + column(x), [-1])]


@model
def behind_a_branch_of_few_rows(x, rows):
    """[min(B, 3), B] turned, which for few rows comes from the other branch."""

    def of_six():
        return to_the_first(x) * tf.reduce_sum(tf.reshape(x[:6], [2, 9]))

    guarded = tf.cond(rows > 5, of_six, lambda: to_the_first(tf.tanh(x)))
    return [tf.reshape(guarded + column(x), [-1])]


@model
def first_rows(x, rows):
    return [tf.reduce_sum(tf.sin(x[:CUT])), tf.reduce_mean(tf.square(column(x)[:CUT]))]


@model
def first_rows_by_a_scaled_number(x, rows):
    """The graph has no number as large as that of rows."""
    return [tf.reduce_sum(tf.sin(x[: tf.constant(255) * tf.constant(8)]))]


@model
def first_rows_by_a_real_number(x, rows):
    number = tf.cast(tf.minimum(tf.cast(rows, F64), float(CUT)), tf.int32)
    return [tf.reduce_sum(tf.zeros([number, 4], F64) + tf.reduce_mean(x))]


@model
def first_rows_by_the_length_of_a_table(x, rows):
    table = tf1.placeholder_with_default(np.ones([CUT, 2]), [CUT, None])
    return [tf.reduce_sum(tf.cos(x[: tf.shape(table)[0]]))]


@model
def filled_up(x, rows):
    wide = tf.pad(column(x), [[0, tf.maximum(0, CUT - rows)], [0, 0]])
    return [tf.reduce_mean(tf.square(wide))]


@model
def repeated_by_pieces(x, rows):
    return [tf.reduce_sum(tf.tile(x[:1], [rows // CUT + 1, 1]))]


@pytest.mark.thorough("*-3")
@pytest.mark.parametrize("num_devices", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_every_size_gives_what_one_device_gives(name, num_devices):
    def make(x):
        found = MODELS[name](tf.tanh(x), tf.shape(x)[0])
        return [*found, *tf.gradients([tf.reduce_sum(tf.square(each)) for each in found], [x])]

    batches = [alike.numbers(size, 3, seed=size) for size in (MANY, 7, 3, 2, 1)]
    alike.require_alike(make, batches, [num_devices], (1e-9, 1e-9))


def test_a_single_device_does_not_sum_at_once_what_waits_for_a_sum():
    def make(x):
        first = tf1.constant_initializer(0.3)
        hidden = tf1.layers.dense(x, 2, tf.tanh, kernel_initializer=first)
        made = tf1.layers.dense(hidden, 1, kernel_initializer=first)
        loss = tf1.losses.mean_squared_error(x[:, :1], made)  # divides by a count of weights
        return [loss, *tf1.gradients(loss, tf1.trainable_variables())]

    alike.require_alike(make, [alike.numbers(5, 3).astype(np.float32)], [1], (1e-5, 1e-6))


@pytest.mark.parametrize(
    "make",
    [lambda shape: tf.range(shape[1]), lambda shape: tf.range(shape[0], shape[0] + 3)],
    ids=["of a width", "from a number of rows"],
)
def test_a_range_of_a_known_length_is_a_size(fresh_graph, make):
    x = tf1.placeholder(F64, [None, 3])
    numbers = make(tf.shape(x))
    result = alike.split([x], [x + tf.cast(tf.reduce_sum(numbers), F64)])
    assert result.how(numbers.op) == "size"
    with alike.session() as session:
        (found,) = session.run(result.fetch, {x: np.ones([5, 3])})
        expected = session.run(tf.reduce_sum(numbers), {x: np.ones([5, 3])})
    np.testing.assert_array_equal(found, 1.0 + expected)
