"""The parts of a training that are not the chief's alone: an evaluator's, and a worker's."""

import json
import time
import types

import numpy as np
import pytest

from replicate.app.command import cli
from replicate.app.runs import checkpoints, records
from replicate.app.training import outcomes, trainings
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts
from replicate.strategy.cluster import cluster

WORKERS = {"chief": ["a:1"], "worker": ["a:2"]}
TASK = {"type": "evaluator", "index": 0}
TOGETHER = cluster.of({"cluster": WORKERS, "task": TASK})
SERVED = cluster.of({"cluster": {**WORKERS, "ps": ["a:3"]}, "task": TASK})
GOAL = types.SimpleNamespace(end=8, wanted="8 steps")

MODEL = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def line(features, labels, mode):
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    y = w * features["x"]
    loss = tf1.reduce_mean(tf1.square(y - labels)) / 2.0
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())
"""
CONFIG = """
model_fn: line_of_evaluators:line
optimizer: {name: GradientDescent, learning_rate: 0.1}
devices: [/cpu:0, /cpu:1]
cluster: {evaluator: true}
train:
  steps: 4
  save_checkpoints_steps: 1
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 4, shuffle: false}
eval:
  every_steps: 2
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 3}
"""

# x = 1, 2, 3, 4, y = 2 x and w = n after step n: batches of 3 rows and of 1 have the losses
# mean(1, 4, 9) (n - 2)^2 / 2 and 16 (n - 2)^2 / 2, whose mean is 31/6 (n - 2)^2.
LOSSES = {n: 31 / 6 * (n - 2) ** 2 for n in range(5)}


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    """Returns a folder with a model, its data and its config."""
    (tmp_path / "line_of_evaluators.py").write_text(MODEL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    x = np.float32([1, 2, 3, 4])
    np.savez(tmp_path / "d.npz", x=x, y=2 * x)
    return tmp_path


@pytest.fixture(name="run")
def make_run(folder, monkeypatch, capsys):
    """Returns what runs a task's part, whose exit code, and what it says, are returned."""

    def run(job, *given, chief=()):
        """Runs it; each time it waits for a checkpoint, the chief goes on until it yields."""
        going_on = iter(chief)
        clock = types.SimpleNamespace(sleep=lambda _: next(going_on), monotonic=time.monotonic)
        monkeypatch.setattr(trainings, "time", clock)
        jobs = {"chief": ["127.0.0.1:9"]} | (
            {"worker": ["127.0.0.1:10"]} if job == "worker" else {}
        )
        task = {"cluster": jobs, "task": {"type": job, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        options = [part for one in given for part in ("--set", one)]
        where = ["--model-dir", str(folder / "run")]
        code = cli.main(["train", str(folder / "c.yaml"), *where, *options])
        return code, capsys.readouterr().err

    return run


def save(folder, *steps):
    """Saves checkpoints of these steps as a chief does, the last of them as the newest."""
    with tf.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        step = tf1.train.get_or_create_global_step()
        saver = tf1.train.Saver(max_to_keep=None)
        (folder / "run").mkdir(exist_ok=True)
        for number in steps:
            session.run([w.assign(number), step.assign(number)])
            saver.save(session, str(folder / "run" / "model.ckpt"), step)


def chief_of(folder, *steps):
    """Yields after each checkpoint that it saves."""
    for step in steps:
        save(folder, step)
        yield


def evaluations(folder):
    """Returns the loss of each step that was evaluated."""
    return {
        event.step: value.simple_value
        for path in (folder / "run" / "eval").glob("events.*")
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss"
    }


def kept(folder):
    """Returns the records of the run."""
    return records.Records(str(folder / "run"), print)


def begin(folder):
    """Writes down that the chief begins."""
    kept(folder).write_run(towers=["CPU:0"], strategy="mirrored", start=0, command=["x"])


def record(folder):
    """Returns the record of a training that has ended."""
    return json.loads((folder / "run" / "metrics.json").read_text())


def test_an_evaluator_evaluates_where_it_is_due_and_at_the_end(folder, run):
    code, said = run("evaluator", chief=chief_of(folder, 1, 2, 3, 4))
    assert (code, "evaluator:0 evaluates checkpoints in" in said) == (0, True)
    assert evaluations(folder) == pytest.approx({2: LOSSES[2], 4: LOSSES[4]})
    assert (record(folder)["step"], record(folder)["ended_by"]) == (4, "steps")
    assert record(folder)["metrics"]["loss"] == pytest.approx(LOSSES[4])
    assert kept(folder).is_finished(4)


def test_an_evaluator_does_nothing_twice(folder, run):
    save(folder, 4)
    kept(folder).write_metrics(4, {}, "steps")
    assert run("evaluator")[0] == 0
    assert evaluations(folder) == {}


def test_an_evaluator_is_told_that_the_input_came_to_its_end(folder, run):
    save(folder, 3)
    begin(folder)
    kept(folder).note_end(3, "4 steps, None epochs")
    assert run("evaluator")[0] == 0
    assert evaluations(folder) == pytest.approx({3: LOSSES[3]})
    assert (record(folder)["step"], record(folder)["ended_by"]) == (3, "input")


def test_an_evaluator_goes_on_where_a_checkpoint_is_deleted_meanwhile(folder, run, monkeypatch):
    evaluate = outcomes.evaluate

    def deleted(run, made, input_fn, checkpoint, *rest):
        if checkpoint.endswith("-2"):
            for path in (folder / "run").glob("model.ckpt-2.*"):
                path.unlink()
        return evaluate(run, made, input_fn, checkpoint, *rest)

    monkeypatch.setattr(outcomes, "evaluate", deleted)
    code, said = run("evaluator", chief=chief_of(folder, 2, 4))
    assert code == 0
    assert "the checkpoint of step 2 was deleted while it was evaluated; keep more with" in said
    assert evaluations(folder) == pytest.approx({4: LOSSES[4]})


def test_an_evaluation_of_a_checkpoint_that_is_there_must_not_fail(folder, run):
    code, said = run(
        "evaluator",
        "train.keep_best={metric: rate, higher_is_better: true}",
        chief=chief_of(folder, 2),
    )
    assert code == 1
    assert "train.keep_best.metric: the model must have this metric, got 'rate'" in said


def test_an_evaluator_that_is_stopped_says_what_becomes_of_the_rest(folder, run, monkeypatch):
    entered = []
    enter = interrupts.StopRequest.__enter__
    monkeypatch.setattr(
        interrupts.StopRequest, "__enter__", lambda stop: entered.append(stop) or enter(stop)
    )

    def chief():
        entered[0].requested = True
        yield

    code, said = run("evaluator", chief=chief())
    assert (code, evaluations(folder)) == (130, {})
    assert "the evaluator stopped; the same command does what is left" in said


def test_a_chief_leaves_evaluations_to_the_evaluator(folder, run):
    assert run("chief")[0] == 0
    assert evaluations(folder) == {}
    assert (kept(folder).is_finished(4), checkpoints.step_of(str(folder / "run"))) == (False, 4)
    assert kept(folder).has_ended(4, "4 steps, None epochs")


def test_what_an_evaluator_found_ends_the_training_of_the_chief(folder, run):
    # The evaluations of steps 1 and 2 are there before them: the second is worse.
    found = {"1": {"loss": 1.0}, "2": {"loss": 2.0}}
    (folder / "run").mkdir()
    (folder / "run" / "evaluations.json").write_text(json.dumps(found))
    code, said = run("chief", "train.early_stopping={patience: 1}")
    assert code == 0
    assert "stopped early at step 2: loss has not improved on 1 (step 1) for 1 evaluation" in said
    assert kept(folder).has_ended(2, "4 steps, None epochs")


def test_a_worker_has_no_step_left_where_the_last_is_made(folder, run):
    save(folder, 4)
    code, said = run("worker")
    assert (code, "is at step 4 already; no step is left to make." in said) == (0, True)


@pytest.mark.parametrize(
    ("reached", "requested", "code", "text"),
    [
        (3, False, 0, "worker:0 has made its last step, 3"),
        (1, False, 0, "worker:0 has made no step: none was left, or its input has no rows"),
        (3, True, 130, "worker:0 stopped at step 3; the chief saves the checkpoint"),
    ],
)
def test_a_worker_says_how_its_steps_ended(
    folder, run, monkeypatch, reached, requested, code, text
):
    def made(run, goal):
        def make():
            run.stop.requested = requested
            return reached

        return types.SimpleNamespace(make=make)

    save(folder, 1)
    monkeypatch.setattr(trainings.steps, "Steps", made)
    ended, said = run("worker")
    assert (ended, text in said) == (code, True)


@pytest.mark.parametrize(
    ("task", "step", "trained", "finished", "expected"),
    [
        (TOGETHER, 7, None, None, False),
        (TOGETHER, 8, None, None, True),  # workers who meet make no step beyond it
        (TOGETHER, 6, 6, None, True),  # the input came to its end
        (SERVED, 8, None, None, False),  # another worker may be in the ninth step
        (SERVED, 8, 9, None, False),  # and was
        (SERVED, 9, 9, None, True),
        (SERVED, 9, None, 9, True),  # in a run before, so that the chief says nothing
        (SERVED, 7, None, 7, False),  # in a run before, to fewer steps
    ],
)
def test_the_chief_says_which_checkpoint_is_the_last_beside_servers(
    tmp_path, task, step, trained, finished, expected
):
    (tmp_path / "run").mkdir()
    begin(tmp_path)
    if trained is not None:
        kept(tmp_path).note_end(trained, GOAL.wanted)
    if finished is not None:
        kept(tmp_path).write_metrics(finished, {}, "steps")
    run = types.SimpleNamespace(task=task)
    assert trainings.is_last(run, GOAL, kept(tmp_path), step) is expected
    begin(tmp_path)
    assert not kept(tmp_path).has_ended(step, GOAL.wanted)
