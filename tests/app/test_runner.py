"""The commands on a model small enough to know the answers by hand."""

import json
import re
import shutil
import types

import numpy as np
import pytest

from replicate.app.command import cli, commands
from replicate.app.config import config
from replicate.app.training import device_choice, predictions, runner
from replicate.compat.tensorflow import tf
from replicate.console import progress
from replicate.strategy.cluster import cluster as clusters
from tests.app import line
from tests.app.line import run

HERE = __name__
WEIGHT = line.WEIGHTS[4]


def failing(features, labels, mode, params):
    """The line, and what a model should not do."""
    if params.get("talkative"):
        print("a model that prints")
    if params.get("broken"):
        raise IndexError("a fault of the user's")
    if params.get("leaves"):
        raise SystemExit(0)
    return line.line(features, labels, mode, params)


def bad_rows():
    yield 1.0, 1.0
    raise ValueError("row 1 is bad")


def no_rows():
    rows = tf.data.Dataset.from_tensor_slices([1.0]).take(0).batch(2)
    return rows.map(lambda x: ({"x": x}, x))


def unlabelled():
    return tf.data.Dataset.from_tensor_slices({"x": [1.0]})


def failing_input():
    shapes = (tf.TensorSpec([]), tf.TensorSpec([]))
    rows = tf.data.Dataset.from_generator(bad_rows, output_signature=shapes)
    return rows.map(lambda x, y: ({"x": x}, y))


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the config and its data."""
    config = f"model_fn: {HERE}:failing\neval: {{every_steps: 2}}\n"
    return line.write(tmp_path_factory.mktemp("line"), config)


@pytest.fixture(name="trained", scope="module")
def train_once(folder):
    """Returns the folder after a training."""
    assert run(folder, "train") == 0
    return folder


def test_training_gives_the_weight_worked_out_by_hand(trained):
    reader = tf.train.load_checkpoint(str(trained / "trained"))
    assert reader.get_tensor("w") == pytest.approx(WEIGHT, rel=1e-6)
    assert reader.get_tensor("global_step") == 4


def test_training_evaluates_on_its_way(trained):
    steps = [
        event.step
        for path in (trained / "trained" / "eval").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if event.HasField("summary")
    ]
    assert sorted(set(steps)) == [2, 4]


def test_a_finished_training_does_nothing_more(trained, capsys):
    before = sorted(path.name for path in (trained / "trained").iterdir())
    assert run(trained, "train") == 0
    shown = capsys.readouterr().err
    assert "is at step 4 already; nothing left to do" in shown
    assert "Train on with more --train.steps, or begin again in another --model-dir." in shown
    assert sorted(path.name for path in (trained / "trained").iterdir()) == before


@pytest.mark.thorough
def test_a_training_says_what_runs_and_what_it_came_to(folder, capsys):
    assert run(folder, "train", "--set", "train.save_checkpoints_steps=3", model_dir="told") == 0
    shown = capsys.readouterr()
    first, second, *_, last = shown.err.splitlines()
    assert first == "line: 2 towers on CPU:0, CPU:1 (parameter_server)"
    assert second == f"training from step 0 to 4, in {folder / 'told'}"
    assert re.fullmatch(r"done at step 4 in 0:\d\d; checkpoints and summaries: .*told", last)
    assert "line at step 4" in shown.out
    alone = ["--set", "devices=[/cpu:1]", "--set", "train.steps=5", "--set", "eval=null"]
    assert run(folder, "train", *alone, model_dir="told") == 0
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "line: 1 tower on CPU:1"
    assert shown[1] == f"continuing from step 4 in {folder / 'told'}, to step 5"


def test_a_training_that_was_killed_before_its_end_makes_up_for_it(folder, capsys):
    named = ["--eval.input", f"{HERE}:failing_input"]
    assert run(folder, "train", "--set", "eval.every_steps=null", *named, model_dir="late") == 1
    assert not (folder / "late" / "export").exists() or not any((folder / "late/export").iterdir())
    capsys.readouterr()
    assert run(folder, "train", model_dir="late") == 0
    shown = capsys.readouterr()
    assert "is at step 4 already; what follows training is left" in shown.err
    assert "evaluated at step 4" in shown.err
    (export,) = (folder / "late" / "export").iterdir()
    assert f"exported: {export}\n" in shown.out
    assert run(folder, "train", model_dir="late") == 0
    assert "is at step 4 already; nothing left to do" in capsys.readouterr().err
    assert list((folder / "late" / "export").iterdir()) == [export]


def test_where_nothing_follows_training_the_last_step_is_its_end(folder, capsys):
    alone = ["--set", "eval=null", "--set", "export=null"]
    assert run(folder, "train", *alone, model_dir="alone") == 0
    (folder / "alone" / "metrics.json").unlink()
    assert run(folder, "train", *alone, model_dir="alone") == 0
    assert "nothing left to do" in capsys.readouterr().err


def test_evaluate_prints_metrics_for_machines(trained, capsys):
    assert run(trained, "evaluate", "--json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["global_step"] == 4
    assert metrics["average"] == pytest.approx(WEIGHT * 2.5, rel=1e-6)  # mean of w x


def test_evaluate_prints_metrics_for_people(trained, capsys):
    assert run(trained, "evaluate", "--quiet") == 0
    shown = capsys.readouterr()
    assert "average" in shown.out
    assert "line at step 4" in shown.out
    assert shown.err == ""


def test_training_tells_machines_in_one_document(folder, capsys):
    given = ["--json", "--set", "params.talkative=true"]
    assert run(folder, "train", *given, model_dir="machines") == 0
    shown = capsys.readouterr()
    assert "a model that prints" in shown.err
    found = json.loads(shown.out)
    assert (found["name"], found["step"], found["is_new"]) == ("line", 4, True)
    assert found["model_dir"] == str(folder / "machines")
    assert found["metrics"]["average"] == pytest.approx(WEIGHT * 2.5, rel=1e-6)
    assert tf.saved_model.contains_saved_model(found["path"])
    assert run(folder, "train", *given, "--quiet", model_dir="machines") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    assert (found["step"], found["is_new"], found["metrics"], found["path"]) == (
        4,
        False,
        None,
        None,
    )


def test_export_tells_machines_in_one_document(trained, capsys):
    options = ["--json", "--set", f"export.directory={trained / 'for_machines'}"]
    assert run(trained, "export", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert tf.saved_model.contains_saved_model(found["path"])
    assert found["signatures"] == {
        "serving_default": {"inputs": {"x": "float32 [None]"}, "outputs": {"y": "float32 [None]"}}
    }


def test_a_training_off_a_terminal_shows_plain_lines(folder, capsys):
    assert run(folder, "train", "--train.log_every_steps=2", model_dir="plain") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train ")]
    # The second line is the first with a time before it: 4 rows a step.
    assert len(lines) == 2  # of the first step and the last
    assert re.fullmatch(r"train 4/4  loss \S+  [\d,.]+ examples/s  0:00 left", lines[1])


def test_rows_that_cannot_be_written_leave_no_bar(monkeypatch, folder):
    left = []

    def rows(*_):
        try:
            yield {}
        finally:
            left.append("the display")

    def fail(rows, file):
        next(rows)
        raise OSError("the disk is full")

    monkeypatch.setattr(runner, "predict", rows)
    monkeypatch.setattr(predictions, "write_lines", fail)
    options = types.SimpleNamespace(quiet=True, checkpoint=None, output=None)
    settings = config.load(str(folder / "line.yaml"))
    display = progress.Display(True)
    request = types.SimpleNamespace(options=options, settings=settings, display=display)
    with pytest.raises(OSError, match="full") as raised:
        commands.predict.callback(request)
    assert left, raised  # whose traceback holds the rows


def test_predict_writes_rows_in_order(trained, capsys, tmp_path):
    path = tmp_path / "p.npz"
    assert run(trained, "predict", "--output", str(path)) == 0
    with np.load(path) as written:
        np.testing.assert_allclose(written["y"], WEIGHT * np.float32([1, 2, 3, 4]), rtol=1e-6)
    assert "4 predictions in" in capsys.readouterr().err


def test_predict_without_output_prints_json_lines(trained, capsys):
    assert run(trained, "predict", "--set", "predict.keys=[x]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}]


def test_export_prints_its_path_and_signatures(trained, capsys):
    assert run(trained, "export", "--set", f"export.directory={trained / 'served'}") == 0
    path, *signatures = capsys.readouterr().out.splitlines()
    assert signatures == [
        "  serving_default",
        "    input  x: float32 [None]",
        "    output y: float32 [None]",
    ]
    serve = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(serve(x=tf.constant([5.0]))["y"], [WEIGHT * 5], rtol=1e-6)


@pytest.mark.thorough
def test_an_input_that_is_over_is_not_read_again_but_what_follows_is_made_up_for(folder, capsys):
    given = ["--set", "train.input.repeat=3"]
    assert run(folder, "train", *given, model_dir="over") == 0
    (folder / "over" / "metrics.json").unlink()  # as of a process that was killed
    capsys.readouterr()
    assert run(folder, "train", *given, model_dir="over") == 0
    assert "evaluated at step 3" in capsys.readouterr().err
    assert run(folder, "train", *given, model_dir="over") == 0
    assert "evaluated" not in capsys.readouterr().err
    np.savez(folder / "other.npz", x=np.float32([1]), y=np.float32([2]))
    other = ["--set", "train.input.file=other.npz"]
    assert run(folder, "train", *given, *other, model_dir="over") == 1
    said = capsys.readouterr().err
    assert "train.input: is another one than that of the run before, and has no rows" in said
    assert "behind the 3 batches that are passed over. Set repeat: true, or choose" in said


@pytest.mark.parametrize(
    ("devices", "strategy", "cluster", "text"),
    [
        ("2", None, {}, "2 towers on CPU:0, CPU:1 (parameter_server)"),
        ("[/cpu:3]", "mirrored", {}, "1 tower on CPU:3"),
        ("4", "one_device", {}, "1 tower on CPU:0"),
        ("6", None, {}, "6 towers on CPU:0, CPU:1, ..., CPU:5 (parameter_server)"),
        ("1", None, {"worker": ["a:2"]}, "2 workers of 1 tower on CPU:0 (multi_worker)"),
        (
            "2",
            None,
            {"ps": ["a:3"]},
            "1 worker of 2 towers on CPU:0, CPU:1 (1 parameter server)",
        ),
        (
            "1",
            None,
            {"worker": ["a:2"], "ps": ["a:3", "a:4"]},
            "2 workers of 1 tower on CPU:0 (2 parameter servers)",
        ),
    ],
)
def test_people_are_told_where_a_run_is(folder, devices, strategy, cluster, text):
    assignments = [f"devices={devices}"] + ([f"strategy={strategy}"] if strategy else [])
    settings = config.load(str(folder / "line.yaml"), assignments)
    jobs = {"chief": ["a:1"], **cluster}
    task = clusters.of({"cluster": jobs, "task": {"type": "chief", "index": 0}})
    assert device_choice.text_of(settings, task) == text


def test_a_server_keeps_variables_until_it_is_ended(trained, capsys, monkeypatch):
    def serve(task):
        print("serves", task.name)
        raise SystemExit(3)

    jobs = {"chief": ["127.0.0.1:9"], "ps": ["127.0.0.1:10"]}
    task = {"cluster": jobs, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    monkeypatch.setattr(runner.membership, "serve", serve)
    assert run(trained, "train") == 1
    shown = capsys.readouterr()
    assert shown.out == "serves ps:0\n"
    assert "ps:0, keeps variables until it is ended" in shown.err


@pytest.mark.parametrize(
    ("command", "options", "text"),
    [
        ("evaluate", [], "must hold a checkpoint, there is none. Run `replicate train` first"),
        ("predict", [], "must hold a checkpoint, there is none"),
        ("export", [], "must hold a checkpoint, there is none"),
        ("train", ["model_fn=tests.app.line:lime"], "must have lime. Did you mean line?"),
        ("train", ["model_fn=lime_model:line"], "the module lime_model cannot be found"),
        ("train", ["train.input.file=none.npz"], "none.npz: the file must exist"),
        ("train", ["train.input.file=line.yaml"], "line.yaml: must be npz, but is text"),
        ("train", ["eval.input.label=z"], "eval.input: "),
        ("train", ["params.broken=true"], "IndexError: a fault of the user's"),
        ("train", ["params.leaves=true"], "SystemExit: 0"),
        # After step 1 w is 1e30 * 15, its gradient then 7.5 * 1.5e31: the next step goes to -inf.
        (
            "train",
            ["optimizer.learning_rate=1e30"],
            "the weights must stay finite numbers, but after step 2 these do not: w.",
        ),
        ("train", ["devices=[/cpu:99]"], "it has no /device:CPU:99, it has /device:CPU:0"),
        ("train", ["devices=99"], "The number of devices is between 1 and"),
        ("train", ["devices={gpu: 77}"], "it has no /device:GPU:0"),
    ],
)
def test_a_failed_run_is_exit_code_1_and_a_text(folder, capsys, command, options, text):
    given = [part for option in options for part in ("--set", option)]
    name = f"failed_{abs(hash((command, *options)))}"
    assert run(folder, command, *given, model_dir=name) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


FULL = tf.errors.ResourceExhaustedError(None, None, "out/model.ckpt-3; No space left on device")


@pytest.mark.thorough("reason0-*")
@pytest.mark.parametrize(
    ("reason", "saved", "text"),
    [
        (OSError(28, "No space left on device"), 2, "Step 2 is saved."),
        (FULL, None, "Nothing is saved"),
    ],
)
def test_a_full_disk_is_told_with_what_is_saved(
    folder, tmp_path, capsys, monkeypatch, reason, saved, text
):
    save = tf.compat.v1.train.Saver.save

    def save_until_full(self, session, path, global_step=None, **options):
        if global_step is not None and int(global_step) > (saved or -1):
            raise reason
        return save(self, session, path, global_step=global_step, **options)

    monkeypatch.setattr(tf.compat.v1.train.Saver, "save", save_until_full)
    assert run(folder, "train", "--set", "train.steps=9", model_dir=tmp_path / "out") == 1
    shown = capsys.readouterr().err
    assert f"model_dir: {tmp_path / 'out'} must have room for checkpoints and summaries" in shown
    assert "No space left on device. " + text in shown
    assert "Traceback" not in shown


def test_a_torn_record_names_the_input(trained, capsys):
    (trained / "torn.tfrecord").write_bytes(b"\x01" * 40)
    source = (
        f"eval.input={{kind: tfrecord, file: {trained / 'torn.tfrecord'}, label: y, "
        "features: {x: {dtype: float32}, y: {dtype: float32}}}"
    )
    assert run(trained, "evaluate", "--set", source) == 1
    assert "eval.input: " in (shown := capsys.readouterr().err)
    assert "torn.tfrecord: record 1: corrupted record at 0" in shown


def example(**features):
    """Returns a tf.train.Example of lists of floats, or of whole numbers."""
    fields = {}
    for name, values in features.items():
        if isinstance(values[0], int):
            fields[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            fields[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString()


@pytest.mark.thorough("lacks a feature", "is no example")
@pytest.mark.parametrize(
    ("command", "bad", "fault"),
    [
        ("train", example(x=[1.0]), "Feature: y (data type: float) is required but could not be"),
        ("evaluate", example(x=[1.0, 2.0], y=[1.0]), "Key: x, Index: 0"),
        ("train", example(x=[1], y=[1.0]), "Key: x, Index: 0.  Data types don't match."),
        ("evaluate", b"\xff\xff", "must be a tf.train.Example."),
    ],
    ids=["lacks a feature", "is too long", "is of another type", "is no example"],
)
def test_a_record_that_does_not_fit_is_named(trained, tmp_path, capsys, command, bad, fault):
    path = tmp_path / "bad.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in (example(x=[1.0], y=[2.0]), bad):
            writer.write(record)
    section = "train" if command == "train" else "eval"
    source = (
        f"{section}.input={{kind: tfrecord, file: {path}, label: y, batch_size: 2, "
        "features: {x: {dtype: float32}, y: {dtype: float32}}}"
    )
    model_dir = torn(trained, tmp_path, "none", b"")
    given = ["--set", source, "--set", "train.steps=9"]
    assert run(trained, command, *given, model_dir=model_dir) == 1
    told = capsys.readouterr().err
    assert f"{section}.input: {path}: record 2: " in told
    assert fault in told


def test_a_fault_in_an_input_function_names_it_without_tensorflows_words(folder, capsys):
    given = ["--set", f"train.input={HERE}:failing_input"]
    assert run(folder, "train", *given, model_dir="failed_input") == 1
    shown = capsys.readouterr().err
    assert f"train.input: {HERE}:failing_input: must be readable as the config says: " in shown
    assert "row 1 is bad" in shown
    assert "root error" not in shown


def torn(trained, tmp_path, pattern, content):
    """Returns a copy of the trained model_dir with other content in some of its files."""
    copy = tmp_path / "torn"
    shutil.copytree(trained / "trained", copy)
    for path in copy.glob(pattern):
        path.write_bytes(content)
    return copy


# Each command opens a checkpoint in the same place, whatever is wrong with it.
@pytest.mark.thorough("predict-*")
@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        ("train", "*.index"),
        ("evaluate", "*.data-*"),
        ("predict", "*.index"),
        ("export", "*.data-*"),
    ],
)
def test_where_all_checkpoints_are_torn_that_is_told(trained, tmp_path, capsys, command, pattern):
    model_dir = torn(trained, tmp_path, pattern, b"torn")
    assert run(trained, command, "--set", "train.steps=9", model_dir=model_dir) == 1
    shown = capsys.readouterr().err
    assert "must be a readable checkpoint: " in shown
    assert "Traceback" not in shown


SHAPE = ("{shape: [3]}", "is another one's: w has the shape [] there, (3,) here")
NAME = ("{variable: v}", "is another one's: it has no v")


@pytest.mark.parametrize(
    ("command", "params", "text"),
    [("train", *NAME), ("evaluate", *SHAPE), ("predict", *NAME), ("export", *SHAPE)],
)
def test_a_checkpoint_of_another_model_is_told(trained, capsys, command, params, text):
    given = ["--set", f"params={params}", "--set", "train.steps=9"]
    assert run(trained, command, *given) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert f"were: give {trained / 'trained'} in place of the config." in shown


def test_a_checkpoint_of_another_optimizer_is_told(trained, capsys):
    given = ["--set", "optimizer={name: Adagrad, learning_rate: 1}", "--set", "train.steps=9"]
    assert run(trained, "train", *given) == 1
    assert "is another one's: it has no w/Adagrad" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options", "text"),
    [
        ("train", ["train.input.label=null"], "train.input: must give labels if model_fn needs"),
        (
            "train",
            [f"train.input={HERE}:unlabelled"],
            "a function must return (features, labels)",
        ),
        ("evaluate", ["eval.input.label=null"], "eval.input: must give labels if model_fn needs"),
        (
            "train",
            [f"train.input={{kind: function, function: '{HERE}:no_rows', batch_size: 9}}"],
            f"train.input: must have rows, has none. Check {HERE}:no_rows; with drop_remainder "
            "a batch_size, here 9, above the number of rows leaves none.",
        ),
        ("evaluate", [f"eval.input={HERE}:no_rows"], "eval.input: must have rows, has none"),
        ("train", ["optimizer=null"], "its train_op must increase the global step; it is still 4"),
        ("predict", ["predict.keys=[yy, x]"], "predict.keys: the model must predict what is named"),
    ],
)
def test_what_only_a_run_can_find_is_told(trained, tmp_path, capsys, command, options, text):
    model_dir = torn(trained, tmp_path, "none", b"")
    given = [part for option in [*options, "train.steps=9"] for part in ("--set", option)]
    assert run(trained, command, *given, model_dir=model_dir) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


@pytest.mark.thorough
def test_names_may_have_any_letters(trained, capsys):
    (trained / "größe λ.yaml").write_text((trained / "line.yaml").read_text())
    where = ["--model-dir", str(trained / "modèle 1")]
    for command in ("train", "evaluate", "predict", "export"):
        assert cli.main([command, str(trained / "größe λ.yaml"), *where]) == 0
    assert "größe λ at step 4" in capsys.readouterr().out
