"""Clicks of users on items, in a table of embeddings that no one device holds.

Users, items and the pairs of both are hashed into the rows of one table, which has far more rows
than a batch has ids: a step of Adagrad reads and writes those of the batch alone.

The data are synthetic. Each user and each item has a hidden vector and a hidden number, drawn from
their ids; a user clicks on an item with the probability of a logistic model of these.
"""

from collections.abc import Mapping
from typing import Any

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

_USERS, _ITEMS, _TASTES = 2000, 500, 4


def model_fn(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Mapping[str, Any],
) -> "estimator.EstimatorSpec":
    """Gives each pair of a user and an item a probability of a click.

    Args:
        features: `user` and `item`, int64 [batch].
        labels: [batch], whether the user clicked; None in PREDICT.
        mode: One of `ModeKeys`.
        params: `rows` and `width` of the table.

    Returns:
        A spec whose train_op does nothing: the optimizer is that of `replicate_model_fn`.
    """
    start = tf1.random_normal_initializer(stddev=0.1)
    table = tf1.get_variable("table", [params["rows"], params["width"]], initializer=start)
    user, item = (
        tf.nn.embedding_lookup(table, _hashed(features[name], name, params["rows"]))
        for name in ("user", "item")
    )
    logits = user[:, 0] + item[:, 0] + tf.reduce_sum(user[:, 1:] * item[:, 1:], 1)
    probabilities = tf.sigmoid(logits)
    predictions = {"probability": probabilities}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    loss = tf1.losses.sigmoid_cross_entropy(labels, logits)
    metrics = {"auc": tf1.metrics.auc(labels, probabilities, num_thresholds=1000)}
    return estimator.EstimatorSpec(
        mode, predictions, loss, train_op=tf.no_op(), eval_metric_ops=metrics
    )


def _hashed(ids: tf.Tensor, name: str, rows: int) -> tf.Tensor:
    """Returns the row of the table for each id."""
    return tf.strings.to_hash_bucket_fast(tf.strings.join([name, tf.strings.as_string(ids)]), rows)


def input_fn(mode: str, params: Mapping[str, Any]) -> tf.data.Dataset:
    """Makes up clicks: others in each mode, the same ones in each run.

    Args:
        mode: One of `ModeKeys`.
        params: `examples`: how many of each mode there are.

    Returns:
        A dataset of features and labels.
    """
    first = {"train": 0, "eval": 1, "infer": 2}[mode]
    return tf.data.Dataset.range(params["examples"]).map(lambda n: _click(first, n))


def _click(first: int, n: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    draws = tf.random.stateless_uniform([3], [first, n])
    user, item = (tf.cast(draws[k] * count, tf.int64) for k, count in enumerate((_USERS, _ITEMS)))
    (of_user, bias), (of_item, more) = (
        (found[1:], found[0])
        for found in (
            tf.random.stateless_normal([1 + _TASTES], [seed, each])
            for seed, each in ((7, user), (8, item))
        )
    )
    logit = bias + more + tf.reduce_sum(of_user * of_item)
    return {"user": user, "item": item}, tf.cast(draws[2] < tf.sigmoid(logit), tf.int32)
