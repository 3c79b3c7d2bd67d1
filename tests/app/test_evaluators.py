"""When an evaluator has seen the last checkpoint."""

import types

import pytest

from replicate.app.runs import checkpoints
from replicate.app.training import trainings
from replicate.strategy.cluster import cluster

WORKERS = {"chief": ["a:1"], "worker": ["a:2"]}
TASK = {"type": "evaluator", "index": 0}
TOGETHER = cluster.of({"cluster": WORKERS, "task": TASK})
SERVED = cluster.of({"cluster": {**WORKERS, "ps": ["a:3"]}, "task": TASK})
GOAL = types.SimpleNamespace(end=8, wanted="8 steps")


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
    if trained is not None:
        checkpoints.note_trained(str(tmp_path), trained, GOAL.wanted)
    if finished is not None:
        checkpoints.note_finished(str(tmp_path), finished)
    run = types.SimpleNamespace(model_dir=str(tmp_path), task=task)
    assert trainings.is_last(run, GOAL, step) is expected
    checkpoints.note_begun(str(tmp_path))
    assert not checkpoints.is_trained(str(tmp_path), step, GOAL.wanted)
    assert not checkpoints.is_finished(str(tmp_path), step)
