"""Kinds of wine: a canned classifier, as it comes.

The data in `wine-train.csv` and `wine-test.csv`, beside this file, are the 178 rows of "Wine"
by S. Aeberhard and M. Forina (1992), UCI Machine Learning Repository,
https://doi.org/10.24432/C5PC7J, licence CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/), in the copy that scikit-learn ships as
`sklearn.datasets.load_wine`. Changes: a header, rows put in the order of
`numpy.random.RandomState(0).permutation(178)`, the last 50 of them held out for the test.

    13 columns of float32, measured in a laboratory
    cultivar: int32, 0 ... 2, the grapes that the wine is made of
"""

from collections.abc import Mapping
from typing import Any

from replicate import estimator
from replicate.compat.tensorflow import tf

# For each column its mean and its standard deviation over the training rows.
_COLUMNS: Mapping[str, tuple[float, float]] = {
    "alcohol": (13.02, 0.817),
    "malic_acid": (2.302, 1.15),
    "ash": (2.337, 0.276),
    "alcalinity_of_ash": (19.05, 3.23),
    "magnesium": (100, 15.2),
    "total_phenols": (2.323, 0.643),
    "flavanoids": (2.064, 1.02),
    "nonflavanoid_phenols": (0.356, 0.125),
    "proanthocyanins": (1.637, 0.606),
    "color_intensity": (5.078, 2.32),
    "hue": (0.9598, 0.221),
    "od280_od315": (2.62, 0.714),
    "proline": (760.3, 328),
}


def model_fn(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | None,
    mode: str,
    params: Mapping[str, Any],
    config: "estimator.RunConfig",
) -> "estimator.EstimatorSpec":
    """Tells three kinds of wine apart.

    A canned estimator is an Estimator whose `model_fn` somebody else has written; that is all
    that is needed. Its optimizer is inside, so the config names none.

    Args:
        features: The 13 columns, [batch].
        labels: [batch], the cultivars; None in PREDICT.
        mode: One of `ModeKeys`.
        params: `hidden_units` (default [16, 8]), `learning_rate` (default 0.05).
        config: The `RunConfig`, which the canned estimator is made with.

    Returns:
        The canned estimator's own spec.
    """
    classifier = estimator.DNNClassifier(
        hidden_units=params.get("hidden_units", [16, 8]),
        feature_columns=[_numeric(name) for name in _COLUMNS],
        n_classes=3,
        optimizer=lambda: tf.keras.optimizers.legacy.Adagrad(params.get("learning_rate", 0.05)),
        config=config,
    )
    return classifier.model_fn(features, labels, mode, config)


def _numeric(name: str) -> Any:
    mean, deviation = _COLUMNS[name]
    return tf.feature_column.numeric_column(
        name, normalizer_fn=lambda values: (values - mean) / deviation
    )
