"""The example that the README starts with does what it says."""

import json

import pytest

from replicate.app.command import cli


@pytest.mark.thorough
def test_digits_are_read_with_at_least_97_percent(tmp_path, capsys):
    where = ["configs/digits.yaml", "--model-dir", str(tmp_path), "--quiet"]
    devices = ["--set", "devices=[/cpu:0, /cpu:1]"]  # the suite's logical CPUs are made already
    assert cli.main(["train", *where, *devices]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", *where, *devices, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] >= 0.97


@pytest.mark.thorough
def test_digits_train_without_a_warning(tmp_path, capsys, caplog):
    where = ["configs/digits.yaml", "--model-dir", str(tmp_path)]
    devices = ["--set", "devices=[/cpu:0, /cpu:1]", "--set", "train.steps=3"]
    assert cli.main(["train", *where, *devices]) == 0
    told = capsys.readouterr().err.splitlines()
    begun = ("digits: 2 towers", "training from step 0", "train 1/3  loss", "train 3/3  loss")
    begun += ("evaluated at", "best so far", "done at")
    assert [line for line in told if not line.startswith(begun)] == []
    assert [
        one for one in caplog.records if one.name == "replicate" and one.levelname != "INFO"
    ] == []
