"""The hook that begins synchronous steps, and its thread, which applies what workers bring."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import synchronous


def hook_of(loss, is_chief, workers=1):
    """Returns the hook of one of several workers, and its step."""
    optimizer = tf1.train.SyncReplicasOptimizer(
        tf1.train.GradientDescentOptimizer(0.5), workers, workers
    )
    train = optimizer.minimize(loss, tf1.train.get_or_create_global_step())
    return synchronous.Hook(optimizer, is_chief, -1), train


def test_a_worker_that_is_not_the_chief_sets_its_own_step_alone(session):
    w = tf1.get_variable("w", initializer=3.0)
    hook, _ = hook_of(w * 2.0, False)
    hook.begin()
    session.run(tf1.global_variables_initializer())
    session.run(tf1.train.get_global_step().assign(7))
    hook.after_create_session(session, tf1.train.Coordinator())
    (step,) = [v for v in tf1.local_variables() if "sync_rep" in v.op.name]
    assert session.run(step) == 7
    assert hook.release is None


def test_steps_begin_once_all_variables_are_initialized(session):
    w = tf1.get_variable("w", initializer=3.0)
    hook, _ = hook_of(w * 2.0, False)
    hook.begin()
    with pytest.raises(RuntimeError, match="Variables not initialized: w, global_step"):
        hook.after_create_session(session, tf1.train.Coordinator())


def test_an_update_that_fails_ends_the_training_and_nobody_waits_for_its_thread(session):
    w = tf1.get_variable("w", initializer=3.0)
    hook, _ = hook_of(w * 2.0, True)
    hook.begin()
    # The update is behind an operation that fails.
    (update,) = hook._q_runner.enqueue_ops
    failing = tf.debugging.Assert(tf1.placeholder_with_default(False, []), ["no update"])
    update._add_control_input(failing)
    session.run(tf1.global_variables_initializer())
    coordinator = tf1.train.Coordinator()
    hook.after_create_session(session, coordinator)
    assert coordinator.wait_for_stop(60)
    assert not coordinator._registered_threads
    with pytest.raises(tf.errors.InvalidArgumentError, match="no update"):
        coordinator.raise_requested_exception()
