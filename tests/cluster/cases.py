"""Models that a cluster trains, with each worker's batches; one device has them together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1

WIDTH = 3
WORDS = 11


class Case(NamedTuple):
    """What two workers train.

    Attributes:
        loss: From features and labels to a loss.
        optimizer: Makes the optimizer.
        rows: For each worker, how many rows each of its batches has.
        options: Of `replicate_model_fn`.
        is_static: Whether the graph knows how many rows a batch has.
        train: From a loss to a train_op, where the model has its own; else None.
        is_evaluated: Whether workers evaluate, too, together.
    """

    loss: Callable
    optimizer: Callable
    rows: tuple
    options: dict = {}  # noqa: RUF012 - nobody writes it
    is_static: bool = False
    train: Callable | None = None
    is_evaluated: bool = False


def _start(shape, dtype=tf.float32, partition_info=None, **unused):
    del partition_info, unused
    numbers = np.random.RandomState(int(np.prod(shape)) + len(shape)).uniform(-0.5, 0.5, shape)
    return tf.constant(numbers, dtype)


def _dense(features):
    w = tf1.get_variable("w", [WIDTH, 2], tf.float64, _start)
    b = tf1.get_variable("b", [2], tf.float64, _start)
    return tf.tanh(features["x"] @ w + b)


def _errors(features, labels):
    return tf.square(_dense(features) - labels[:, tf.newaxis])


def mean(features, labels):
    """A mean over rows."""
    return tf.reduce_mean(_errors(features, labels))


def masked(features, labels):
    """A quotient of sums."""
    weights = features["mask"][:, tf.newaxis]
    return tf.reduce_sum(weights * _errors(features, labels)) / tf.reduce_sum(weights)


def penalized(features, labels):
    """A sum over rows, a function of it, and a penalty on weights."""
    total = tf.reduce_sum(_errors(features, labels))
    w = tf1.trainable_variables()[0]
    return tf.sqrt(1.0 + total) + 0.1 * tf.reduce_sum(tf.square(w))


def embedded(features, labels):
    """Rows of a table, some of which several rows look up."""
    table = tf1.get_variable("table", [WORDS, WIDTH], tf.float64, _start)
    looked_up = tf.nn.embedding_lookup(table, features["words"])
    x = features["x"] + tf.reduce_sum(looked_up, 1)
    return mean({"x": x}, labels)


def clipped(loss):
    """A step that clips by the global norm, as BERT's code does."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 0.05)
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    step = tf1.train.get_global_step()
    return optimizer.apply_gradients(list(zip(gradients, trained, strict=True)), step)


def descend():
    return tf1.train.GradientDescentOptimizer(0.3)


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


UNEVEN = ((5, 3, 4, 1), (2, 4, 3, 6))
UNEVEN_END = ((5, 3, 4, 1, 2), (2, 4))
FIRST_ENDS = ((3,), (4, 1, 5))
CASES = {
    "sgd": Case(mean, descend, UNEVEN, is_evaluated=True),
    "momentum_masked": Case(masked, momentum, UNEVEN_END),
    "adam_penalized": Case(penalized, adam, FIRST_ENDS, is_evaluated=True),
    "embedding_adam": Case(embedded, adam, UNEVEN_END),
    "embedding_momentum_option": Case(embedded, momentum, UNEVEN, {"clip_global_norm": 0.05}),
    "clipped": Case(penalized, None, UNEVEN_END, train=clipped),
    "static": Case(masked, adam, ((4, 4, 4), (4, 4)), is_static=True),
    "accumulated": Case(mean, adam, UNEVEN, {"accumulate_steps": 2}),
}


def batch(worker: int, step: int, rows: int) -> tuple[dict, Any]:
    """Returns a worker's features and labels; the first half of the rows is masked out."""
    numbers = np.random.RandomState(1000 * worker + 10 * step + rows)
    mask = np.ones(rows)
    mask[: rows // 2] = 0.0
    features = {
        "mask": mask,
        "words": numbers.randint(0, WORDS, [rows, 2]),
        "x": numbers.uniform(-1, 1, [rows, WIDTH]),
    }
    return features, numbers.uniform(-1, 1, [rows])


def batches_of(case: Case, worker: int) -> list:
    """Returns one worker's batches."""
    return [batch(worker, step, rows) for step, rows in enumerate(case.rows[worker])]


def batches_of_all(case: Case) -> list:
    """Returns what one device is given: in each step the rows of all workers that have some."""
    each = [batches_of(case, worker) for worker in range(len(case.rows))]
    steps = max(map(len, each)) if not case.is_static else min(map(len, each))
    joined = []
    for step in range(steps):
        parts = [batches[step] for batches in each if step < len(batches)]
        features = {
            key: np.concatenate([features[key] for features, _ in parts]) for key in parts[0][0]
        }
        joined.append((features, np.concatenate([labels for _, labels in parts])))
    return joined


def dataset(batches: list, is_static: bool) -> tf.data.Dataset:
    """Returns a dataset of batches that differ in their numbers of rows."""

    def spec(array):
        rows = array.shape[0] if is_static else None
        return tf.TensorSpec([rows, *array.shape[1:]], array.dtype)

    signature = tf.nest.map_structure(spec, batches[0])
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def model_of(case: Case, spec_class: Any) -> Callable:
    """Returns the model_fn of a case, for one device or for replicate_model_fn.

    Args:
        case: The case.
        spec_class: `EstimatorSpec`.
    """

    def model(features, labels, mode):
        loss = case.loss(features, labels)
        metrics = {
            "loss of batches": tf1.metrics.mean(loss),
            "label": tf1.metrics.mean(labels),
            "near": tf1.metrics.accuracy(labels > 0, features["x"][:, 0] > 0),
            "auc": tf1.metrics.auc(labels > 0, tf.sigmoid(features["x"][:, 1])),
        }
        train_op = tf.no_op() if case.train is None else case.train(loss)
        return spec_class(
            mode,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=metrics if mode == "eval" else None,
            predictions={"x": features["x"]},
        )

    return model
