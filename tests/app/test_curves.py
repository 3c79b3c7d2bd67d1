"""Learning curves: what event files hold, whatever happened to the run that wrote them."""

import pytest
from matplotlib import text as matplotlib_text
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import record_writer
from tensorboard.util import tensor_util

from replicate import errors
from replicate.app.command import cli
from replicate.app.inspect import curves, pictures


def write(folder, start, *points, name="vm", **more):
    """Writes an event file that began at a time; points are (step, {tag: value})."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{start}.{name}"
    with open(path, "wb") as file:
        writer = record_writer.RecordWriter(file)
        events = [event_pb2.Event(wall_time=start, file_version="brain.Event:2", **more)]
        for step, numbers in points:
            values = [summary_pb2.Summary.Value(tag=t, simple_value=v) for t, v in numbers.items()]
            summary = summary_pb2.Summary(value=values)
            events.append(event_pb2.Event(wall_time=start, step=step, summary=summary))
        for event in events:
            writer.write(event.SerializeToString())
    return path


def losses(*points):
    return [(step, {"loss": value}) for step, value in points]


def test_train_and_evaluations_are_told_apart(tmp_path):
    write(tmp_path, 10, (1, {"loss": 2.0, "global_step/sec": 5.0}), (3, {"loss": 1.0}))
    write(tmp_path / "eval", 11, (3, {"loss": 1.5, "accuracy": 0.5}))
    write(tmp_path / "eval_test", 11, (3, {"accuracy": 0.25}))
    (run,) = curves.read([str(tmp_path)])
    assert run.name == str(tmp_path)
    assert run.curves == {
        "train": {"loss": {1: 2.0, 3: 1.0}, "global_step/sec": {1: 5.0}},
        "eval": {"loss": {3: 1.5}, "accuracy": {3: 0.5}},
        "eval_test": {"accuracy": {3: 0.25}},
    }


def test_a_resumed_run_supersedes_what_was_given_up(tmp_path):
    # Stopped at step 50 with a checkpoint of step 30: it goes on from there.
    write(tmp_path, 200, *losses((31, 3.0), (41, 4.0)), name="a")
    write(tmp_path, 100, *losses((10, 1.0), (30, 9.0), (35, 9.0), (50, 9.0)), name="b")
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["train"]["loss"] == {10: 1.0, 30: 9.0, 31: 3.0, 41: 4.0}


def test_writers_of_other_tags_supersede_nothing(tmp_path):
    write(tmp_path, 100, *losses((10, 1.0), (20, 2.0)))
    write(tmp_path, 101, (1, {"learning_rate": 0.1}), (20, {"learning_rate": 0.01}))
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["train"]["loss"] == {10: 1.0, 20: 2.0}


def test_an_evaluation_of_an_older_checkpoint_takes_nothing_back(tmp_path):
    write(tmp_path / "eval", 100, *losses((100, 1.0), (200, 2.0), (300, 3.0)))
    write(tmp_path / "eval", 200, *losses((200, 2.5)))
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["eval"]["loss"] == {100: 1.0, 200: 2.5, 300: 3.0}


@pytest.mark.parametrize("lost", [1, 5, 14, 20])
def test_a_last_record_that_is_cut_off_is_left_out(tmp_path, lost):
    path = write(tmp_path, 100, *losses((1, 1.0), (2, 2.0)))
    path.write_bytes(path.read_bytes()[:-lost])
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["train"]["loss"] == {1: 1.0}


def test_scalars_of_tensorflow_2_are_read_and_others_left_out(tmp_path):
    with open(tmp_path / "events.out.tfevents.1.vm.v2", "wb") as file:
        values = [
            summary_pb2.Summary.Value(tag=tag, tensor=tensor_util.make_tensor_proto(value))
            for tag, value in (("loss", 0.5), ("text", "words"), ("vector", [1.0, 2.0]))
        ]
        values[0].metadata.plugin_data.plugin_name = "scalars"
        values.append(summary_pb2.Summary.Value(tag="image", image=summary_pb2.Summary.Image()))
        event = event_pb2.Event(step=7, summary=summary_pb2.Summary(value=values))
        record_writer.RecordWriter(file).write(event.SerializeToString())
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["train"] == {"loss": {7: 0.5}}


def test_a_record_that_is_no_event_ends_a_file(tmp_path):
    path = write(tmp_path, 1, *losses((1, 1.0)))
    with open(path, "ab") as file:
        record_writer.RecordWriter(file).write(b"no event")
    with open(path, "ab") as file:
        event = event_pb2.Event(step=2, summary=summary_pb2.Summary())
        event.summary.value.add(tag="loss", simple_value=2.0)
        record_writer.RecordWriter(file).write(event.SerializeToString())
    (run,) = curves.read([str(tmp_path)])
    assert run.curves["train"] == {"loss": {1: 1.0}}


def test_files_of_other_things_are_no_curves(tmp_path):
    (tmp_path / "events.out.tfevents.1.vm").write_bytes(b"something else altogether")
    (tmp_path / "events.out.tfevents.2.vm").write_bytes(b"")
    (tmp_path / "evaluations.json").write_text("{}")
    with pytest.raises(errors.RunError, match="must hold event files with numbers"):
        curves.read([str(tmp_path)])


@pytest.fixture(name="texts")
def keep_texts(monkeypatch):
    """Returns the texts of the last picture, in the order they were made."""
    kept = []
    save = pictures.save

    def keep(made, path):
        save(made, path)
        drawn = made.get_tightbbox(made.canvas.get_renderer())
        assert drawn.x0 >= 0
        assert drawn.y0 >= 0
        assert drawn.x1 <= made.get_figwidth()
        assert drawn.y1 <= made.get_figheight()
        kept[:] = [one.get_text() for one in made.findobj(matplotlib_text.Text)]

    monkeypatch.setattr(pictures, "save", keep)
    return kept


def plot(*arguments):
    return cli.main(["plot", *map(str, arguments)])


def test_a_tilde_is_the_home_folder_and_several_sessions_are_no_news(
    tmp_path, monkeypatch, capfd, caplog
):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a", 1, *losses((1, 2.0), (2, 1.0)))
    for start in (2, 3):
        write(tmp_path / "a", start, graph_def=b"")
    assert plot("~/a", "--quiet") == 0
    assert (tmp_path / "a" / "curves.png").exists()
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_only_panels_with_data_are_drawn(tmp_path, capsys, texts, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be shortened
    numbers = {"loss": 2.0, "global_step/sec": 5.0}
    write(tmp_path / "a", 1, (1, numbers), (900, {"loss": float("nan")}))
    write(tmp_path / "b", 1, (5, {"loss": 1e-3, "learning_rate": 0.1}))
    write(tmp_path / "b" / "eval", 1, (9, {"loss": 1.5, "accuracy": 0.5, "auc": float("nan")}))
    assert plot("a", "b", "--png", "p.png") == 0
    assert capsys.readouterr().err == "picture: p.png\n"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    titles = ["loss", "accuracy", "learning_rate", "global_step/sec"]
    assert [text for text in texts if text in (*titles, "auc")] == titles
    assert {"a", "b", "train", "eval", "best"} <= set(texts)
    assert plot("a") == 0  # one run has its name, and no kinds of curves
    assert capsys.readouterr().err == "picture: a/curves.png\n"
    assert "a" in texts
    assert not {"train", "eval", "best"} & set(texts)


@pytest.fixture(name="panels")
def keep_panels(monkeypatch):
    """Returns the axes of the last picture by their titles."""
    kept = {}
    monkeypatch.setattr(
        pictures, "save", lambda made, _: kept.update({a.get_title(): a for a in made.axes})
    )
    return kept


def test_the_best_evaluation_is_marked_where_it_is_known_what_is_better(tmp_path, panels):
    values = [(1, 0.5), (2, 0.75), (3, 0.75), (4, float("nan"))]
    points = [(step, dict.fromkeys(("accuracy", "loss", "score"), one)) for step, one in values]
    write(tmp_path / "eval", 1, *points)
    write(tmp_path, 1, *losses((1, 0.1)))
    assert plot(tmp_path, "--png", "p.png") == 0
    labels = {title: one.get_xlabel() for title, one in panels.items() if title}
    assert labels == {
        "loss": "step (best: 0.5 at step 1)",
        "accuracy": "step (best: 0.75 at step 2)",
        "score": "step",
    }
    stars = [one for one in panels["accuracy"].lines if one.get_marker() == "*"]
    assert [list(one.get_xydata()[0]) for one in stars] == [[2, 0.75]]


def test_a_wide_range_is_logarithmic(tmp_path, panels):
    write(tmp_path, 1, *losses((1, 0.1), (2, 10.1)))
    write(tmp_path / "eval", 1, (1, {"accuracy": 0.1}), (2, {"accuracy": 0.9}))
    assert plot(tmp_path, "--png", "p.png") == 0
    assert [panels[title].get_yscale() for title in ("loss", "accuracy")] == ["log", "linear"]


@pytest.mark.thorough
def test_many_runs_and_panels_have_room(tmp_path, texts):
    names = [tmp_path / f"{'a name that goes on ' * 9}$run$ {n}" for n in range(11)]
    numbers = {f"metric/{'of_very_many_words/' * 5}{n}": 1e-9 * n for n in range(20)}
    for name in names:
        write(name / "eval", 1, (10**9, numbers))
    assert plot(*names, "--png", tmp_path / "p.png", "--quiet") == 0
    assert len([text for text in texts if text.startswith("metric/")]) == 20


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none", "--png", "p.png"], 1, "none: must be the model_dir of a run, but is not there"),
        (["file", "--png", "p.png"], 1, "file: must be the model_dir of a run, but is a file"),
        (["a", "empty", "--png", "p.png"], 1, "empty: must hold event files with numbers"),
        (["a", "--png", "none/p.png"], 1, "--png none/p.png: must be a file that can be written"),
        (["a", "--png", "p.jpg"], 2, "must end in .png"),
        (["--png", "p.png"], 2, "MODEL_DIR"),
    ],
)
def test_what_cannot_be_drawn_is_a_text(tmp_path, monkeypatch, capsys, arguments, code, text):
    write(tmp_path / "a", 1, *losses((1, 1.0)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert plot(*arguments) == code
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty", "file"]
