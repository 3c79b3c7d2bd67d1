"""Metrics and predictions are one device's, whatever they are of: rows, batches, weights."""

import inspect

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running, table

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
CASES = dict(table.CASES)
M = tf1.metrics
SETTINGS = (
    running.Setting("parameter_server", 3, (7, 5, 1)),
    running.Setting("mirrored", 3, (9, 9), is_static=True),
    running.Setting("mirrored", 8, (7, 5, 1)),
)


def evaluating(metrics_of, loss=losses.quotient):
    """A model_fn that evaluates a loss and metrics."""

    def model(features, labels, mode):
        v = losses.Weights()
        found = metrics_of(features, labels, v)
        return exactness.spec_of(mode, loss(features, labels, v), eval_metric_ops=found)

    return model


def require_exact(model, setting, **options):
    running.require_exact(model, setting, "eval", tolerance=running.SINGLE, **options)


del CASES["tf.losses collected"]  # which is of every loss that the model has
STATICS = [name for name, case in CASES.items() if True in case.statics]
DYNAMICS = [name for name, case in CASES.items() if False in case.statics]


@pytest.mark.thorough("0-*")
@pytest.mark.parametrize(("group", "setting"), running.in_turn(range(8), SETTINGS[:2]))
def test_a_metric_of_any_loss_counts_once_per_batch(group, setting):
    names = (STATICS if setting.is_static else DYNAMICS)[group::8]

    def metrics_of(f, y, v):
        return {name: M.mean(CASES[name].loss(f, y, v)) for name in names}

    require_exact(evaluating(metrics_of, CASES[names[0]].loss), setting)


def keras(metric, *given):
    metric.update_state(*given)
    return metric


def scalars(f, y, v):
    """One number, or one vector, per batch."""
    loss = losses.quotient(f, y, v)
    gradients = tf.gradients(loss, list(v.variables.values()))
    means = tf.reduce_mean(losses.logits(f, v), 0)
    score = 1.0 - losses.dice(f, y, v)
    return {
        "loss": M.mean(loss),
        "loss by Keras": keras(tf.keras.metrics.Mean(), loss),
        "perplexity": M.mean(tf.exp(loss)),
        "score": M.mean(score),
        "loss by tokens": M.mean(loss, weights=tf.reduce_sum(f["picked"])),
        "loss by tokens by Keras": keras(tf.keras.metrics.Mean(), loss, tf.reduce_sum(f["mask"])),
        "norm of the gradient": M.mean(tf.linalg.global_norm(gradients)),
        "means": M.mean(means),
        "each mean": M.mean_tensor(means),
        "distance of means": M.root_mean_squared_error(tf.reduce_mean(y["y"], 0), means),
        "rows": M.mean(losses.count(f["x"])),
        "total": keras(tf.keras.metrics.Sum(), losses.total(f, y, v)),
        "is low": M.accuracy(tf.constant(True), loss < 1.2),
        "weights": M.mean(tf.nn.l2_loss(v.w)),
        "constant": M.mean(tf.constant(0.25)),
        "batches": keras(tf.keras.metrics.Sum(), tf.constant(1.0)),
    }


def of_rows(f, y, v):
    """Numbers of every row, some with weights."""
    p = tf.sigmoid(losses.logits(f, v))
    hits, weight = tf.cast(y["class"] > 0, tf.bool), f["real"]
    guess = tf.argmax(p, 1)
    return {
        "accuracy": M.accuracy(y["class"], guess, weight),
        "auc": M.auc(hits, p[:, 0], weight, num_thresholds=9),
        "auc by Keras": keras(tf.keras.metrics.AUC(num_thresholds=9), hits, p[:, 0]),
        "entries": M.mean(p),
        "tokens": M.mean(losses.of_tokens(f, y, v), f["is_token"]),
        "tokens by Keras": keras(tf.keras.metrics.Mean(), losses.of_tokens(f, y, v), f["is_token"]),
        "kept rows": M.mean(losses.kept(f, y, v)),
        "precision": M.precision(hits, p[:, 0] > 0.5, weight),
        "recall": M.recall(hits, p[:, 0] > 0.5),
        "overlap": M.mean_iou(y["class"], guess, 3),
        "distance": M.root_mean_squared_error(y["y"], p, weight[:, None]),
        "rate of positives": M.mean(tf.cast(hits, tf.float64)),
    }


def of_rows_and_of_batches(f, y, v):
    """Two metrics with one update, as heads of several tasks have them."""
    value, update = M.mean(losses.mean(f, y, v))
    other, later = M.mean(losses.cross(f, y, v), f["mask"])
    both = tf.group(update, later)
    return {"batches": (value, both), "rows": (other, both)}


def in_variables_of_their_own(f, y, v):
    """An aggregation says nothing where there is one tower."""

    def local(name, **options):
        options["synchronization"] = tf.VariableSynchronization.ON_READ
        options |= {"trainable": False, "collections": [tf1.GraphKeys.LOCAL_VARIABLES]}
        return tf1.get_variable(name, [], tf.float64, tf1.zeros_initializer(), **options)

    level, count = local("level", aggregation=tf.VariableAggregation.MEAN), local("count")
    number = tf.cast(tf.size(tf.unique(f["x"][:, 0]).y), tf.float64)
    return {
        "level": (level, level.assign(tf.reduce_mean(f["x"]))),
        "count": (count, count.assign_add(number)),
    }


OF_ALL_KINDS = [scalars, of_rows, of_rows_and_of_batches, of_rows, scalars]
OF_ALL_KINDS += [in_variables_of_their_own] * 2


@pytest.mark.parametrize(("metrics_of", "setting"), running.in_turn(OF_ALL_KINDS, SETTINGS))
def test_metrics_are_one_devices(metrics_of, setting):
    require_exact(evaluating(metrics_of), setting)


class Given:
    """What the metrics of a library are given.

    Attributes:
        p: [B, 3], shares of classes.
        score: [B], between 0 and 1.
        hit: [B], whether a row is a hit.
        label: [B], a class.
        one_hot: [B, 3].
        target: [B, 3], any numbers.
        weight: [B].
    """

    def __init__(self, f, y, v):
        self.p = tf.cast(tf.nn.softmax(losses.logits(f, v)), tf.float32)
        self.score, self.hit = self.p[:, 0], y["class"] > 0
        self.label = tf.cast(y["class"], tf.int64)
        self.one_hot = tf.one_hot(y["class"], 3)
        self.target = tf.cast(y["y"], tf.float32)
        self.weight = tf.cast(f["real"], tf.float32)


def of_hits(name):
    return lambda g: getattr(M, name)(g.hit, g.score > 0.3, g.weight)


def at_thresholds(name):
    return lambda g: getattr(M, name)(g.hit, g.score, [0.2, 0.4], g.weight)


def at_best(name):
    return lambda g: getattr(M, name)(g.label[:, None], tf.math.top_k(g.p, 2).indices)


COUNTS = [f"{kind}_{side}" for kind in ("true", "false") for side in ("positives", "negatives")]
OF_TENSORFLOW = {
    **{name: of_hits(name) for name in [*COUNTS, "precision", "recall"]},
    **{
        f"{name}_at_thresholds": at_thresholds(f"{name}_at_thresholds")
        for name in [*COUNTS, "precision", "recall"]
    },
    "accuracy": lambda g: M.accuracy(g.label, tf.argmax(g.p, 1), g.weight),
    "auc": lambda g: M.auc(g.hit, g.score, g.weight, num_thresholds=9),
    "average_precision_at_k": lambda g: M.average_precision_at_k(g.label, g.p, 2),
    "sparse_average_precision_at_k": lambda g: M.sparse_average_precision_at_k(g.label, g.p, 2),
    "mean": lambda g: M.mean(g.p, g.weight[:, None]),
    "mean_absolute_error": lambda g: M.mean_absolute_error(g.target, g.p, g.weight[:, None]),
    "mean_cosine_distance": lambda g: M.mean_cosine_distance(
        tf.nn.l2_normalize(g.target, 1), tf.nn.l2_normalize(g.p, 1), 1
    ),
    "mean_iou": lambda g: M.mean_iou(g.label, tf.argmax(g.p, 1), 3),
    "mean_per_class_accuracy": lambda g: M.mean_per_class_accuracy(g.label, tf.argmax(g.p, 1), 3),
    "mean_relative_error": lambda g: M.mean_relative_error(g.target, g.p, tf.abs(g.p)),
    "mean_squared_error": lambda g: M.mean_squared_error(g.target, g.p),
    "mean_tensor": lambda g: M.mean_tensor(tf.reduce_sum(g.p, 0)),
    "percentage_below": lambda g: M.percentage_below(g.p, 0.3),
    "precision_at_k": lambda g: M.precision_at_k(g.label, g.p, 2, weights=g.weight),
    "sparse_precision_at_k": lambda g: M.sparse_precision_at_k(g.label, g.p, 2),
    "recall_at_k": lambda g: M.recall_at_k(g.label, g.p, 2, weights=g.weight),
    "precision_at_top_k": at_best("precision_at_top_k"),
    "recall_at_top_k": at_best("recall_at_top_k"),
    "root_mean_squared_error": lambda g: M.root_mean_squared_error(g.target, g.p),
    "sensitivity_at_specificity": lambda g: M.sensitivity_at_specificity(g.hit, g.score, 0.5),
    "specificity_at_sensitivity": lambda g: M.specificity_at_sensitivity(g.hit, g.score, 0.5),
}
_BASES = {"Metric", "MeanMetricWrapper"}
KERAS = [
    name
    for name, each in inspect.getmembers(tf.keras.metrics, inspect.isclass)
    if name not in _BASES
]
_MADE = {
    **dict.fromkeys(["BinaryIoU"], ([0, 1], 0.3)),
    **dict.fromkeys(["IoU", "OneHotIoU"], (3, [0, 2])),
    **dict.fromkeys(["MeanIoU", "OneHotMeanIoU"], (3,)),
    **dict.fromkeys(["TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy"], (2,)),
    **dict.fromkeys(["SensitivityAtSpecificity", "SpecificityAtSensitivity"], (0.5, 9)),
    **dict.fromkeys(["PrecisionAtRecall", "RecallAtPrecision"], (0.5, 9)),
    "MeanRelativeError": ([0.5, 1.0, 2.0],),
    "AUC": (9,),
}
_OF_HITS = ("Precision", "Recall", "True", "False", "AUC", "Sensitivity", "Specificity", "BinaryI")
_OF_VALUES = ("Mean", "Sum", "MeanTensor")


def by_keras(name, g):
    """Updates a metric of Keras with what its kind takes."""
    made = getattr(tf.keras.metrics, name)(*_MADE.get(name, ()))
    if name in _OF_VALUES:
        given = (tf.reduce_sum(g.p, 0),) if name == "MeanTensor" else (g.p,)
    elif name.startswith(_OF_HITS):
        given = (g.hit, g.score, g.weight)
    elif name.startswith("Sparse"):
        given = (g.label, g.p, g.weight)
    elif name in ("IoU", "MeanIoU"):
        given = (g.label, tf.argmax(g.p, 1), g.weight)
    else:
        given = (g.one_hot, g.p)
    return keras(made, *given)


def every_of_tensorflow(f, y, v):
    g = Given(f, y, v)
    return {name: make(g) for name, make in OF_TENSORFLOW.items()}


def every_of_keras(f, y, v):
    g = Given(f, y, v)
    return {name: by_keras(name, g) for name in KERAS}


def test_no_metric_of_tensorflow_is_left_out():
    assert set(OF_TENSORFLOW) == {name for name in dir(M) if not name.startswith("_")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("metrics_of", "setting"), running.in_turn([every_of_tensorflow, every_of_keras], SETTINGS)
)
def test_every_metric_is_one_devices(metrics_of, setting):
    require_exact(evaluating(metrics_of), setting)


@pytest.mark.thorough("mirrored-*")
@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_metrics_that_a_training_makes_change_nothing(setting):
    def step(f, y, v):
        of_rows(f, y, v)  # metrics of hits, of tokens and of kept rows
        loss = tf.add_n([losses.mean(f, y, v), tf.nn.l2_loss(v.w), tf.nn.l2_loss(v.b)])
        return loss, running.momentum().minimize(loss, tf1.train.get_global_step())

    table.model(step).require_exact(setting)


def outputs(features, v):
    hidden = losses.logits(features, v)
    return {
        "rows": hidden,
        "columns": hidden[:, 0],
        "means": tf.reduce_mean(hidden, 0),
        "total": tf.reduce_sum(hidden),
        "root": tf.sqrt(tf.reduce_mean(tf.square(hidden))),
        "spread": tf.matmul(hidden, hidden, transpose_a=True),
        "how many": tf.shape(hidden)[0],
        "shape": tf.shape(hidden),
        "weights": v.w,
        "constant": tf.constant([1.0, 2.0]),
    }


@pytest.mark.parametrize("mode", ["eval", "infer"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_predictions_without_rows_are_the_whole_batchs(mode, setting):
    def model(features, labels, mode):
        v = losses.Weights()
        loss = None if labels is None else losses.mean(features, labels, v)
        return exactness.spec_of(mode, loss, outputs(features, v))

    given = running.batches(*setting.rows, is_static=setting.is_static)
    if mode == "infer":
        given = [(features, None) for features, _ in given]
    running.require_exact(model, setting, mode, given)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_a_bare_prediction_of_weights_comes_once(setting):
    def model(features, labels, mode):
        return exactness.spec_of(mode, predictions=losses.Weights().w * 2.0)

    given = [(running.batches(setting.rows[0], is_static=setting.is_static)[0][0], None)]
    running.require_exact(model, setting, "infer", given)
