"""Models that a cluster trains, with each worker's batches; one device has them together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import replicate
from replicate.compat.tensorflow import tf, tf1

WIDTH = 3
WORDS = 11


class Case(NamedTuple):
    """What workers train.

    Attributes:
        loss: From features and labels to a loss.
        optimizer: Makes the optimizer.
        rows: For each worker, how many rows each of its batches has.
        options: Of `replicate_model_fn`.
        is_static: Whether the graph knows how many rows a batch has.
        train: From a loss to a train_op, where the model has its own; else None.
        is_evaluated: Whether workers evaluate, too, together.
        dtype: Of all numbers that are no whole ones.
        is_random: Whether nobody but the workers themselves knows what comes out.
        kinds: `"dense"`; or `"mixed"`: with sparse and ragged features; or `"wide"`: the graph
            does not know how many columns there are.
    """

    loss: Callable
    optimizer: Callable
    rows: tuple
    options: dict = {}  # noqa: RUF012 - nobody writes it
    is_static: bool = False
    train: Callable | None = None
    is_evaluated: bool = False
    dtype: tf.DType = tf.float64
    is_random: bool = False
    kinds: str = "dense"


def _start(shape, dtype=tf.float32, partition_info=None, **unused):
    del partition_info, unused
    numbers = np.random.RandomState(int(np.prod(shape)) + len(shape)).uniform(-0.5, 0.5, shape)
    return tf.constant(numbers, dtype)


def dense(features):
    """A layer."""
    x = features["x"]
    w = tf1.get_variable("w", [WIDTH, 2], x.dtype, _start)
    b = tf1.get_variable("b", [2], x.dtype, _start)
    return tf.tanh(x @ w + b)


def _errors(features, labels):
    return tf.square(dense(features) - labels[:, tf.newaxis])


def mean(features, labels):
    """A mean over rows."""
    return tf.reduce_mean(_errors(features, labels))


def summed(features, labels):
    """A sum over rows."""
    return tf.reduce_sum(_errors(features, labels))


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
    table = tf1.get_variable("table", [WORDS, WIDTH], features["x"].dtype, _start)
    looked_up = tf.nn.embedding_lookup(table, features["words"])
    x = features["x"] + tf.reduce_sum(looked_up, 1)
    return mean({"x": x}, labels)


def parted(features, labels):
    """The same, of variables in two parts."""
    with tf1.variable_scope("parted", partitioner=tf1.fixed_size_partitioner(2)):
        return embedded(features, labels)


def mixed(features, labels):
    """Ragged and sparse rows beside dense ones."""
    table = tf1.get_variable("table", [WORDS, WIDTH], features["x"].dtype, _start)
    weights = tf1.get_variable("weights", [WORDS, WIDTH], features["x"].dtype, _start)
    items = tf.reduce_sum(tf.gather(table, features["items"]), 1)
    flags = tf.sparse.sparse_dense_matmul(features["flags"], weights)
    return mean({"x": features["x"] + items + flags}, labels)


def wide(features, labels):
    """Means of columns of which the graph does not know how many there are."""
    scale = tf1.get_variable("scale", [], features["x"].dtype, _start)
    return tf.reduce_sum(
        tf.square(scale * tf.reduce_mean(features["x"], 0) - 1.0)
    ) + tf.reduce_mean(scale * labels)


def steep(features, labels):
    """A loss, what its own gradients are, and complex numbers made of rows."""
    loss = mean(features, labels)
    gradients = tf.gradients(loss, tf1.trainable_variables())
    scale = tf1.get_variable("scale", [WIDTH], features["x"].dtype, _start)
    turned = tf.complex(features["x"] * scale, features["x"] + scale)
    twist = tf.abs(tf.reduce_mean(turned)) ** 2 + 0.01 * tf.abs(tf.reduce_sum(turned * turned))
    return loss + twist + 0.5 * tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])


def normalized(features, labels):
    """Rows that are normalized together, in all towers of all workers."""
    layer = tf.keras.layers.BatchNormalization(synchronized=True, dtype=features["x"].dtype.name)
    return mean({"x": layer(features["x"], training=True)}, labels)


def noisy(features, labels):
    """Random penalties, and a variable that a random number is written to."""
    kept = tf1.get_variable("kept", [], features["x"].dtype, _start, trainable=False)
    written = tf1.assign(kept, tf.random.normal([], dtype=kept.dtype))
    with tf1.control_dependencies([written]):
        rows_loss = mean({"x": tf.nn.dropout(features["x"], 0.5)}, labels)
    w = tf1.trainable_variables()[0]
    return rows_loss + tf.reduce_sum(w * tf.random.normal(w.shape, dtype=w.dtype))


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


def _cycle(pattern: tuple, steps: int) -> tuple:
    return tuple(pattern[step % len(pattern)] for step in range(steps))


STEPS = 20
SAVED = "adam_penalized"  # of the cases, the one of which there are checkpoints
UNEVEN = (_cycle((5, 3, 4, 1), STEPS), _cycle((2, 4, 3, 6), STEPS))
UNEVEN_END = (_cycle((5, 3, 4, 1, 2), STEPS), _cycle((2, 4), 13))
FIRST_ENDS = ((3, 1), _cycle((4, 1, 5), STEPS))
NONE_IN_ONE = (_cycle((3, 5), 4), ())
SHORT = ((5, 3, 4, 1), (2, 4, 3))
_SINGLE = {"dtype": tf.float32}
_CALLED = {"tower_building": "call"}
CASES = {
    "sgd": Case(mean, descend, UNEVEN),
    "momentum_masked": Case(masked, momentum, UNEVEN_END),
    "momentum_masked_single": Case(masked, momentum, UNEVEN_END, **_SINGLE),
    "adam_penalized": Case(penalized, adam, FIRST_ENDS, is_evaluated=True),
    "embedding_adam": Case(embedded, adam, UNEVEN_END),
    "clipped": Case(penalized, None, UNEVEN_END, train=clipped),
    "static": Case(masked, adam, ((4, 4, 4), (4, 4)), is_static=True),
    "none_in_one": Case(mean, adam, NONE_IN_ONE),
    "mixed": Case(mixed, adam, ((3, 2, 4), (2,)), kinds="mixed"),
    "wide": Case(wide, descend, SHORT, kinds="wide"),
    "steep": Case(steep, descend, SHORT),
    "normalized": Case(normalized, descend, ((4, 3), (2, 3))),
    "noisy": Case(noisy, adam, SHORT, is_random=True),
    "towers": Case(mean, momentum, UNEVEN_END, _CALLED, is_evaluated=True),
    "towers_embedding": Case(embedded, momentum, SHORT, {"loss_reduction": "mean"}),
    "towers_sum": Case(summed, momentum, SHORT, {"loss_reduction": "sum"}),
}
OF_THREE = {
    "sgd": Case(mean, descend, ((5, 3, 4, 1, 2), (2, 4, 3, 6, 2), (1, 2, 1))),
    "embedding_option": Case(
        embedded, momentum, ((2, 3), (5, 3, 4, 1, 2), (2, 4, 2)), {"clip_global_norm": 0.05}
    ),
    "accumulated_clipped": Case(
        penalized, adam, (*SHORT, (1, 2, 3, 4)), {"accumulate_steps": 2, "clip_global_norm": 0.05}
    ),
}


STEADY = Case(masked, momentum, ((3,), (4,), (2,)))  # of which every batch is the same


def cases_of(workers: int) -> dict:
    """Returns the cases for so many workers, by name."""
    return CASES if workers == 2 else OF_THREE


def batch(worker: int, step: int, rows: int) -> tuple[dict, Any]:
    """Returns a worker's features and labels; the first half of the rows is masked out."""
    numbers = np.random.RandomState(1000 * worker + 10 * step + rows)
    mask = np.ones(rows)
    mask[: rows // 2] = 0.0
    features = {
        "flags": numbers.uniform(-1, 1, [rows, WORDS]) * numbers.randint(0, 2, [rows, WORDS]),
        "items": numbers.randint(0, WORDS, [rows, 3]),
        "lengths": numbers.randint(0, 4, [rows]),
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
    steps = (min if case.is_static else max)(map(len, each))
    joined = []
    for step in range(steps):
        parts = [batches[step] for batches in each if step < len(batches)]
        features = {
            key: np.concatenate([features[key] for features, _ in parts]) for key in parts[0][0]
        }
        joined.append((features, np.concatenate([labels for _, labels in parts])))
    return joined


def dataset(case: Case, batches: list) -> tf.data.Dataset:
    """Returns a dataset of batches that differ in their numbers of rows."""

    def spec(array):
        rows = array.shape[0] if case.is_static else None
        inner = [None] * (array.ndim - 1) if case.kinds == "wide" else array.shape[1:]
        return tf.TensorSpec([rows, *inner], array.dtype)

    signature = tf.nest.map_structure(spec, batches[0] if batches else batch(0, 0, 1))
    found = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return found.map(lambda features, labels: _of_kinds(case, features, labels))


def _of_kinds(case: Case, features: dict, labels: tf.Tensor) -> tuple:
    """Returns features and labels of a case's dtype, and of its kinds of tensors."""
    features = dict(features)
    for key in ("flags", "mask", "x"):
        features[key] = tf.cast(features[key], case.dtype)
    flags, items, lengths = (features.pop(key) for key in ("flags", "items", "lengths"))
    if case.kinds == "mixed":
        features["flags"] = tf.sparse.from_dense(flags)
        features["items"] = tf.RaggedTensor.from_tensor(items, lengths)
    return features, tf.cast(labels, case.dtype)


def metrics_of(features: dict, labels: tf.Tensor) -> dict:
    """Returns metrics of rows, and a running maximum."""
    with tf1.variable_scope("largest", use_resource=True):
        start = tf1.constant_initializer(-np.inf)
        largest = tf1.get_local_variable("label", [], labels.dtype, start)
    replicate.metric_reduction(largest, lambda copies: tf.reduce_max(tf.stack(copies), 0))
    update = largest.assign(tf.maximum(largest, tf.reduce_max(labels)))
    return {
        "largest": (largest, update),
        "label": tf1.metrics.mean(labels),
        "hits": tf1.metrics.true_positives(labels > 0, features["x"][:, 0] > 0),
        "recall": tf1.metrics.recall(labels > 0, features["x"][:, 0] > 0),
        "near": tf1.metrics.accuracy(labels > 0, features["x"][:, 0] > 0),
        "auc": tf1.metrics.auc(labels > 0, tf.sigmoid(features["x"][:, 1])),
    }


def model_of(case: Case, spec_class: Any) -> Callable:
    """Returns the model_fn of a case, for one device or for replicate_model_fn.

    Args:
        case: The case.
        spec_class: `EstimatorSpec`.
    """

    def model(features, labels, mode):
        loss = case.loss(features, labels)
        tf1.summary.scalar("label", tf.reduce_mean(labels))  # the first worker fetches it alone
        metrics = metrics_of(features, labels) if mode == "eval" else None
        if metrics and case.options != _CALLED:  # a tower's loss is that of its rows
            metrics["loss of batches"] = tf1.metrics.mean(loss)
        train_op = tf.no_op() if case.train is None else case.train(loss)
        return spec_class(
            mode,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=metrics,
            predictions={"x": features["x"]},
        )

    return model
