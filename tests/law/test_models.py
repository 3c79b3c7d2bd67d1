"""Public kinds of models, unchanged, through an Estimator: towers are one device."""

import logging

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import running
from tests.models import bert, ranking

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


def config(directory) -> estimator.RunConfig:
    session_config = exactness.session_config()
    session_config.allow_soft_placement = True  # as an Estimator has it where nothing is said
    return estimator.RunConfig(str(directory), tf_random_seed=1, session_config=session_config)


def outcome(run, input_fn, steps):
    """All variables after some steps, and what an evaluation then finds."""
    run.train(input_fn, steps=steps)
    variables = {name: run.get_variable_value(name) for name in run.get_variable_names()}
    return variables, run.evaluate(input_fn, steps=2)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """What one device makes of a model, once for all towers."""
    known = {}

    def run(key, made, input_fn, steps):
        if key not in known:
            known[key] = outcome(made(config(tmp_path_factory.mktemp("one"))), input_fn, steps)
        return known[key]

    return run


def require_same(found, expected, caplog=None, tolerance=(1e-4, 1e-5)):
    with exactness.named("variables"):
        exactness.compare(found[0], expected[0], *tolerance)
    with exactness.named("metrics"):
        exactness.compare(found[1], expected[1], *tolerance)
    texts = [record.getMessage() for record in caplog.records if "replicate" in record.name]
    assert not texts


MODELS = {
    "bert": (bert.model_fn, bert.input_fn, {}),
    "pairwise": (ranking.model_fn, ranking.input_fn, {"losses": ["pairwise"]}),
    "listwise": (ranking.model_fn, ranking.input_fn, {"losses": ["listwise"]}),
    "both": (ranking.model_fn, ranking.input_fn, {"losses": ["pairwise", "listwise"]}),
}
RUNS = [
    ("bert", "parameter_server", 3),
    ("bert", "round_robin", 2),
    ("bert", "mirrored", 2),
    ("pairwise", "mirrored", 3),
    ("listwise", "parameter_server", 3),
    ("both", "mirrored", 4),
]


@pytest.mark.parametrize(("name", "strategy", "num_towers"), RUNS)
def test_a_model_as_published_is_exact(name, strategy, num_towers, one_device, tmp_path, caplog):
    model, input_fn, params = MODELS[name]

    def single(run_config):
        return estimator.Estimator(model, config=run_config, params=params)

    expected = one_device(name, single, input_fn, 4)
    towers = model_fn.replicate_model_fn(model, devices=num_towers, strategy=strategy)
    with caplog.at_level(logging.WARNING, "replicate"):
        run = estimator.Estimator(towers, config=config(tmp_path), params=params)
        found = outcome(run, input_fn, 4)
    require_same(found, expected, caplog)
    # The one device goes on from what the towers have left.
    back = estimator.Estimator(model, config=config(tmp_path), params=params)
    back.train(input_fn, max_steps=5)
    assert back.get_variable_value("global_step") == 5


# Canned estimators.

ROWS = 19
_numbers = np.random.RandomState(0)
FEATURES = {
    "x": _numbers.uniform(-1, 1, [ROWS, 2]).astype(np.float32),
    "c": _numbers.randint(0, 5, ROWS),
    "weight": _numbers.choice([0.5, 1.0, 2.0], ROWS).astype(np.float32),
}
CLASSES = _numbers.randint(0, 3, ROWS)
TARGETS = _numbers.uniform(-1, 1, [ROWS, 1]).astype(np.float32)


def canned_input(labels):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices((FEATURES, labels)).batch(7).repeat(2)

    return input_fn


def columns():
    category = tf.feature_column.categorical_column_with_identity("c", 5)
    start = tf1.constant_initializer(0.1)
    return [
        tf.feature_column.numeric_column("x", shape=(2,)),
        tf.feature_column.embedding_column(category, 2, initializer=start),
    ]


def dnn(made, **options):
    def make(run_config, reduction):
        return made(
            [4],
            columns(),
            config=run_config,
            loss_reduction=reduction,
            optimizer=lambda: tf.keras.optimizers.legacy.Adagrad(0.05),
            **options,
        )

    return make


def linear_classifier(run_config, reduction):
    category = tf.feature_column.categorical_column_with_identity("c", 5)
    return estimator.LinearClassifier(
        [tf.feature_column.numeric_column("x", shape=(2,)), category],
        n_classes=3,
        weight_column="weight",
        config=run_config,
        loss_reduction=reduction,
    )


CANNED = {
    "DNNClassifier": (dnn(estimator.DNNClassifier, n_classes=3), CLASSES),
    "DNNRegressor": (dnn(estimator.DNNRegressor, weight_column="weight"), TARGETS),
    "LinearClassifier": (linear_classifier, CLASSES),
}
CANNED_RUNS = [
    ("DNNClassifier", "sum", "parameter_server", 3),
    ("DNNClassifier", "sum_over_batch_size", "mirrored", 2),
    ("DNNRegressor", "sum", "mirrored", 3),
    ("DNNRegressor", "sum_over_batch_size", "parameter_server", 2),
    ("LinearClassifier", "sum", "mirrored", 2),
    ("LinearClassifier", "sum_over_batch_size", "parameter_server", 4),
]


@pytest.mark.parametrize(("name", "reduction", "strategy", "num_towers"), CANNED_RUNS)
def test_canned_estimators_are_exact_in_training_and_evaluation(
    name, reduction, strategy, num_towers, tmp_path, caplog
):
    make, labels = CANNED[name]
    input_fn = canned_input(labels)
    expected = outcome(make(config(tmp_path / "one"), reduction), input_fn, 4)
    base = make(config(tmp_path / "many"), reduction)
    towers = model_fn.replicate_model_fn(base.model_fn, devices=num_towers, strategy=strategy)
    with caplog.at_level(logging.WARNING, "replicate"):
        found = outcome(estimator.Estimator(towers, config=base.config), input_fn, 4)
    require_same(found, expected, caplog, running.SINGLE)
