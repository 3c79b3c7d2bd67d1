"""What `verify` compares: on which devices, and with which settings."""

import types

import pytest

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import subjects


def test_a_strategy_says_which_devices_work():
    strategy = types.SimpleNamespace(worker_devices=["/device:CPU:1", "/device:CPU:0"])
    assert subjects.worker_devices(3, strategy) == ("/device:CPU:1", "/device:CPU:0")
    assert subjects.worker_devices(["/cpu:2", "/cpu:1"], "one_device") == ("/device:CPU:2",)


@pytest.mark.parametrize("side", ["one", "alone", "towers"])
def test_a_model_that_misses_tf_estimator_is_led_to_ours(side, tmp_path):
    def model_fn(features):
        raise AttributeError("module 'tensorflow' has no attribute 'estimator'")

    config = subjects.run_config(None, str(tmp_path))
    devices = ["/cpu:0", "/cpu:1"]
    sides = subjects.sides(model_fn, None, devices, {}, devices, params={}, config=config)
    with tf.Graph().as_default(), pytest.raises(AttributeError) as raised:
        getattr(sides, side)({"x": tf.zeros([2])}, None, "infer")
    assert "call replicate.estimator.install()" in raised.value.__notes__[-1]


def test_variables_of_one_device_are_of_the_kind_that_strategies_make(tmp_path, fresh_graph):
    def model_fn(features):
        w = tf1.get_variable("w", [], use_resource=False)
        return estimator.EstimatorSpec("infer", {"y": w * features["x"]})

    config = subjects.run_config(None, str(tmp_path))
    sides = subjects.sides(model_fn, None, ["/cpu:0"], {}, ["/cpu:0"], params={}, config=config)
    sides.one({"x": tf.zeros([2])}, None, "infer")
    assert [variable.op.type for variable in tf1.global_variables()] == ["VarHandleOp"]
