"""What `verify` compares: on which devices, and with which settings."""

import types

from replicate.verification import subjects


def test_a_strategy_says_which_devices_work():
    strategy = types.SimpleNamespace(worker_devices=["/device:CPU:1", "/device:CPU:0"])
    assert subjects.worker_devices(3, strategy) == ("/device:CPU:1", "/device:CPU:0")
    assert subjects.worker_devices(["/cpu:2", "/cpu:1"], "one_device") == ("/device:CPU:2",)


def test_a_config_of_another_kind_is_left_alone(tmp_path):
    config = types.SimpleNamespace(model_dir="own")
    assert subjects.run_config(config, str(tmp_path)) is config
    assert subjects.run_config(None, str(tmp_path)).model_dir == str(tmp_path)
