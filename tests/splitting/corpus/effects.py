"""Models that draw, print, call Python, count and measure."""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests.splitting.corpus.model import F64, adam, hidden, model, weight


def squares(found, y):
    return tf.reduce_mean(tf.square(found - y["y"]))


@model(optimizer=adam)
def dropout(f, y):
    x = tf.nn.dropout(hidden(f["x"]), 0.4, seed=5)
    x = tf1.layers.dropout(hidden(x, 4, "second"), 0.3, training=True)
    return squares(hidden(x, 3, "out"), y), {"x": x}


@model
def dropout_of_keras(f, y):
    x = tf.keras.layers.Dropout(0.4, seed=3, dtype=F64)(hidden(f["x"]), training=True)
    x = tf.keras.layers.GaussianNoise(0.1, seed=4, dtype=F64)(x, training=True)
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
def variational(f, y):
    mean, log_deviation = hidden(f["x"], 2, "mean"), hidden(f["x"], 2, "deviation")
    z = mean + tf.exp(log_deviation) * tf.random.normal(tf.shape(mean), dtype=F64, seed=9)
    divergence = 0.5 * tf.reduce_sum(
        tf.square(mean) + tf.exp(2.0 * log_deviation) - 2.0 * log_deviation - 1.0, 1
    )
    return squares(hidden(z, 3, "out"), y) + tf.reduce_mean(divergence), {"z": z}


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
    tf1.add_to_collection("counted by Python", calls)

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
def counters(f, y):
    """Variables that the model writes: a queue of keys (He et al. 2020), and sums."""
    x = tf.nn.l2_normalize(hidden(f["x"]), 1)
    keys = tf1.get_variable("keys", [5, 4], F64, tf1.zeros_initializer(), trainable=False)
    seen = tf1.get_variable("seen", [], F64, tf1.zeros_initializer(), trainable=False)
    scores = tf.matmul(x, keys.read_value(), transpose_b=True)
    loss = squares(hidden(x, 3, "out"), y) + 0.1 * tf.reduce_mean(tf.exp(scores))
    with tf.control_dependencies([scores]):
        new = keys.assign(tf.concat([tf.stop_gradient(x), keys.read_value()], 0)[:5])
    total = seen.assign_add(tf.cast(tf.shape(x)[0], F64))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, new.op)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, total.op)
    return loss, {"scores": scores}


@model
def centre_loss(f, y):
    """Centres of classes that move by scattered updates (Wen et al. 2016)."""
    x = hidden(f["x"], 3)
    start = tf1.zeros_initializer()
    centres = tf1.get_variable("centres", [3, 3], F64, start, trainable=False)
    own = tf.gather(centres.read_value(), y["class"])
    loss = tf.reduce_mean(tf.reduce_sum(tf.square(x - own), 1)) + squares(x, y)
    with tf.control_dependencies([loss]):
        moved = centres.scatter_sub(tf.IndexedSlices(0.3 * (own - x), y["class"]))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, moved.op)
    return loss, {"own": own}


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


METRICS = {
    "accuracy": lambda m, f, y, p: m.accuracy(y["class"], tf.argmax(p, 1)),
    "auc": lambda m, f, y, p: m.auc(f["mask"] > 0.0, p[:, 0]),
    "auc_pr": lambda m, f, y, p: m.auc(
        f["mask"] > 0.0, p[:, 0], curve="PR", summation_method="careful_interpolation"
    ),
    "average_precision_at_k": lambda m, f, y, p: m.average_precision_at_k(
        tf.cast(y["class"], tf.int64), p, 2
    ),
    "false_negatives": lambda m, f, y, p: m.false_negatives(f["mask"] > 0.0, p[:, 0] > 0.3),
    "false_positives_at": lambda m, f, y, p: m.false_positives_at_thresholds(
        f["mask"] > 0.0, p[:, 0], [0.2, 0.4]
    ),
    "mean": lambda m, f, y, p: m.mean(p, f["real"][:, None]),
    "mean_absolute_error": lambda m, f, y, p: m.mean_absolute_error(y["y"], p),
    "mean_cosine_distance": lambda m, f, y, p: m.mean_cosine_distance(
        tf.nn.l2_normalize(y["y"], 1), tf.nn.l2_normalize(p, 1), 1
    ),
    "mean_iou": lambda m, f, y, p: m.mean_iou(y["class"], tf.argmax(p, 1), 3),
    "mean_per_class_accuracy": lambda m, f, y, p: m.mean_per_class_accuracy(
        y["class"], tf.argmax(p, 1), 3
    ),
    "mean_relative_error": lambda m, f, y, p: m.mean_relative_error(y["y"], p, tf.abs(p)),
    "mean_squared_error": lambda m, f, y, p: m.mean_squared_error(y["y"], p),
    "mean_tensor": lambda m, f, y, p: m.mean_tensor(tf.reduce_sum(p, 0)),
    "percentage_below": lambda m, f, y, p: m.percentage_below(p, 0.3),
    "precision": lambda m, f, y, p: m.precision(f["mask"] > 0.0, p[:, 0] > 0.3),
    "precision_at_k": lambda m, f, y, p: m.precision_at_k(tf.cast(y["class"], tf.int64), p, 2),
    "precision_at_thresholds": lambda m, f, y, p: m.precision_at_thresholds(
        f["mask"] > 0.0, p[:, 0], [0.2, 0.4]
    ),
    "recall": lambda m, f, y, p: m.recall(f["mask"] > 0.0, p[:, 0] > 0.3),
    "recall_at_k": lambda m, f, y, p: m.recall_at_k(tf.cast(y["class"], tf.int64), p, 2),
    "root_mean_squared_error": lambda m, f, y, p: m.root_mean_squared_error(y["y"], p),
    "sensitivity": lambda m, f, y, p: m.sensitivity_at_specificity(f["mask"] > 0.0, p[:, 0], 0.5),
    "specificity": lambda m, f, y, p: m.specificity_at_sensitivity(f["mask"] > 0.0, p[:, 0], 0.5),
    "true_positives": lambda m, f, y, p: m.true_positives(
        f["mask"] > 0.0, p[:, 0] > 0.3, f["real"]
    ),
}


def of_metrics(names):
    def build(f, y):
        p = tf.cast(tf.nn.softmax(hidden(f["x"], 3)), tf.float32)
        features = {"mask": f["mask"], "real": tf.cast(f["real"], tf.float32)}
        labels = {"class": y["class"], "y": tf.cast(y["y"], tf.float32)}
        extras = {}
        for name in names:
            value, update = METRICS[name](tf1.metrics, features, labels, p)
            extras[name], extras[f"after {name}"] = update, value
        return squares(tf.cast(p, F64), y), extras

    return build


for n in range(3):
    build = of_metrics(list(METRICS)[n::3])
    build.__name__ = f"metrics_{n}"
    model(build, tolerance=(1e-5, 1e-6))


@model
def metrics_of_keras(f, y):
    """Metrics of Keras, which keep variables of their own."""
    p = tf.nn.softmax(hidden(f["x"], 3))
    made = {
        "mean": (tf.keras.metrics.Mean(dtype=F64), (tf.reduce_sum(p, 1) * f["real"],)),
        "accuracy": (tf.keras.metrics.SparseCategoricalAccuracy(dtype=F64), (y["class"], p)),
        "error": (tf.keras.metrics.MeanSquaredError(dtype=F64), (y["y"], p)),
    }
    extras = {name: metric.update_state(*given) for name, (metric, given) in made.items()}
    extras |= {f"after {name}": metric.result() for name, (metric, _) in made.items()}
    for metric, _ in made.values():
        for v in metric.variables:
            tf1.add_to_collection(tf1.GraphKeys.LOCAL_VARIABLES, v)
    return squares(p, y), extras
