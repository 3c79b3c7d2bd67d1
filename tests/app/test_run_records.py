"""What a run writes beside its checkpoints."""

import json

import yaml

from replicate.app.training import run_records

BEFORE = "name: a\ntrain: {steps: 4, hooks: [], input: {kind: npz}}\noptimizer: null\n"
AFTER = "name: a\ntrain: {steps: 5, hooks: ['m:f'], input: {kind: npz}}\noptimizer: {name: Adam}\n"


def test_keys_that_differ_from_the_last_run_are_told_one_by_one(tmp_path):
    assert run_records.changes(str(tmp_path), AFTER) == []
    assert run_records.write_config(str(tmp_path), BEFORE, "/configs")
    assert run_records.changes(str(tmp_path), BEFORE) == []
    odd = BEFORE + "params: {missing: .nan}\n"
    assert run_records.write_config(str(tmp_path), odd, "/configs")
    assert run_records.changes(str(tmp_path), odd) == []
    assert run_records.write_config(str(tmp_path), BEFORE, "/configs")
    assert run_records.changes(str(tmp_path), AFTER) == [
        "train.steps: was 4, is 5",
        "train.hooks: was [], is ['m:f']",
        "optimizer: was null, is not there",
        "optimizer.name: was not there, is Adam",
    ]
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith("# Written by `replicate train`")
    assert yaml.safe_load(text) == yaml.safe_load(BEFORE)


def test_a_config_of_somebody_else_is_neither_read_nor_replaced(tmp_path):
    (tmp_path / "config.yaml").write_text("mine: true\n")
    assert not run_records.write_config(str(tmp_path), BEFORE, "/configs")
    assert run_records.changes(str(tmp_path), AFTER) == []
    assert (tmp_path / "config.yaml").read_text() == "mine: true\n"


def test_records_of_somebody_else_are_not_replaced(tmp_path):
    for name in ("run.json", "metrics.json"):
        (tmp_path / name).write_text('{"auc": 0.9}')
    told = {"towers": ["CPU:0"], "strategy": "mirrored", "start": 0, "command": ["x"]}
    assert not run_records.write_run(str(tmp_path), **told)
    assert not run_records.write_metrics(str(tmp_path), 4, None, "steps")
    assert {path.read_text() for path in tmp_path.iterdir()} == {'{"auc": 0.9}'}
    for path in tmp_path.iterdir():
        path.unlink()
    for step in (4, 5):
        assert run_records.write_run(str(tmp_path), **told)
        assert run_records.write_metrics(str(tmp_path), step, None, "steps")
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == 5


def test_a_damaged_config_is_no_config(tmp_path):
    run_records.write_config(str(tmp_path), "a: [", "/configs")
    assert run_records.changes(str(tmp_path), AFTER) == []


def test_metrics_are_json_also_where_they_are_no_numbers(tmp_path):
    metrics = {"global_step": 4, "loss": float("nan"), "accuracy": 0.5}
    run_records.write_metrics(str(tmp_path), 4, metrics, "steps")
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "step": 4,
        "ended_by": "steps",
        "metrics": {"loss": None, "accuracy": 0.5},
    }


def test_a_record_is_written_whole_or_not_at_all(tmp_path):
    run_records.write_metrics(str(tmp_path), 4, None, "steps")
    before = (tmp_path / "metrics.json").read_text()
    try:
        run_records.write_metrics(str(tmp_path), 5, {"a": object()}, "steps")
    except TypeError:
        pass
    assert (tmp_path / "metrics.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
