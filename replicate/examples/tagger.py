"""A tag for each word of a sentence: a recurrent network that reads both ways.

The data in `sentences-train.tfrecord.gz` and `sentences-test.tfrecord.gz`, beside this file,
are synthetic: `scripts/example_data.py` draws them from a Markov chain. Most words may have
three tags, and only their neighbours tell which one is meant.

    words: int64 [24], 1 ... 199, then 0 to the end
    length: int64, how many words there are, 4 ... 24
    tags: int64 [24], 1 ... 6, then 0 to the end
"""

from collections.abc import Mapping
from typing import Any

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1


def model_fn(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Mapping[str, Any],
) -> "estimator.EstimatorSpec":
    """Tags sentences of different lengths, padded to one length.

    What stands behind a sentence's end counts nowhere: not for the network's state, the loss or
    the accuracy; `maxlen` makes the mask as wide as the padded words.

    Args:
        features: `words`, [batch, width]; `length`, [batch].
        labels: [batch, width], the tags; None in PREDICT.
        mode: One of `ModeKeys`.
        params: `words` and `tags`: how many there are, the padding included; `embedding`
            (default 16), `units` of the network in each direction (default 24).

    Returns:
        A spec whose train_op does nothing: the optimizer is that of `replicate_model_fn`.
    """
    words, length = features["words"], features["length"]
    mask = tf.sequence_mask(length, maxlen=words.shape[1])
    logits = _network(words, mask, params)
    tags = tf.where(mask, tf.argmax(logits, axis=2), tf.zeros_like(words))
    predictions = {"tags": tags}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    is_word = tf.cast(mask, tf.float32)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits, weights=is_word)
    metrics = {"word_accuracy": tf1.metrics.accuracy(labels, tags, weights=is_word)}
    return estimator.EstimatorSpec(
        mode, predictions, loss, train_op=tf.no_op(), eval_metric_ops=metrics
    )


def _network(words: tf.Tensor, mask: tf.Tensor, params: Mapping[str, Any]) -> tf.Tensor:
    """Returns logits, [batch, width, tags]."""
    layers = tf.keras.layers
    embedded = layers.Embedding(params["words"], params.get("embedding", 16))(words)
    units = params.get("units", 24)
    both = layers.Bidirectional(layers.GRU(units, return_sequences=True))(embedded, mask=mask)
    return layers.Dense(params["tags"])(both)
