"""Orders that are sent back: a wide part that remembers, a deep part that generalises.

The network is that of H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems"
(2016). The data in `orders-train.csv.gz` and `orders-test.csv.gz`, beside this file, are
synthetic: `scripts/example_data.py` makes them from a formula, and nobody ordered anything.

    channel, day, land: texts
    product: int32, 0 ... 59
    items: int32, from 1 on
    price: float32; one in fifty is empty
    returned: int32, 0 or 1
"""

from collections.abc import Mapping, Sequence
from typing import Any

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1


def model_fn(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Mapping[str, Any],
) -> "estimator.EstimatorSpec":
    """Gives each order a probability that it is sent back.

    Args:
        features: The columns above without `returned`, [batch].
        labels: [batch], `returned`; None in PREDICT.
        mode: One of `ModeKeys`.
        params: `vocabularies`: the texts of each column of texts; `products`: how many there
            are; `crosses`: pairs of columns of texts; `embedding` (default 8) and
            `hidden_units` (default [64, 32]) of the deep part.

    Returns:
        A spec whose train_op does nothing: the optimizer is that of `replicate_model_fn`.
    """
    vocabularies = params["vocabularies"]
    numbers = {name: _number_of(features[name], vocabularies[name]) for name in vocabularies}
    sizes = {name: len(words) + 1 for name, words in vocabularies.items()}
    product = tf.cast(features["product"], tf.int64)
    numbers["product"] = tf.clip_by_value(product, 0, params["products"])
    sizes["product"] = params["products"] + 1
    wide = _wide(numbers, sizes, params["crosses"])
    logits = wide + _deep(numbers, sizes, features, params)
    probabilities = tf.sigmoid(logits)
    predictions = {"probability": probabilities, "returned": tf.cast(logits > 0, tf.int32)}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    loss = tf1.losses.sigmoid_cross_entropy(labels, logits)
    metrics = {
        "accuracy": tf1.metrics.accuracy(labels, predictions["returned"]),
        "auc": tf1.metrics.auc(labels, probabilities, num_thresholds=1000),
    }
    return estimator.EstimatorSpec(
        mode, predictions, loss, train_op=tf.no_op(), eval_metric_ops=metrics
    )


def _number_of(texts: tf.Tensor, vocabulary: Sequence[str]) -> tf.Tensor:
    """Returns the place of each text in the vocabulary; behind its end for any other text."""
    same = tf.equal(texts[:, tf.newaxis], tf.constant(vocabulary)[tf.newaxis, :])
    place = tf.argmax(tf.cast(same, tf.int32), axis=1)
    unknown = len(vocabulary) * tf.ones_like(place)
    return tf.where(tf.reduce_any(same, axis=1), place, unknown)


def _wide(
    numbers: Mapping[str, tf.Tensor], sizes: Mapping[str, int], crosses: Sequence[Sequence[str]]
) -> tf.Tensor:
    """Returns logits, [batch]: one weight for each value, and for each pair of values."""
    keys = {name: (numbers[name], sizes[name]) for name in numbers}
    for first, second in crosses:
        key = numbers[first] * sizes[second] + numbers[second]
        keys[f"{first}_{second}"] = key, sizes[first] * sizes[second]
    with tf1.variable_scope("wide"):
        parts = [tf1.get_variable("bias", [], initializer=tf1.zeros_initializer())]
        for name, (key, size) in keys.items():
            weights = tf1.get_variable(name, [size], initializer=tf1.zeros_initializer())
            parts.append(tf.nn.embedding_lookup(weights, key))
    return sum(parts)


def _deep(
    numbers: Mapping[str, tf.Tensor],
    sizes: Mapping[str, int],
    features: Mapping[str, tf.Tensor],
    params: Mapping[str, Any],
) -> tf.Tensor:
    """Returns logits, [batch], of a network on embeddings and dense columns."""
    price, items = features["price"], tf.cast(features["items"], tf.float32)
    # A price of 0 stands for one that is not known.
    known = tf.cast(price > 0, tf.float32)
    log_price = tf.math.log(tf.maximum(price, 0.01)) - 3.0
    x = [tf.stack([known, known * log_price, items / 4.0], axis=1)]
    with tf1.variable_scope("deep"):
        for name, number in numbers.items():
            shape = [sizes[name], params.get("embedding", 8)]
            start = tf1.random_normal_initializer(stddev=0.3)
            weights = tf1.get_variable(f"{name}_embedding", shape, initializer=start)
            x.append(tf.nn.embedding_lookup(weights, number))
        x = tf.concat(x, axis=1)
        for index, units in enumerate(params.get("hidden_units", [64, 32])):
            x = tf1.layers.dense(x, units, tf.nn.relu, name=f"hidden{index}")
        return tf1.layers.dense(x, 1, name="logit")[:, 0]
