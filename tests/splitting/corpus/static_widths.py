"""Static batches whose widths are B, or a multiple: nothing tells rows from columns.

The batch has as many columns as rows, words of as many steps, or twice as many.
"""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.corpus.model import F64, adam, hidden, model, squares, weight


def wide(multiple: int = 1):
    """Returns what makes a batch of B rows and multiple * B columns and steps."""

    def batch(rows, step, is_static):
        del is_static
        numbers = np.random.RandomState(100 * rows + step)
        width = multiple * rows
        features = {
            "x": numbers.uniform(-1, 1, [rows, width]),
            "tokens": numbers.uniform(-1, 1, [rows, width, width]),
            "ids": numbers.randint(0, rows, [rows, width]),
            "mask": (numbers.uniform(size=[rows, width]) > 0.4).astype(np.float64),
        }
        return features, {"y": numbers.uniform(-1, 1, [rows, width])}

    return batch


def width_of(y):
    return int(y["y"].shape[1])


def of_widths(function):
    """Adds a model with widths of B and of 2B."""
    for name, multiple in (("", 1), ("_doubled", 2)):

        def build(f, y, function=function):
            return function(f, y)

        build.__name__ = function.__name__ + name
        model(build, batch=wide(multiple), statics=(True,), optimizer=adam)
    return function


@of_widths
def square_layers(f, y):
    """Weights, biases and constants of B rows and columns."""
    n = width_of(y)
    w, b = weight("w", n, n), weight("b", n)
    x = tf.tanh(tf.matmul(f["x"], w) + b)
    mask = tf.constant(np.tril(np.ones([n, n])), F64)
    x = tf.matmul(x, w * mask, transpose_b=True) * tf.constant(np.linspace(0.5, 1.0, n))
    penalty = tf.reduce_sum(tf.square(w)) + tf.reduce_mean(tf.abs(b))
    return squares(x, y) + 0.01 * penalty, {"x": x, "norm": tf.norm(w, axis=0)}


@of_widths
def square_transposes(f, y):
    """Products of rows by rows, and of columns by columns."""
    n = width_of(y)
    x = tf.tanh(tf.matmul(f["x"], weight("w", n, n)))
    rows, columns = tf.matmul(x, x, transpose_b=True), tf.matmul(x, x, transpose_a=True)
    found = tf.matmul(tf.nn.softmax(rows, 0), x) + tf.matmul(x, tf.nn.softmax(columns, 1))
    found += tf.transpose(tf.transpose(found) * tf.linalg.diag_part(rows))
    return squares(found, y), {"rows": rows, "columns": columns}


@of_widths
def square_constants(f, y):
    """Fills, ranges and diagonals."""
    n, rows = width_of(y), int(y["y"].shape[0])
    x = hidden(f["x"], n)
    x = tf.matmul(tf.eye(rows, dtype=F64) + 0.1 * tf.ones([rows, rows], F64), x)
    x += tf.matmul(x, tf.linalg.diag(tf.cast(tf.range(n), F64) / n))
    places = tf.stack([tf.range(rows), tf.range(rows) % n], 1)
    x += tf.tensor_scatter_nd_add(tf.zeros([rows, n], F64), places, tf.ones([rows], F64))
    return squares(x, y), {"x": x, "picked": tf.gather_nd(x, places)}


@of_widths
def square_reductions(f, y):
    """Along rows, along columns, along both; sorted, cumulated, reversed."""
    x = hidden(f["x"], width_of(y))
    x = x - tf.reduce_mean(x, 0) + tf.reduce_max(x, 1, keepdims=True)
    x = x + tf.cumsum(x, 0) + tf.cumsum(x, 1) + tf.reverse(x, [0]) * tf.reverse(x, [1])
    x += tf.sort(x, 1) + tf.nn.softmax(x, 1) * tf.nn.softmax(x, 0)
    norm = tf.reduce_logsumexp(x, [0, 1])
    return squares(x, y) / norm, {"top": tf.math.top_k(x, 2 if x.shape[1] > 1 else 1)[0]}


@of_widths
def square_lookups(f, y):
    """A table of as many rows as the batch has, and columns of the batch that are picked."""
    n, rows = width_of(y), int(y["y"].shape[0])
    table = weight("table", rows, n)
    found = tf.reduce_mean(tf.nn.embedding_lookup(table, f["ids"]), 1)
    found += tf.gather(f["x"], tf.constant(list(range(n))[::-1]), axis=1)
    found += tf.one_hot(f["ids"][:, 0], n, dtype=F64) * tf.gather(table, tf.range(rows))
    return squares(found, y), {"found": found}


@of_widths
def square_reshapes(f, y):
    """Reshapes by numbers, and pieces."""
    n, rows = width_of(y), int(y["y"].shape[0])
    x = tf.reshape(hidden(f["tokens"], n), [rows * n, n])
    x = tf.reshape(tf.matmul(x, weight("w", n, n)), [n, rows, n])
    x = tf.transpose(tf.reshape(x, [rows, n, n]), [0, 2, 1])
    x = tf.concat(tf.split(x, n, 1), 2)
    x = tf.reduce_sum(tf.reshape(x, [rows, n, n]), 1)
    x += tf.add_n(tf.unstack(f["tokens"], axis=1)) + tf.stack(tf.unstack(f["x"], axis=0), 0)
    x += tf.tile(f["x"][:, :1], [1, n]) + tf.pad(f["x"][1:], [[0, 1], [0, 0]])
    return squares(x, y), {"x": x}


@of_widths
def square_attention(f, y):
    n = width_of(y)
    x = hidden(f["tokens"], n)
    scores = tf.matmul(x, x, transpose_b=True) + tf.zeros([n, n], F64)
    scores -= 5.0 * (1.0 - f["mask"][:, tf.newaxis, :])
    x = tf.matmul(tf.nn.softmax(scores), x)
    return squares(x[:, 0] + tf.reduce_mean(x, 1), y), {"scores": scores}


@of_widths
def square_scan(f, y):
    n, rows = width_of(y), int(y["y"].shape[0])
    w = weight("w", n, n)
    inputs = tf.transpose(f["tokens"], [1, 0, 2])
    step = lambda h, x: tf.tanh(tf.matmul(h, w) + x)  # noqa: E731
    states = tf.scan(step, inputs, tf.zeros([rows, n], F64))
    return squares(states[-1], y), {"states": states}


@of_widths
def square_loops_of_python(f, y):
    """Row by row."""
    n, rows = width_of(y), int(y["y"].shape[0])
    w = weight("w", n, n)
    found = [tf.linalg.matvec(w, f["x"][row]) * (row + 1.0) for row in range(rows)]
    return squares(tf.stack(found), y), {"first": found[0]}
