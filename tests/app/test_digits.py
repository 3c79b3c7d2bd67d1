"""The example that the README starts with does what it says."""

import json

from replicate.app import cli


def test_digits_are_read_with_at_least_97_percent(tmp_path, capsys):
    where = ["configs/digits.yaml", "--model-dir", str(tmp_path), "--quiet"]
    devices = ["--set", "devices=[/cpu:0, /cpu:1]"]  # the suite's logical CPUs are made already
    assert cli.main(["train", *where, *devices]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", *where, *devices, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] >= 0.97
