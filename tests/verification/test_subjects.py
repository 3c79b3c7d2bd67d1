"""What `verify` compares: on which devices, and with which settings."""

import types

import pytest

from replicate.verification import subjects


def test_a_strategy_says_which_devices_work():
    strategy = types.SimpleNamespace(worker_devices=["/device:CPU:1", "/device:CPU:0"])
    assert subjects.worker_devices(3, strategy) == ("/device:CPU:1", "/device:CPU:0")
    assert subjects.worker_devices(["/cpu:2", "/cpu:1"], "one_device") == ("/device:CPU:2",)


def test_a_config_of_another_kind_is_left_alone(tmp_path):
    config = types.SimpleNamespace(model_dir="own")
    assert subjects.run_config(config, str(tmp_path)) is config
    assert subjects.run_config(None, str(tmp_path)).model_dir == str(tmp_path)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_model_that_misses_tf_estimator_is_led_to_ours(is_alone):
    def model_fn(features):
        raise AttributeError("module 'tensorflow' has no attribute 'estimator'")

    subject = subjects.Subject(model_fn, None, None, None)
    build = subject.plain("/cpu:0") if is_alone else subject.replicated(["/cpu:0"], {})
    with pytest.raises(AttributeError) as raised:
        build({}, None, "predict")
    assert "call replicate.estimator.install()" in raised.value.__notes__[-1]
