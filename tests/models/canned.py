"""Canned estimators whose losses are sums and means, with weights of rows and without."""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

ROWS = 19
_numbers = np.random.RandomState(0)
FEATURES = {
    "x": _numbers.uniform(-1, 1, [ROWS, 2]).astype(np.float32),
    "c": _numbers.randint(0, 5, ROWS),
    "weight": _numbers.choice([0.5, 1.0, 2.0], ROWS).astype(np.float32),
}
CLASSES = _numbers.randint(0, 3, ROWS)
TARGETS = _numbers.uniform(-1, 1, [ROWS, 1]).astype(np.float32)


def input_fn(labels):
    """Returns an input_fn of batches of which the last is not full."""

    def batches():
        return tf.data.Dataset.from_tensor_slices((FEATURES, labels)).batch(7).repeat(2)

    return batches


def columns() -> list:
    category = tf.feature_column.categorical_column_with_identity("c", 5)
    start = tf1.constant_initializer(0.1)
    return [
        tf.feature_column.numeric_column("x", shape=(2,)),
        tf.feature_column.embedding_column(category, 2, initializer=start),
    ]


def adagrad():
    return tf.keras.optimizers.legacy.Adagrad(0.05)


def classifier_of_sums(config) -> estimator.DNNClassifier:
    return estimator.DNNClassifier(
        [4], columns(), n_classes=3, config=config, loss_reduction="sum", optimizer=adagrad
    )


def regressor_of_means(config) -> estimator.DNNRegressor:
    return estimator.DNNRegressor(
        [4],
        columns(),
        weight_column="weight",
        config=config,
        loss_reduction="sum_over_batch_size",
        optimizer=adagrad,
    )
