"""Models that draw, print, call Python, count and measure."""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests.splitting.corpus.model import F64, adam, hidden, model, squares, weight


@model(optimizer=adam)
def dropout(f, y):
    x = tf.nn.dropout(hidden(f["x"]), 0.4, seed=5)
    x = tf1.layers.dropout(hidden(x, 4, "second"), 0.3, training=True)
    return squares(hidden(x, 3, "out"), y), {"x": x}


@model
def noise(f, y):
    x = hidden(f["x"])
    x += 0.1 * tf.random.normal(tf.shape(x), dtype=F64)
    x *= tf.random.uniform([tf.shape(x)[0], 1], 0.5, 1.5, dtype=F64)
    x += 0.1 * tf.random.truncated_normal([4], dtype=F64)
    stateless = tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=F64)
    return squares(hidden(x + 0.1 * stateless, 3, "out"), y), {"x": x}


@model
def mixed_up_at_random(f, y):
    """Mixup with rows in an order that is drawn."""
    order = tf.random.shuffle(tf.range(tf.shape(f["x"])[0]), seed=3)
    share = tf.random.uniform([], dtype=F64, seed=4)
    mixed = share * f["x"] + (1.0 - share) * tf.gather(f["x"], order)
    given = share * y["y"] + (1.0 - share) * tf.gather(y["y"], order)
    return tf.reduce_mean(tf.square(hidden(mixed, 3) - given)), {"order": order}


@model
def samples(f, y):
    x = hidden(f["x"], 3)
    drawn = tf.random.categorical(x, 2, seed=4)
    gamma = tf.random.gamma([tf.shape(x)[0]], [0.5, 2.0], dtype=F64, seed=5)
    chosen = tf.gather(x, drawn, batch_dims=1)
    return squares(x, y) + tf.reduce_mean(chosen) + tf.reduce_mean(gamma), {"drawn": drawn}


@model
def augmented_pictures(f, y):
    x = tf.image.random_flip_left_right(f["images"], seed=3)
    x = tf.image.random_brightness(tf.cast(x, tf.float32), 0.2, seed=4)
    x = tf.cast(x, F64)
    return squares(hidden(tf.reduce_mean(x, [1, 2]), 3), y), {"x": x}


@model
def python_called(f, y):
    """Python sees all rows, once a step."""
    calls = []

    def ranks(x):
        calls.append(x.shape)
        return np.argsort(np.argsort(x[:, 0])).astype(np.float64) + len(calls)

    found = tf.numpy_function(ranks, [f["x"]], F64)
    found.set_shape([None])
    x = hidden(f["x"], 3) * (1.0 + found[:, None])
    return squares(x, y), {"found": found}


@model
def python_derived(f, y):
    """A `py_function`, with gradients."""
    w = weight("w", 3, 3)
    found = tf.py_function(
        lambda x, w: tf.tanh(tf.matmul(x, w)) - tf.reduce_mean(x), [f["x"], w], F64
    )
    found.set_shape([None, 3])
    return squares(found, y), {"found": found}


@model
def summaries(f, y):
    """Histograms, pictures and text are the batch's, byte by byte."""
    x = hidden(f["x"], 3)
    pictures = (f["images"][..., :1] + 1.0) / 2.0
    return squares(x, y), {
        "histogram": tf1.summary.histogram("x", 2.0 * f["x"]),
        "picture": tf1.summary.image("images", tf.cast(pictures, tf.float32), 3),
        "text": tf1.summary.text("words", f["words"]),
        "scalar": tf1.summary.scalar("mean", tf.reduce_mean(x)),
    }


@model
def checked(f, y):
    x = hidden(f["x"], 3)
    with tf.control_dependencies([tf1.assert_less(tf.abs(x), tf.constant(2.0, F64))]):
        x = tf.debugging.check_numerics(tf.identity(x), "finite")
    x = tf1.verify_tensor_all_finite(x, "finite")
    return squares(x, y), {"x": x}


@model
def datasets_inside(f, y):
    """Constants that come from an iterator in the model."""
    made = tf.data.Dataset.from_tensor_slices(np.arange(6.0).reshape([2, 3])).repeat()
    row = tf1.data.make_one_shot_iterator(made).get_next()
    return squares(hidden(f["x"], 3) + 0.1 * row, y), {"row": row}
