"""What `replicate train --fresh` deletes, and what it leaves alone."""

import pytest

from replicate.app.runs import atomic_files, fresh_starts, records
from replicate.compat.tensorflow import tf

WRITTEN = [
    "checkpoint",
    "model.ckpt-4.index",
    "model.ckpt-4.data-00000-of-00001",
    "model.ckpt-4.meta",
    "graph.pbtxt",
    "events.out.tfevents.1700000000.host",
    "eval/events.out.tfevents.1700000000.host",
    "eval_checkpoint/events.out.tfevents.1700000000.host.v2",
    "best/checkpoint",
    "best/model.ckpt-2.index",
    "averaged/averaged.json",
    "evaluations.json",
    "logs/chief-0.log",
    "logs/worker-1.log",
    ".metrics.json.123.tmp",
    "best/.model.ckpt-2.metrics.json.123.tmp",
    "export/1700000000/saved_model.pb",
    "export/best/1700000001/saved_model.pbtxt",
    "export/temp-12-0123abcd/1/saved_model.pb",
]
OTHERS = [
    "notes.txt",
    "model.py",
    "model.ckpt-4.bak",
    "model.ckpt-notes.index",
    "checkpoint.zip",
    "training.lock",
    "events/1.txt",
    "eval/README",
    "eval_of_another_model/checkpoint",
    "eval_of_another_model/model.ckpt-9.index",
    "evaluation/events.out.tfevents.1700000000.host",
    "best/thesis.tex",
    "export/1700000000.txt",
    "export/2024/report.pdf",
    "export/mine/1700000001/saved_model.pb",
    "elsewhere/checkpoint",
]
FOLDERS = ["1700000000", "best/1700000001", "temp-12-0123abcd"]  # below export


def files_in(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def found_in(folder):
    return fresh_starts.written_in(str(folder), str(folder / "export"), ["best", "latest"])


def test_what_a_run_writes_is_deleted_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    fill(out, WRITTEN + OTHERS)
    kept = records.Records(str(out), print)
    kept.write_config("name: a\n", "/configs")
    kept.write_metrics(4, {}, "steps")
    kept.write_run(towers=["CPU:0"], strategy="mirrored", start=0, command=["x"])
    found = found_in(out)
    names = {path.removeprefix(f"{out}/") for path in found}
    expected = {name for name in WRITTEN if not name.startswith("export/")}
    expected |= {f"export/{name}" for name in FOLDERS}
    assert names == expected | {"config.yaml", "metrics.json", "run.json"}
    shown = fresh_starts.listed(str(out), found)
    assert "  model.ckpt-4 (3 files)" in shown
    assert "  export/best/1700000001" in shown
    fresh_starts.delete(str(out), found)
    assert files_in(out) == sorted(OTHERS)
    assert not (out / "export" / "best").exists()
    assert (out / "eval").exists()
    assert found_in(out) == []


def test_a_checkpoint_that_was_being_written_is_deleted(tmp_path):
    fill(tmp_path, ["best/.model.ckpt-2.123.tmp/model.ckpt-2.index"])
    assert found_in(tmp_path) == [str(tmp_path / "best" / ".model.ckpt-2.123.tmp")]
    fresh_starts.delete(str(tmp_path), found_in(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "shown", "last"), [(20, 20, "  f19"), (21, 20, "  and 2 more")])
def test_of_many_files_the_first_are_listed(tmp_path, count, shown, last):
    lines = fresh_starts.listed(str(tmp_path), [str(tmp_path / f"f{n:02}") for n in range(count)])
    assert (len(lines), lines[0], lines[-1]) == (shown, "  f00", last)


def test_what_is_gone_meanwhile_is_passed_over(tmp_path):
    fill(tmp_path, ["evaluations.json"])
    fresh_starts.delete(
        str(tmp_path), [str(tmp_path / one) for one in ("checkpoint", "evaluations.json")]
    )
    assert list(tmp_path.iterdir()) == []


def test_runs_that_only_tensorflow_can_read_begin_again():
    folder = "ram://fresh"
    tf.io.gfile.makedirs(f"{folder}/best")
    for name in ("checkpoint", "best/checkpoint", "notes.txt"):
        atomic_files.write_text(f"{folder}/{name}", "x")
    found = fresh_starts.written_in(folder, f"{folder}/export", [])
    assert sorted(found) == [f"{folder}/best/checkpoint", f"{folder}/checkpoint"]
    fresh_starts.delete(folder, found)
    assert [name.rstrip("/") for name in tf.io.gfile.listdir(folder)] == ["notes.txt"]


def test_records_of_somebody_else_stay(tmp_path):
    fill(tmp_path, ["config.yaml", "run.json", "metrics.json"])
    assert found_in(tmp_path) == []


def test_nobody_follows_a_link_out_of_the_directory(tmp_path):
    fill(tmp_path, ["kept/checkpoint", "kept/1700000000/saved_model.pb", "out/checkpoint"])
    for name in ("best", "export"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "kept")
    (tmp_path / "linked").symlink_to(tmp_path / "out")
    assert found_in(tmp_path / "linked") == [str(tmp_path / "linked" / "checkpoint")]


def test_exports_elsewhere_stay(tmp_path):
    fill(tmp_path, ["served/1700000000/saved_model.pb", "out/checkpoint"])
    found = fresh_starts.written_in(str(tmp_path / "out"), str(tmp_path / "served"), [])
    assert found == [str(tmp_path / "out" / "checkpoint")]
