"""What a run writes beside its checkpoints."""

import functools
import json
import types

import pytest
import yaml

from replicate.app.config import documents
from replicate.app.runs import records

BEFORE = "name: a\ntrain: {steps: 4, hooks: [], input: {kind: npz}}\noptimizer: null\n"
AFTER = "name: a\ntrain: {steps: 5, hooks: ['m:f'], input: {kind: npz}}\noptimizer: {name: Adam}\n"


@pytest.fixture(name="said")
def make_said():
    """Returns what people are told."""
    return []


@pytest.fixture(name="kept")
def make_kept(tmp_path, said):
    """Returns what writes and reads the records of a run."""
    folder, say = str(tmp_path), said.append

    def write_config(text, functions):
        records.write(folder, records.CONFIG, documents.record(text, functions), say)

    def write_metrics(step, metrics, ended_by):
        text = records.of_metrics(step, metrics, ended_by)
        records.write(folder, records.METRICS, text, say)

    return types.SimpleNamespace(
        changes=functools.partial(records.changes, folder),
        write_config=write_config,
        write_metrics=write_metrics,
    )


def test_keys_that_differ_from_the_last_run_are_told_one_by_one(kept, tmp_path, said):
    assert kept.changes(AFTER) == []
    kept.write_config(BEFORE, "/configs")
    assert kept.changes(BEFORE) == []
    odd = BEFORE + "params: {missing: .nan}\n"
    kept.write_config(odd, "/configs")
    assert kept.changes(odd) == []
    kept.write_config(BEFORE, "/configs")
    assert kept.changes(AFTER) == [
        "train.steps: was 4, is 5",
        "train.hooks: was [], is ['m:f']",
        "optimizer: removed, was null",
        "optimizer.name: added, is Adam",
    ]
    kept.write_config(BEFORE + "params: {rate: 1}\n", "/configs")
    assert kept.changes(BEFORE + "params: {}\n") == ["params.rate: removed, was 1"]
    kept.write_config(BEFORE, "/configs")
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith("# Written by `replicate train`")
    assert yaml.safe_load(text) == yaml.safe_load(BEFORE)
    assert said == []


def test_a_config_of_somebody_else_is_neither_read_nor_replaced(kept, tmp_path, said):
    (tmp_path / "config.yaml").write_text("mine: true\n")
    kept.write_config(BEFORE, "/configs")
    assert said == [
        f"{tmp_path}/config.yaml is not a run's; it stays, and what would be in it of this run is "
        "not written down."
    ]
    assert kept.changes(AFTER) == []
    assert (tmp_path / "config.yaml").read_text() == "mine: true\n"


def test_records_of_somebody_else_are_not_replaced(kept, tmp_path, said):
    (tmp_path / "metrics.json").write_text('{"auc": 0.9}')
    kept.write_metrics(4, {}, "steps")
    assert len(said) == 1
    assert (tmp_path / "metrics.json").read_text() == '{"auc": 0.9}'
    (tmp_path / "metrics.json").unlink()
    for step in (4, 5):
        kept.write_metrics(step, {}, "steps")
    assert len(said) == 1
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == 5


def test_a_damaged_config_is_no_config(kept):
    kept.write_config("a: [", "/configs")
    assert kept.changes(AFTER) == []


def test_metrics_are_json_also_where_they_are_no_numbers(kept, tmp_path):
    metrics = {"global_step": 4, "loss": float("nan"), "accuracy": 0.5}
    kept.write_metrics(4, metrics, "steps")
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "step": 4,
        "ended_by": "steps",
        "metrics": {"loss": None, "accuracy": 0.5},
    }


def test_a_record_is_written_whole_or_not_at_all(kept, tmp_path):
    kept.write_metrics(4, {}, "steps")
    before = (tmp_path / "metrics.json").read_text()
    with pytest.raises(TypeError):
        kept.write_metrics(5, {"a": object()}, "steps")
    assert (tmp_path / "metrics.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
