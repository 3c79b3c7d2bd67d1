"""How trainings end, what they leave behind, and what becomes of it."""

import contextlib
import io
import json
import re
import types

import numpy as np
import pytest

from replicate import estimator
from replicate.app.config import config, functions
from replicate.app.training import (
    estimators,
    hooks,
    optimizers,
    outcomes,
    trainings,
)
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts
from tests.app import line
from tests.app.line import WEIGHTS

# It is evaluated on y = x, where the loss is 7.5 (w - 1)^2 / 2: the best step is the first, w 1.5.
CONFIG = """
train: {save_checkpoints_steps: 1, keep_checkpoint_max: 9}
eval: {input: {label: x, batch_size: 4}}
export: {after_training: false}
"""
HERE = __name__
EARLY = [
    "train.early_stopping={patience: 2}",
    "train.keep_best={}",
    "train.keep_checkpoint_max=1",
    "eval.every_steps=1",
    "train.steps=9",
]


def some_rows(params):
    return rows(params["rows"])


def rows(count=4):
    def some():
        for x in (1.0, 2.0, 3.0, 4.0)[:count]:
            yield {"x": x}, 2 * x

    spec = ({"x": tf.TensorSpec([])}, tf.TensorSpec([]))
    return tf.data.Dataset.from_generator(some, output_signature=spec)


def for_ever():
    return rows().repeat()


class Steps(estimator.SessionRunHook):
    """Writes a word in each step."""

    def __init__(self, path, what):
        self.path, self.what = path, what

    def after_run(self, context, values):
        with open(self.path + "/steps", "a") as file:
            file.write(self.what)


def one_hook(model_dir):
    return Steps(model_dir, "a")


def two_hooks(model_dir, params, config):
    return [Steps(model_dir, params["b"]), Steps(config.model_dir, "c")]


class Enough(estimator.SessionRunHook):
    """Ends a training."""

    def after_run(self, context, values):
        context.request_stop()


def no_hook():
    return 3


def scaled():
    optimizer = tf1.train.AdamOptimizer(0.25)
    return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, 8.0)


def wide(features, labels, mode):
    """y is the mean of 16 units over 16 copies of x, with weights that are all different."""
    start = tf.reshape(tf.range(1, 257, dtype=tf.float32) / 777, [16, 16])
    kernel = tf1.get_variable("w", initializer=start)
    x = tf.tile(tf.expand_dims(features["x"], 1), [1, 16])
    y = tf.reduce_mean(tf.nn.relu(tf.matmul(x, kernel)), 1)
    loss = tf1.reduce_mean(tf1.square(y - labels)) / 2.0
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the config and its data."""
    return line.write(tmp_path_factory.mktemp("trainings"), CONFIG)


def run(folder, command, model_dir, *assignments, options=(), code=0):
    """Runs a command on the config; returns what it showed, stdout and stderr."""
    given = [part for one in assignments for part in ("--set", one)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = line.run(folder, command, *given, *options, model_dir=model_dir)
    assert ended == code, err.getvalue()
    assert "Traceback" not in err.getvalue()
    return out.getvalue(), err.getvalue()


def test_of_inputs_that_lack_an_array_the_training_one_is_told(folder, tmp_path):
    lacking = [f"{section}.input.features=[x, z]" for section in ("train", "eval")]
    told = run(folder, "train", tmp_path, *lacking, code=1)[1]
    assert "\ntrain.input: " in told
    assert "must have the array 'z'; there is x, y." in told


@pytest.fixture(name="trained", scope="module")
def train_once(folder):
    """Returns the folder after a training of 4 steps into `trained`."""
    run(folder, "train", "trained")
    return folder


@pytest.fixture(name="stopped", scope="module")
def stop_early(folder):
    """Returns the folder after a training into `stopped`, and what that showed."""
    return folder, run(folder, "train", "stopped", *EARLY)[1]


def stopping(work, stop):
    """Returns what asks to stop, and then does some work."""

    def stopped(*args):
        stop()
        return work(*args)

    return stopped


def tensor(path, name="w"):
    """Returns a tensor of a checkpoint."""
    return tf.train.load_checkpoint(str(path)).get_tensor(name)


def step_of(model_dir):
    """Returns the step of the newest checkpoint."""
    return int(tensor(model_dir, "global_step"))


def scalars(folder):
    """Returns step -> tag -> value from the event files in a folder."""
    found = {}
    for path in sorted(folder.glob("events.*")):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def test_a_run_writes_down_its_config_and_its_metrics(trained):
    out = trained / "trained"
    used = config.load(str(trained / "line.yaml"), [], str(out))
    assert config.load(str(out / "config.yaml")) == used
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["step"], metrics["ended_by"]) == (4, "steps")
    assert metrics["metrics"]["w"] == pytest.approx(WEIGHTS[4])


@pytest.mark.thorough
def test_a_run_that_continues_says_which_keys_differ(folder):
    run(folder, "train", "differs", "train.steps=1")
    again = ["train.steps=2", "optimizer.learning_rate=0.2"]
    shown = run(folder, "train", "differs", *again)[1].splitlines()
    assert [line for line in shown if line.startswith("config: ")] == [
        "config: optimizer.learning_rate: was 0.1, is 0.2",
        "config: train.steps: was 1, is 2",
    ]


@pytest.mark.thorough
def test_what_failed_before_its_first_checkpoint_is_no_run_to_differ_from(folder):
    run(folder, "train", "failed", f"model_fn={HERE}:nothing", code=1)
    shown = run(folder, "train", "failed", "train.steps=1")[1]
    assert "config: " not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        "train.input.file=none.npz",
        "eval.input.file=none.npz",
        f"model_fn={HERE}:nothing",
        f"train.hooks=[{HERE}:nothing]",
    ],
)
def test_what_is_found_wrong_before_the_first_step_leaves_nothing_of_a_run(folder, wrong):
    shown = run(folder, "train", "wrong/run", wrong, code=1)[1]
    assert {path.name for path in (folder / "wrong" / "run").iterdir()} <= {
        "training.lock",
        "export",
    }
    assert "training from step 0" not in shown


def test_what_is_found_wrong_leaves_the_record_of_the_run_before(trained):
    before = (trained / "trained" / "config.yaml").read_text()
    run(trained, "train", "trained", "train.input.file=none.npz", "train.steps=9", code=1)
    assert (trained / "trained" / "config.yaml").read_text() == before
    assert "nothing left to do" in run(trained, "train", "trained")[1]


def test_what_is_left_is_said(trained):
    finished = trained / "trained" / "metrics.json"
    kept = finished.read_text()
    finished.unlink()
    try:
        said = run(trained, "train", "trained")[1]
        assert "at step 4 already; what follows training is left." in said
    finally:
        finished.write_text(kept)


def test_epochs_end_a_training_at_the_same_step_however_often_it_is_stopped(folder):
    # 4 rows in batches of 3: 2 steps in a pass, 6 in 3 passes.
    epochs = ["train.epochs=3", "train.steps=null", "train.input.batch_size=3", "eval=null"]
    shown = run(folder, "train", "epochs", *epochs, "train.epochs=1")[1]
    assert "training from step 0 to 2 (1 epoch), in" in shown
    run(folder, "train", "epochs", *epochs, "train.steps=3")
    assert step_of(folder / "epochs") == 3  # whichever ends first
    shown = run(folder, "train", "epochs", *epochs)[1]
    assert f"continuing from step 3 in {folder / 'epochs'}, to step 6 (3 epochs)" in shown
    assert step_of(folder / "epochs") == 6
    assert json.loads((folder / "epochs/metrics.json").read_text())["ended_by"] == "epochs"
    shown = run(folder, "train", "epochs", *epochs)[1]
    assert "nothing left to do.\nTrain on with more --train.epochs, or begin again" in shown


@pytest.mark.thorough
def test_epochs_of_a_stream_are_counted_by_a_run_that_continues(folder):
    source = f"{{kind: function, function: '{HERE}:rows', batch_size: 3, prefetch: 0}}"
    epochs = ["train.epochs=2", "train.steps=null", f"train.input={source}", "eval=null"]
    assert "to step" not in run(folder, "train", "stream", *epochs, "train.steps=1")[1]
    assert "to step 4 (2 epochs)" in run(folder, "train", "stream", *epochs)[1]
    assert step_of(folder / "stream") == 4
    assert "nothing left to do" in run(folder, "train", "stream", *epochs)[1]
    shown = run(folder, "train", "stream", *epochs, "train.epochs=3")[1]
    assert "continuing from step 4" in shown
    assert "to step 6 (3 epochs)" in shown


@pytest.mark.thorough
def test_epochs_are_counted_anew_where_params_make_another_input(folder):
    source = f"{{kind: function, function: '{HERE}:some_rows', batch_size: 1}}"
    epochs = ["train.epochs=1", "train.steps=null", f"train.input={source}", "eval=null"]
    run(folder, "train", "counted", *epochs, "params.rows=2")
    assert step_of(folder / "counted") == 2
    run(folder, "train", "counted", *epochs, "params.rows=3")
    assert step_of(folder / "counted") == 3


def test_epochs_of_an_input_without_end_are_refused(folder):
    endless = ["train.epochs=1", f"train.input={HERE}:for_ever"]
    shown = run(folder, "train", "endless", *endless, code=1)[1]
    assert "train.input: must come to an end for train.epochs to be counted" in shown


def test_training_stops_early_and_says_why(stopped):
    folder, shown = stopped
    reason = "stopped early at step 3: loss has not improved on 0.9375 (step 1) for 2"
    assert reason in shown
    assert shown.count("evaluated at step 3") == 1
    assert step_of(folder / "stopped") == 3
    assert json.loads((folder / "stopped/metrics.json").read_text())["ended_by"] == "early_stopping"
    again = run(folder, "train", "stopped", *EARLY, "train.steps=99")[1]
    assert "is at step 3 already, where it stopped early (loss has not improved on" in again
    assert again.rstrip().endswith(
        "for 2 evaluations); nothing left to do.\n"
        "config: train.steps: was 9, is 99\n"
        "Train on with a larger --train.early_stopping.patience, or begin again in another "
        "--model-dir."
    )


def test_an_evaluation_that_was_cut_off_is_made_up_for(folder):
    # Evaluations after step 1 are worse than its; the second of them ends training.
    run(folder, "train", "cut", *EARLY, "train.steps=2")
    record = folder / "cut" / "evaluations.json"
    known = json.loads(record.read_text())
    assert list(known) == ["1", "2"]
    record.write_text(json.dumps({"1": known["1"]}))
    shown = run(folder, "train", "cut", *EARLY)[1]
    assert shown.index("evaluated at step 2") < shown.index("evaluated at step 3")
    assert "stopped early at step 3" in shown
    record.write_text(json.dumps({"1": known["1"]}))
    shown = run(folder, "train", "cut", *EARLY, "train.early_stopping={patience: 1}")[1]
    assert "stopped early at step 3" in shown  # and no step more


@pytest.mark.thorough("steps=4")
@pytest.mark.parametrize("saved", ["secs=600", "steps=4"])
def test_evaluations_are_at_multiples_of_steps_wherever_a_run_goes_on(folder, saved):
    out = f"goes_on_{saved}"
    each = ["train.keep_best={}", "train.early_stopping={patience: 9}", "eval.every_steps=3"]
    each += ["train.save_checkpoints_steps=null", f"train.save_checkpoints_{saved}"]
    run(folder, "train", out, *each, "train.steps=2")
    shown = run(folder, "train", out, *each, "train.steps=8")[1]
    assert re.findall(r"evaluated at step (\d+)", shown) == ["3", "6", "8"]
    record = json.loads((folder / out / "evaluations.json").read_text())
    assert list(record) == ["2", "3", "6", "8"]


@pytest.fixture(name="stop")
def ask_to_stop(monkeypatch):
    """Returns what asks the training that is at work to stop, as a signal does."""
    entered = []
    enter = interrupts.StopRequest.__enter__

    def entering(stop):
        entered.append(stop)
        return enter(stop)

    monkeypatch.setattr(interrupts.StopRequest, "__enter__", entering)
    return lambda: setattr(entered[-1], "requested", True)


@pytest.mark.thorough("2")
@pytest.mark.parametrize("at", ["1", "2"])
def test_a_training_that_is_stopped_has_saved_its_step_and_goes_on(folder, stop, monkeypatch, at):
    out = f"asked{at}"
    if at == "1":  # as the training begins
        monkeypatch.setattr(hooks.TrainingHook, "begin", stopping(hooks.TrainingHook.begin, stop))
    else:  # in the evaluation of a step
        monkeypatch.setattr(outcomes, "evaluate", stopping(outcomes.evaluate, stop))
    shown = run(folder, "train", out, "eval.every_steps=2", code=130)[1]
    assert f"stopped at step {at}; a checkpoint is saved in" in shown
    assert "The same command continues from there." in shown
    np.testing.assert_allclose(tensor(folder / out), WEIGHTS[int(at)], rtol=1e-6)


@pytest.mark.thorough
def test_a_training_that_is_stopped_at_its_end_says_what_is_left(folder, stop, monkeypatch):
    monkeypatch.setattr(outcomes, "evaluate", stopping(outcomes.evaluate, stop))
    shown = run(folder, "train", "asked_at_end", code=130)[1]
    assert "stopped at step 4; a checkpoint is saved in" in shown
    assert "The same command does what follows training." in shown


def test_a_training_that_is_stopped_before_its_first_step_says_so(folder, monkeypatch):
    def make(*_, **__):
        raise interrupts.Interrupted

    monkeypatch.setattr(trainings.steps.Steps, "make", make)
    shown = run(folder, "train", "asked_before", code=130)[1]
    assert "stopped before the first step; no checkpoint is saved in" in shown


@pytest.mark.parametrize("size", [1, 3])
def test_a_chief_that_is_stopped_in_an_evaluation_ends_the_session_of_all(monkeypatch, size):
    def stopped(_):
        raise interrupts.Interrupted

    monkeypatch.setattr(outcomes.Outcomes, "_evaluate", stopped)
    of, none = types.SimpleNamespace, {"eval": None, "export": None}
    settings = of(evaluated_every=2, section=lambda _: of(early_stopping=None), **none)
    run, goal = of(settings=settings, task=of(size=size)), of(start=0, end=9)
    goal.early_reason = lambda step: None
    listener = outcomes.Outcomes(run, goal, None)
    assert listener.after_save(None, 1) is False
    if size > 1:
        assert listener.after_save(None, 2) is True
    else:
        with pytest.raises(interrupts.Interrupted):
            listener.after_save(None, 2)


def test_the_best_checkpoint_outlives_the_others(stopped):
    folder, shown = stopped
    assert shown.count("best so far by loss") == 1
    assert tensor(folder / "stopped" / "best") == pytest.approx(WEIGHTS[1])
    assert not (folder / "stopped" / "model.ckpt-1.index").exists()
    chosen = ["--json", "--checkpoint", "best"]
    found = json.loads(run(folder, "evaluate", "stopped", options=chosen)[0])
    assert found["global_step"] == 1
    assert found["loss"] == pytest.approx(7.5 * 0.5**2 / 2)


def test_more_patience_continues_a_training_that_stopped_early(stopped):
    folder, _ = stopped
    patient = [*EARLY, "train.early_stopping={patience: 4}"]
    shown = run(folder, "train", "stopped", *patient)[1]
    assert "continuing from step 3" in shown
    assert "stopped early at step 5: " in shown
    assert "(step 1) for 4 evaluations" in shown


@pytest.mark.thorough("2")
@pytest.mark.parametrize("named", ["2", "{out}/model.ckpt-2", "{out}/model.ckpt-2.index"])
def test_a_checkpoint_is_evaluated_by_its_name(trained, named):
    options = ["--json", "--checkpoint", named.format(out=trained / "trained")]
    found = json.loads(run(trained, "evaluate", "trained", options=options)[0])
    assert (found["global_step"], found["w"]) == (2, pytest.approx(WEIGHTS[2]))


@pytest.mark.thorough
def test_all_checkpoints_are_evaluated_one_by_one(trained):
    found = json.loads(run(trained, "evaluate", "trained", options=["--all", "--json"])[0])
    assert [(one["global_step"], one["w"]) for one in found] == [
        (n, pytest.approx(WEIGHTS[n])) for n in range(5)
    ]
    shown = run(trained, "evaluate", "trained", options=["--all"])[0].splitlines()
    assert [cell.strip() for cell in shown[2].split("┃")[1:-1]] == [
        *("step", "average", "loss", "w")
    ]
    assert len(shown) == 3 + 1 + 5 + 1
    shown = run(trained, "evaluate", "trained")[0].splitlines()
    assert shown[0] == "line at step 4"
    assert not any(line.endswith(" ") or "global_step" in line for line in shown)


def test_predictions_and_exports_take_a_checkpoint(trained, tmp_path):
    chosen = ["--checkpoint", "1"]
    lines = run(trained, "predict", "trained", options=chosen)[0].splitlines()
    assert [json.loads(line)["y"] for line in lines] == pytest.approx([1.5, 3, 4.5, 6])
    into = f"export.directory={tmp_path}"
    path = run(trained, "export", "trained", into, options=chosen)[0].splitlines()[0]
    serve = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(serve(x=tf.constant([2.0]))["y"], [3.0], rtol=1e-6)


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_a_checkpoint_that_is_not_there_is_told(trained, command):
    shown = run(trained, command, "trained", options=["--checkpoint", "7"], code=1)[1]
    assert "--checkpoint 7: must be a checkpoint" in shown
    assert "(0, 1, 2, 3, 4" in shown


def test_the_mean_of_checkpoints_can_be_evaluated(trained):
    path = run(trained, "average", "trained", options=["--last", "2"])[0].strip()
    assert path == str(trained / "trained" / "averaged" / "model.ckpt-4")
    mean = (WEIGHTS[3] + WEIGHTS[4]) / 2
    chosen = ["--json", "--checkpoint", "averaged"]
    found = json.loads(run(trained, "evaluate", "trained", options=chosen)[0])
    assert (found["global_step"], found["w"]) == (4, pytest.approx(mean, rel=1e-6))
    told = json.loads(run(trained, "average", "trained", options=["--last", "3", "--json"])[0])
    names = [str(trained / "trained" / f"model.ckpt-{step}") for step in (2, 3, 4)]
    assert told == {"path": path, "of": names}
    mean = (WEIGHTS[2] + WEIGHTS[3] + WEIGHTS[4]) / 3
    assert tensor(trained / "trained" / "averaged") == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--last", "0"], 2, "'--last': 0 is not in the range x>=1"),
        (["--last", "9"], 1, "must be at most as many as there are checkpoints, got 9"),
        ([], 2, "Missing option '--last'"),
    ],
)
def test_a_mean_that_cannot_be_is_refused(trained, options, code, text):
    assert text in run(trained, "average", "trained", options=options, code=code)[1]


def test_hooks_of_the_config_run_in_training(folder):
    names = f"train.hooks=['{HERE}:one_hook', '{HERE}:two_hooks']"
    run(folder, "train", "hooked", names, "params.b=b", "train.steps=2", "eval=null")
    assert sorted((folder / "hooked" / "steps").read_text()) == list("aabbcc")


def test_a_hook_that_ends_a_training_is_told_from_an_input_that_does(folder):
    hooks = f"train.hooks=[{HERE}:Enough]"
    shown = run(folder, "train", "enough", hooks)[1]
    assert "a hook ended training at step 1 of 4." in shown
    assert "train.input came" not in shown
    assert json.loads((folder / "enough/metrics.json").read_text())["ended_by"] == "hook"
    shown = run(folder, "train", "enough", "train.input.repeat=3", "train.steps=9")[1]
    assert "train.input came to its end at step 3 of 9." in shown  # one batch in a pass
    assert json.loads((folder / "enough/metrics.json").read_text())["ended_by"] == "input"


def test_what_is_no_hook_is_refused(folder):
    shown = run(folder, "train", "x", f"train.hooks=['{HERE}:no_hook']", code=1)[1]
    assert f"train.hooks[0]: {HERE}:no_hook must return a SessionRunHook or a" in shown
    shown = run(folder, "train", "x", f"train.hooks=['{HERE}:lost']", code=1)[1]
    assert f"train.hooks[0]: {HERE}:lost: {HERE} must have lost" in shown


def test_a_scheduled_learning_rate_is_in_the_event_files(folder):
    # Step s is made with the rate 0.1 * 0.5^(s - 1).
    schedule = "{name: exponential_decay, learning_rate: 0.1, decay_steps: 1, decay_rate: 0.5}"
    given = ["train.save_summary_steps=1", f"optimizer.learning_rate={schedule}", "eval=null"]
    run(folder, "train", "summed", *given)
    found = scalars(folder / "summed")
    assert [found[step]["learning_rate"] for step in (1, 2, 3, 4)] == pytest.approx(
        [0.1, 0.05, 0.025, 0.0125]
    )


@pytest.mark.thorough
def test_the_last_loss_is_in_the_event_files(folder):
    for out, steps in (("each", 1), ("rare", 100)):
        run(folder, "train", out, f"train.save_summary_steps={steps}", "eval=null")
    each, rare = scalars(folder / "each"), scalars(folder / "rare")
    assert (sorted(each), sorted(rare)) == ([1, 2, 3, 4], [1, 4])
    assert rare[4]["loss"] == each[4]["loss"]


HALF = ["train.mixed_precision=true", "eval=null", "export=null", "train.steps=3"]
WIDE = f"model_fn={HERE}:wide"


def test_mixed_precision_on_cpus_rewrites_to_bfloat16(folder):
    path = str(folder / "line.yaml")
    with functions.importable(str(folder)):
        described = estimators.describe(config.load(path, HALF))
    rewrites = described.config.session_config.graph_options.rewrite_options
    assert rewrites.auto_mixed_precision_onednn_bfloat16 == 1
    assert rewrites.auto_mixed_precision == 0
    with tf.Graph().as_default():
        assert isinstance(described.optimizer_fn(), tf1.train.GradientDescentOptimizer)


def test_mixed_precision_gives_two_towers_what_it_gives_one(folder):
    run(folder, "train", "half_2", *HALF, WIDE)
    run(folder, "train", "half_1", *HALF, WIDE, "devices=[/cpu:0]")
    run(folder, "train", "full", *HALF, WIDE, "train.mixed_precision=false")
    two, one, full = (tensor(folder / name) for name in ("half_2", "half_1", "full"))
    assert two.dtype == np.float32
    # A number in bfloat16 has 8 bits, so each of them may be off by 2^-8 of what changes, w - w0;
    # three steps change w by less than 0.1.
    start = np.arange(1, 257, dtype=np.float32).reshape(16, 16) / 777
    assert np.abs(full - start).max() < 0.1
    np.testing.assert_allclose(two, one, atol=3 * 0.1 * 2**-8)
    np.testing.assert_allclose(two, full, atol=3 * 0.1 * 2**-7)


@pytest.mark.thorough
def test_a_loss_scale_leaves_two_towers_exact(folder, monkeypatch):
    # On GPUs computing is in float16, with a loss scale: a power of two, which rounds nothing.
    monkeypatch.setattr(optimizers, "kind_for", lambda names: optimizers.FLOAT16)
    weights = []
    for name, devices in (("scaled_2", "[/cpu:0, /cpu:1]"), ("scaled_1", "[/cpu:0]")):
        run(folder, "train", name, *HALF, f"devices={devices}")
        assert tensor(folder / name, "current_loss_scale") > 1
        weights.append(tensor(folder / name))
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)
    assert weights[0] == pytest.approx(WEIGHTS[3], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ("optimizer=null", 2, "must come with an optimizer: model_fn has one of its own"),
        (f"optimizer={HERE}:scaled", 1, "where the optimizer has a loss scale already"),
    ],
)
def test_mixed_precision_is_refused_where_it_cannot_be(folder, monkeypatch, given, code, text):
    monkeypatch.setattr(optimizers, "kind_for", lambda names: optimizers.FLOAT16)
    assert text in run(folder, "train", "refused", *HALF, given, code=code)[1]
