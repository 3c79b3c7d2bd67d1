"""Wide and deep (Cheng et al. 2016), canned: crosses and buckets beside embeddings."""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

CLASSES = 3


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of which the last is not full; rows weigh differently."""
    numbers = np.random.RandomState(9)
    features = {
        "age": numbers.uniform(0, 90, rows).astype(np.float32),
        "job": numbers.choice(["none", "clerk", "sales"], rows),
        "land": numbers.choice(["a", "b", "c", "d"], rows),
        "weight": numbers.choice([0.5, 1.0, 2.0], rows).astype(np.float32),
    }
    labels = numbers.randint(0, CLASSES, rows)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch_size).repeat(2)


def columns() -> tuple[list, list]:
    """Returns what is wide and what is deep."""
    column = tf.feature_column
    age = column.numeric_column("age", normalizer_fn=lambda years: years / 100.0)
    ages = column.bucketized_column(column.numeric_column("age"), [20.0, 40.0, 60.0])
    job = column.categorical_column_with_vocabulary_list("job", ["none", "clerk", "sales"])
    land = column.categorical_column_with_hash_bucket("land", 5)
    wide = [land, column.crossed_column([ages, "job"], 7)]
    start = tf1.constant_initializer(0.1)
    deep = [
        age,
        column.indicator_column(job),
        column.embedding_column(land, 2, combiner="mean", initializer=start),
    ]
    return wide, deep


def classifier(config) -> estimator.DNNLinearCombinedClassifier:
    """The estimator; its model_fn is what is split."""
    wide, deep = columns()
    return estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=lambda: tf.keras.optimizers.legacy.Ftrl(0.1),
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
        dnn_optimizer=lambda: tf.keras.optimizers.legacy.Adagrad(0.05),
        n_classes=CLASSES,
        weight_column="weight",
        batch_norm=False,
        config=config,
    )
