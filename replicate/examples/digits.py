"""Handwritten digits: a small convolutional network with batch normalisation.

The data in `digits.npz`, beside this file, are the 1,797 images of 8 x 8 pixels of
"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/), in the copy that scikit-learn ships as
`sklearn.datasets.load_digits`. Changes: stored as uint8, rows put in the order of
`numpy.random.RandomState(0).permutation(1797)`.

    image: uint8 [1797, 8, 8], 0 (paper) ... 16 (ink)
    label: uint8 [1797], 0 ... 9

Rows 0 ... 1436 are for training; rows 1437 ... 1796, a fifth, are held out for the test.
"""

from collections.abc import Mapping
from typing import Any

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

_CLASSES = 10
_MAX_INK = 16.0


def model_fn(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Mapping[str, Any],
) -> "estimator.EstimatorSpec":
    """Classifies images of digits.

    Args:
        features: `image`, [batch, 8, 8], values 0 ... 16.
        labels: [batch], the digits; None in PREDICT.
        mode: One of `ModeKeys`.
        params: `filters` of the first layer (default 32), `dropout` (default 0.3).

    Returns:
        A spec whose train_op does nothing: the optimizer is that of `replicate_model_fn`.
    """
    training = mode == estimator.ModeKeys.TRAIN
    logits = _network(features["image"], training, params)
    predictions = {
        "digit": tf1.argmax(logits, axis=1),
        "probabilities": tf1.nn.softmax(logits),
    }
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
    labels = tf1.cast(labels, tf1.int64)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf1.metrics.accuracy(labels, predictions["digit"])
    return estimator.EstimatorSpec(
        mode,
        predictions,
        loss,
        train_op=tf1.no_op(),
        eval_metric_ops={"accuracy": accuracy},
    )


def _network(image: tf.Tensor, training: bool, params: Mapping[str, Any]) -> tf.Tensor:
    """Returns logits, [batch, 10]."""
    filters = params.get("filters", 32)
    x = tf1.cast(image, tf1.float32)[..., tf1.newaxis] / _MAX_INK
    for name, width, stride in (("conv1", filters, 1), ("conv2", 2 * filters, 2)):
        x = tf1.layers.conv2d(
            x, width, 3, strides=stride, padding="same", use_bias=False, name=name
        )
        x = tf1.layers.batch_normalization(x, momentum=0.9, training=training, name=name + "_norm")
        x = tf1.nn.relu(x)
    x = tf1.layers.max_pooling2d(x, 2, 2)
    x = tf1.reshape(x, [-1, 2 * 2 * 2 * filters])
    x = tf1.layers.dropout(x, params.get("dropout", 0.3), training=training)
    return tf1.layers.dense(x, _CLASSES, name="logits")
