"""What the hooks of trainings and evaluations are told of a batch, and when they end one."""

import types

import pytest

from replicate import errors
from replicate.app.training import hooks
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts


class Shown:
    """Takes the place of what shows progress; keeps what it is told."""

    def __init__(self):
        self.told = []

    def update(self, *numbers):
        self.told.append(numbers)


def test_a_step_that_leads_nowhere_comes_to_an_end(session):
    tf1.train.get_or_create_global_step()
    tf1.add_to_collection(tf1.GraphKeys.LOSSES, tf.constant(0.5))
    hook = hooks.TrainingHook(Shown(), 0, 2, interrupts.StopRequest())
    hook.begin()
    values = types.SimpleNamespace(results=[7, 0.5])  # the step before, and the loss
    for _ in range(hooks._MAX_IDLE_RUNS):
        hook.after_run(None, values)
    with pytest.raises(
        errors.RunError, match=r"increase the global step; it is still 7 after 1000"
    ):
        hook.after_run(None, values)


def test_an_evaluation_is_left_at_the_step_in_which_that_is_asked_for():
    shown, stop = Shown(), types.SimpleNamespace(requested=False)
    hook = hooks.EvaluationHook(shown, stop)
    hook.after_run(None, None)
    stop.requested = True
    with pytest.raises(interrupts.Interrupted, match="stopped in an evaluation"):
        hook.after_run(None, None)
    assert shown.told == [(1,), (2,)]


@pytest.mark.parametrize(
    ("secs", "steps", "given", "count"),
    [(None, 5, (), 1), (60, None, (), 1), (None, None, (), 0), (None, 5, "a hook", 0)],
)
def test_checkpoints_are_saved_by_one_hook_where_they_are_wanted(
    fresh_graph, tmp_path, secs, steps, given, count
):
    own = [tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)] if given else []
    spec = types.SimpleNamespace(
        training_hooks=own, training_chief_hooks=(), scaffold=tf1.train.Scaffold()
    )
    config = types.SimpleNamespace(
        model_dir=str(tmp_path),
        save_checkpoints_secs=secs,
        save_checkpoints_steps=steps,
        checkpoint_save_graph_def=False,
    )
    assert len(hooks.savers(spec, config)) == count
