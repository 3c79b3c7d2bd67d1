"""tensorflow-estimator 2.15 loads, row by row, and does its work on this TensorFlow."""

import functools
import json

import numpy as np
import pytest

from replicate import errors
from replicate.compat import estimator as estimators
from replicate.compat import versions
from replicate.compat.tensorflow import tf, tf1

NEEDS_ROWS = versions.parse(tf.__version__) >= (2, 16)
ROW_NAMES = [row.name for row in estimators.ROWS]

# A child per row adds every row but this one, tries to load the API, and says how it went.
WITHOUT_EACH_ROW = """
import importlib, json, os, sys
from replicate.compat import estimator as estimators

outcomes = {}
for left_out in estimators.ROWS:
    reader, writer = os.pipe()
    if not os.fork():
        try:
            added = estimators.add_missing([r for r in estimators.ROWS if r is not left_out])
            importlib.import_module("tensorflow_estimator.python.estimator.api._v1.estimator")
            said = "loads" if not added else f"loads with {added}"
        except (AttributeError, ImportError) as e:
            said = str(e)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    outcomes[left_out.name] = os.fdopen(reader).read()
    os.wait()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def without_each_row(run_python):
    return json.loads(run_python(WITHOUT_EACH_ROW))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROW_NAMES)
def test_row_is_needed_where_it_is_missing(without_each_row, name):
    if NEEDS_ROWS:
        assert name.rpartition(".")[2] in without_each_row[name]
    else:
        assert without_each_row[name] == "loads"


def test_rows_are_added_once():
    estimators.load_v2()
    assert estimators.add_missing() == []


@pytest.mark.thorough
def test_rows_are_added_only_where_missing(run_python):
    added = run_python(
        "from replicate.compat import estimator; print(len(estimator.add_missing()))"
    )
    assert int(added) == (len(ROW_NAMES) if NEEDS_ROWS else 0)


@pytest.mark.skipif(not NEEDS_ROWS, reason="TensorFlow 2.15 has it")
def test_what_is_not_added_says_so():
    estimators.load_v1()
    from tensorflow.python.tpu import session_support

    with pytest.raises(errors.UnsupportedTensorFlowError, match="watch over the workers of a TPU"):
        session_support.GracefulShutdownHook  # noqa: B018 - the look-up is what is tested


def learn_weight(features, labels, mode, params):
    """Learns the w of y = w x from w = 0, with squared error."""
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    y = features["x"] * w
    api = estimators.load_v2()
    if mode == "infer":
        outputs = {"serving_default": api.export.PredictOutput({"y": y})}
        return api.EstimatorSpec(mode, predictions={"y": y}, export_outputs=outputs)
    loss = tf1.losses.mean_squared_error(labels, y)
    optimizer = tf1.train.GradientDescentOptimizer(params["rate"])
    return api.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf1.train.get_or_create_global_step()),
        eval_metric_ops={"mse": tf1.metrics.mean_squared_error(labels, y)},
    )


def ones(steps=None):
    """Batches of two examples, x = y = 1."""
    batch = ({"x": tf.ones([2, 1])}, tf.ones([2, 1]))
    return tf.data.Dataset.from_tensors(batch).repeat(steps)


def twos():
    return tf.data.Dataset.from_tensors({"x": 2 * tf.ones([1, 1])})


def serving_input():
    x = tf1.placeholder(tf.float32, [None, 1], name="x")
    return estimators.load_v2().export.ServingInputReceiver({"x": x}, {"x": x})


@pytest.fixture
def make_estimator(tmp_path):
    api = estimators.load_v2()
    config = api.RunConfig(model_dir=str(tmp_path / "model"), tf_random_seed=1)
    return functools.partial(api.Estimator, learn_weight, config=config, params={"rate": 0.25})


def test_custom_estimator_trains_evaluates_predicts_and_exports(make_estimator, tmp_path):
    # loss = (w - 1)^2, so each step takes w to w - 0.25 * 2 (w - 1): 0, 1/2, 3/4.
    estimator = make_estimator()
    estimator.train(ones, steps=2)
    assert estimator.get_variable_value("w") == 0.75
    # Evaluated, (3/4 - 1)^2 = 1/16; predicted for x = 2, 3/2.
    metrics = estimator.evaluate(functools.partial(ones, 1))
    assert metrics == {"loss": 0.0625, "mse": 0.0625, "global_step": 2}
    (predicted,) = estimator.predict(twos)
    assert predicted["y"] == [1.5]

    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input)
    serve = tf.saved_model.load(path.decode()).signatures["serving_default"]
    np.testing.assert_array_equal(serve(x=tf.constant([[2.0], [4.0]]))["y"], [[1.5], [3.0]])


def test_tpu_estimator_runs_where_there_is_no_tpu(tmp_path):
    tpu = estimators.load_v1().tpu

    def count(features, labels, mode, params):
        step = tf1.train.get_or_create_global_step()
        assert params["batch_size"] == 2
        return tpu.TPUEstimatorSpec(
            mode, loss=tf.reduce_sum(features["x"]), train_op=tf1.assign_add(step, 1)
        )

    estimator = tpu.TPUEstimator(
        count,
        config=tpu.RunConfig(model_dir=str(tmp_path)),
        params={},
        use_tpu=False,
        train_batch_size=2,
    )
    estimator.train(lambda params: ones(), steps=3)
    assert estimator.get_variable_value("global_step") == 3


def test_tf_distribute_strategy_in_one_process_is_taken():
    api = estimators.load_v2()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = api.RunConfig(train_distribute=strategy)
    assert config.train_distribute is strategy
    assert config.is_chief


@pytest.mark.skipif(not NEEDS_ROWS, reason="TensorFlow 2.15 runs it")
def test_tf_distribute_strategy_over_a_cluster_is_refused(monkeypatch):
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    api = estimators.load_v2()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(errors.UnsupportedTensorFlowError, match="Leave out train_distribute"):
        api.RunConfig(train_distribute=strategy)
    assert api.RunConfig().task_type == "chief"
