"""One Estimator on one device, and one whose graph is split: the same in all that they leave."""

import numpy as np

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WIDTH, WORDS = 4, 6
SIZES = (7, 2, 1)  # rows that do not divide, fewer than devices, one
EXACT = (1e-9, 1e-11)


def start(shape, dtype=None, partition_info=None, **unused):
    """An initializer: numbers that follow from the shape; of a part those of the whole."""
    del unused
    whole = list(shape if partition_info is None else partition_info.full_shape)
    numbers = np.random.RandomState(sum(whole) + len(whole)).uniform(-0.5, 0.5, whole)
    if partition_info is not None:
        begins = partition_info.var_offset
        numbers = numbers[tuple(slice(b, b + n) for b, n in zip(begins, shape, strict=True))]
    return tf.constant(numbers, dtype or tf.float64)


def batches(sizes=SIZES):
    """Pairs of features and labels."""
    numbers = np.random.RandomState(3)
    for rows in sizes:
        x = numbers.uniform(-1, 1, [rows, WIDTH])
        features = {"x": x, "ids": numbers.randint(0, WORDS, [rows, 2]).astype(np.int64)}
        yield features, x.sum(1, keepdims=True) > 0.1


def input_fn(made=batches, sizes=SIZES):
    """A dataset of batches of several sizes."""
    first = tf.nest.map_structure(_spec, next(iter(made(sizes[:1]))))
    return tf.data.Dataset.from_generator(lambda: made(sizes), output_signature=first)


def _spec(value):
    value = np.asarray(value)
    return tf.TensorSpec([None, *value.shape[1:]] if value.ndim else [], value.dtype)


def dense(x, units, activation=None, name=None):
    """A layer that begins alike everywhere."""
    return tf1.layers.dense(x, units, activation, kernel_initializer=start, name=name)


def network(features):
    """Returns numbers of shape [B, 1]: an embedding, dense layers, batch statistics apart."""
    table = tf1.get_variable("table", [WORDS, 3], tf.float64, start)
    words = tf.reduce_mean(tf.nn.embedding_lookup(table, features["ids"]), 1)
    hidden = dense(tf.concat([features["x"], words], 1), 5, tf.nn.tanh)
    return dense(hidden, 1)


def loss_of(labels, logits):
    """A mean over rows, squared: no sum of what rows have."""
    labels = tf.cast(labels, tf.float64)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses) + 0.1 * tf.square(tf.reduce_mean(logits))


def model(features, labels, mode):
    """A model_fn whose optimizer is given."""
    logits = network(features)
    loss = None if labels is None else loss_of(labels, logits)
    metrics = {"mean": tf1.metrics.mean(logits)}
    return exactness.spec_of(mode, loss, {"logits": logits}, eval_metric_ops=metrics)


def stepping(optimizer_fn, of=model):
    """The model_fn with an optimizer inside."""

    def model_fn(features, labels, mode):
        spec = of(features, labels, mode)
        if mode != "train":
            return spec
        step = optimizer_fn().minimize(spec.loss, tf1.train.get_global_step())
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        return spec._replace(train_op=tf.group(step, *updates))

    return model_fn


def run_config(**options):
    """A RunConfig of a quick session."""
    options.setdefault("session_config", exactness.session_config())
    options.setdefault("save_summary_steps", 1000)
    return estimator.RunConfig(tf_random_seed=1, log_step_count_steps=1000, **options)


def one(model, directory, params=None, **config):
    """The Estimator of one device."""
    return estimator.Estimator(model, str(directory), run_config(**config), params)


def split(model, directory, optimizer_fn=None, devices=3, params=None, config=None, **options):
    """The Estimator of several devices."""
    options.setdefault("tower_building", "split")
    made = model_fn.replicate_model_fn(model, optimizer_fn, devices, **options)
    return estimator.Estimator(made, str(directory), run_config(**(config or {})), params)


def variables_of(made):
    """All that a checkpoint holds, by names."""
    return {name: made.get_variable_value(name) for name in made.get_variable_names()}


def outcomes(made, given=input_fn, modes=("train", "eval", "infer")):
    """Trains, evaluates and predicts; returns what came out."""
    found = {}
    if "train" in modes:
        made.train(given)
        found["variables"] = variables_of(made)
    if "eval" in modes:
        found["metrics"] = made.evaluate(given)
    if "infer" in modes:
        found["predictions"] = list(made.predict(given, yield_single_examples=False))
    return found


def require_same(expected, found, tolerance=EXACT):
    """Fails where two outcomes differ."""
    exactness.compare(found, expected, *tolerance)


def require_one_device(
    tmp_path,
    model=model,
    optimizer_fn=None,
    reference=None,
    given=input_fn,
    modes=("train", "eval", "infer"),
    tolerance=EXACT,
    params=None,
    **options,
):
    """Requires an Estimator of a split graph to leave what one of one device leaves."""
    if reference is None:
        reference = model if optimizer_fn is None else stepping(optimizer_fn, model)
    expected = outcomes(one(reference, tmp_path / "one", params), given, modes)
    found = outcomes(
        split(model, tmp_path / "split", optimizer_fn, params=params, **options), given, modes
    )
    require_same(expected, found, tolerance)
    return found
