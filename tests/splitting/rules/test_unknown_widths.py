"""Lengths that only a run knows, in other dimensions than that of rows.

Two of them may be the same, or one of them 1, or shorter than a cut: a graph that is split once
must give what one device gives for all of them.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike

F64 = tf.float64
MODELS = {}


def model(*widths, kinds=""):
    """Adds a function of x [B, v], y [B, w] and t [B, v, 3], with (v, w) that it is run with.

    Operations of `kinds` must be split.
    """

    def add(function):
        MODELS[function.__name__] = function, widths, kinds.split()
        return function

    return add


def column(width):
    """A weight that has an entry for each of some columns."""
    start = tf.constant_initializer(np.linspace(-0.5, 0.7, width))
    return tf1.get_variable(f"w{width}", [width], F64, start).read_value()


BROADCAST = ((3, 1), (1, 3), (3, 3), (1, 1))


@model(*BROADCAST, kinds="Mul Tanh Sum Reshape")
def products(x, y, t):
    return [tf.tanh(x * y)]


@model(*BROADCAST, kinds="Tanh Sum Reshape")
def arithmetic(x, y, t):
    found = [x + y, x - y, x / (2.0 + y), tf.math.squared_difference(x, y), tf.maximum(x, y)]
    return [tf.tanh(each) for each in found]


@model(*BROADCAST, kinds="SelectV2 Sum Reshape")
def choices(x, y, t):
    return [tf.where(x > y, tf.sin(x), tf.cos(y))]


@model(*BROADCAST, kinds="Transpose Mul Sum Reshape")
def rows_behind_unknown_widths(x, y, t):
    """Whether the width in front of the rows is summed over is not known."""
    return [tf.tanh(tf.transpose(x) * tf.transpose(y)), tf.transpose(t, [1, 0, 2]) * column(3)]


@model((3, 2), (1, 1), (4, 4), kinds="Add BiasAdd MatMul Mul Reshape Sum Tanh Tile Transpose")
def layers_on_steps(x, y, t):
    """Each step's rows one behind the other, [v * B, 3], as time-major models have them."""
    weight = tf.reshape(column(12), [3, 4])
    flat = tf.reshape(tf.transpose(t, [1, 0, 2]), [-1, 3])
    hidden = tf.tanh(tf.nn.bias_add(tf.matmul(flat, weight), column(4)))
    hidden *= tf.reshape(tf.transpose(x), [-1, 1]) + 1.0
    back = tf.reshape(hidden, [-1, tf.shape(t)[0], 4])
    heads = tf.reshape(hidden, [-1, tf.shape(t)[0], 2, 2])
    of_rows = tf.reduce_sum(back * tf.transpose(x)[:, :, tf.newaxis], 0)
    return [hidden, tf.reduce_mean(hidden, 0), of_rows, heads]


@model((3, 2), (1, 1), kinds="MatMul Transpose Tanh")
def tensor_products_of_steps(x, y, t):
    """As `tf.layers.dense` makes them of [v, B, 3]."""
    weight = tf.reshape(column(12), [3, 4])
    found = tf.tanh(tf.tensordot(tf.transpose(t, [1, 0, 2]), weight, 1))
    return [found, tf.tensordot(found, found, [[0, 1], [0, 1]])]


@model((3, 2), (1, 1), kinds="Mul Reshape Tanh Transpose")
def steps_behind_an_axis_of_one(x, y, t):
    """As Keras normalises [v, B, 3], layer by layer."""
    flat = tf.tanh(tf.reshape(tf.transpose(t, [1, 0, 2]), [1, -1, 3, 1]))
    again = tf.reshape(flat * 2.0, [1, -1, 3])
    back = tf.reshape(flat, [-1, tf.shape(t)[0], 3])
    return [flat, tf.reduce_mean(flat, 1), tf.reshape(again, [-1, 3]), back, tf.reduce_sum(back, 0)]


@model((3, 2), (1, 1), (4, 4))
def steps_in_order(x, y, t):
    """What depends on the order of steps and rows."""
    flat = tf.reshape(tf.tanh(tf.transpose(x)), [-1])
    other = tf.reshape(tf.sin(x), [-1])
    places = tf.where(flat > 0.1)
    found = [flat[::-1], tf.cumsum(flat), tf.sort(flat), tf.cast(places, F64), flat[1:]]
    found += [tf.boolean_mask(flat, flat > 0.1), tf.stop_gradient(tf.unique(tf.round(flat * 4))[0])]
    found += [tf.reshape(flat, [tf.shape(x)[0], -1]), tf.reshape(flat, [-1, 1, 1])]
    found += [flat * other, other - tf.cast(tf.range(tf.size(flat)), F64) * flat]
    return [*found, tf.gather(flat, tf.argsort(flat)), tf.concat([flat, flat], 0)]


@model(*BROADCAST, kinds="Mul Mean")
def masked_means(x, y, t):
    """A mask that may be one for all steps."""
    kept = t * y[:, :, tf.newaxis]
    return [kept, tf.reduce_sum(kept, 1) / (2.0 + tf.reduce_sum(y, 1, keepdims=True))]


@model(*BROADCAST)
def stretched_by_rank(x, y, t):
    """Operands of which one has fewer dimensions: [v] beside [B, w]."""
    return [tf.tanh(x[0] * y), tf.tanh(tf.reduce_mean(x, 0) + y), x * tf.reduce_sum(y)]


@model(*BROADCAST, kinds="MatMul")
def outer_products(x, y, t):
    """[B, v, w] of x and y."""
    return [tf.tanh(x[:, :, tf.newaxis] * y[:, tf.newaxis, :]), tf.matmul(x, y, transpose_a=True)]


@model(*BROADCAST)
def pairs_of_rows(x, y, t):
    """[B, B, v, 3]: a device has its own rows along one axis, and all rows along the other."""
    pairs = tf.tanh(t[:, tf.newaxis] * t[tf.newaxis])
    square = tf.stack([tf.shape(x)[0], tf.shape(x)[0], tf.shape(x)[1]])
    wide = tf.broadcast_to(x[:, tf.newaxis], square) * x[tf.newaxis]
    return [pairs, wide, wide - tf.transpose(wide, [1, 0, 2])]


@model((3, 3), (1, 1), kinds="ConcatV2 Reshape")
def flattened(x, y, t):
    """All steps of all rows one behind the other."""
    flat = tf.reshape(t, [-1, 3]) * tf.reshape(x, [-1, 1]) + tf.reshape(y, [-1])[:, tf.newaxis]
    back = tf.reshape(flat, tf.shape(t))
    return [tf.nn.softmax(flat, 0), tf.concat([back, t], 2), back * t]


@model((3, 2), (60, 3), (7, 50), kinds="Reshape")
def cuts(x, y, t):
    """The first 40 steps, which may be all; the rest, of which there may be none."""
    first, rest = t[:, :40], t[:, 5:]
    flat = tf.reshape(tf.tanh(first), [-1, 3])
    return [flat, tf.nn.softmax(flat, 0), tf.reshape(y[:, :2], [-1]), tf.reshape(rest, [-1, 3])]


@model((4, 2), (4, 4), (4, 1), (6, 3))
def repeated_as_often_as_fits(x, y, t):
    """How often is 1 if widths are the same."""
    number = tf.shape(x)[1] // tf.shape(y)[1]
    wide = tf.tile(y, [1, number])
    more = tf.zeros([tf.shape(x)[0], number], F64) + tf.reduce_mean(x, 1, keepdims=True)
    return [x * wide, tf.reshape(more, [-1])]


@model((4, 2), (4, 4), (4, 1), (6, 3), (5, 2))
def repeated_as_often_as_a_quotient_says(x, y, t):
    """As before, by way of real numbers."""
    widths = [tf.cast(tf.shape(each)[1], F64) for each in (x, y)]
    number = tf.cast(tf.math.ceil(widths[0] / widths[1]), tf.int32)
    wide = tf.tile(y, [1, number])[:, : tf.shape(x)[1]]
    more = tf.zeros([tf.shape(x)[0], number], F64) + tf.reduce_mean(x, 1, keepdims=True)
    return [x * wide, tf.reshape(more, [-1])]


@model(*BROADCAST, kinds="Mul Sum Reshape Mean")
def means_of_several_widths(x, y, t):
    """Numbers of columns divide, and are no lengths."""
    flat = tf.reshape(tf.tanh(x * y), [-1])
    return [tf.reduce_mean(x, 1) - tf.reduce_mean(y, 1), tf.reduce_mean(t, [1, 2]), flat]


@model((4, 2), (4, 4), (6, 3), (3, 1))
def pieces_of_another_width(x, y, t):
    """How many pieces a row has depends on both widths."""
    pieces = tf.reshape(tf.tanh(x), [-1, tf.shape(y)[1]])
    return [pieces, tf.nn.softmax(pieces, 0)]


@model((4, 2), (4, 4), (5, 1))
def filled_up(x, y, t):
    """As many columns as are missing; a choice between widths."""
    missing = tf.shape(x)[1] - tf.shape(y)[1]
    wide = tf.pad(y, [[0, 0], [0, missing]])
    larger = tf.where(tf.equal(missing, 0), 1, tf.shape(x)[1])
    more = tf.zeros([tf.shape(x)[0], larger], F64) + x[:, :1]
    return [x * wide, tf.reshape(more, [-1])]


def with_slopes(name, made):
    """Returns what a model makes, and slopes by all that it is made of; keeps the operations."""

    def make(*given):
        found = MODELS[name][0](*given)
        loss = tf.add_n([tf.reduce_sum(tf.sin(each)) for each in found])
        slopes = tf.gradients(loss, [*given, *tf1.trainable_variables()])
        made.append(tf1.get_default_graph().get_operations())
        return [*found, *[slope for slope in slopes if slope is not None]]

    return make


def batch(rows, v, w):
    numbers = np.random.RandomState(rows)
    shapes = [rows, v], [rows, w], [rows, v, 3]
    return tuple(alike.padded(numbers.uniform(-1, 1, shape)) for shape in shapes)


@pytest.mark.thorough("*-dynamic", "flattened-static", "cuts-static", "pairs_of_rows-static")
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_every_width_gives_what_one_device_gives(name, is_static):
    _, all_widths, kinds = MODELS[name]
    for sizes in [(5,), (3,)] if is_static else [(5, 2, 1)]:
        made, results = [], []
        alike.require_alike(
            with_slopes(name, made),
            [batch(rows, *widths) for rows in sizes for widths in all_widths],
            [3],
            is_static=is_static,
            look=results.append,
        )
        (result,) = results
        ops = [op for op in made[-1] if op.type in kinds and result.how(op) == "whole"]
        assert [f"{op.type} {op.name}: {why}" for op in ops if (why := result.why(op))] == []
