"""The parts of a training that are not the chief's: a worker's; an evaluator has none."""

import json
import types

import pytest

from replicate.app.training import trainings
from replicate.compat.tensorflow import tf, tf1
from tests.app import line

CONFIG = """
train: {save_checkpoints_steps: 1}
eval: {every_steps: 2}
predict: null
export: null
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    """Returns a folder with a config, its data, and a run."""
    (tmp_path / "run").mkdir()
    return line.write(tmp_path, CONFIG)


@pytest.fixture(name="run")
def make_run(folder, monkeypatch, capsys):
    """Returns what runs a task's part behind a checkpoint; its exit code, and what it says."""

    def run(job, step):
        with tf.Graph().as_default(), tf1.Session() as session:
            w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
            made = tf1.train.get_or_create_global_step()
            session.run([w.initializer, made.assign(step)])
            tf1.train.Saver().save(session, str(folder / "run" / "model.ckpt"), made)
        task = {"type": job, "index": 0}
        jobs = {"chief": ["127.0.0.1:9"], "worker": ["127.0.0.1:10"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
        code = line.run(folder, "train", model_dir="run")
        return code, capsys.readouterr().err

    return run


def test_an_evaluator_leaves_evaluations_to_the_chief(folder, run):
    code, said = run("evaluator", 2)
    assert (code, "evaluator:0: the chief evaluates; there is nothing to do here" in said) == (
        0,
        True,
    )
    assert not (folder / "run" / "eval").exists()


def test_a_worker_has_no_step_left_where_the_last_is_made(run):
    code, said = run("worker", 4)
    assert (code, "is at step 4 already; no step is left to make." in said) == (0, True)


@pytest.mark.parametrize(
    ("reached", "requested", "code", "text"),
    [
        (3, False, 0, "worker:0 has made its last step, 3"),
        (1, False, 0, "worker:0 has made no step: none was left, or its input has no rows"),
        (3, True, 130, "worker:0 stopped at step 3; the chief saves the checkpoint"),
    ],
)
def test_a_worker_says_how_its_steps_ended(run, monkeypatch, reached, requested, code, text):
    def made(run, goal):
        def make():
            run.stop.requested = requested
            return reached

        return types.SimpleNamespace(make=make)

    monkeypatch.setattr(trainings.steps, "Steps", made)
    ended, said = run("worker", 1)
    assert (ended, text in said) == (code, True)
