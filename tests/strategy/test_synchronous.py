"""The hook that begins synchronous steps, and the thread that applies what workers bring."""

import types

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import synchronous


def optimizer_of(missing, begun):
    """Stands for a `SyncReplicasOptimizer` of a worker that is not the chief."""
    ready = tf.constant(missing, tf.string, [len(missing)])
    return types.SimpleNamespace(ready_for_local_init_op=ready, local_step_init_op=begun)


def test_a_worker_that_is_not_the_chief_sets_its_own_step_alone(session):
    step = tf1.get_variable("step", initializer=0, use_resource=True)
    session.run(step.initializer)
    hook = synchronous.Hook(optimizer_of([], step.assign(7)), False, -1)
    hook.begin()
    hook.after_create_session(session, tf1.train.Coordinator())
    assert session.run(step) == 7
    assert hook.release is None


def test_steps_begin_once_all_variables_are_initialized(session):
    hook = synchronous.Hook(optimizer_of(["w", "b"], tf.no_op()), False, -1)
    hook.begin()
    with pytest.raises(RuntimeError, match=r"; w, b are not\. Let the scaffold's init_op"):
        hook.after_create_session(session, tf1.train.Coordinator())


def test_an_update_that_fails_ends_the_training(session):
    coordinator, number = tf1.train.Coordinator(), tf1.placeholder_with_default(-1, [])
    synchronous._apply(session, tf.zeros([number]).op, coordinator)
    assert coordinator.should_stop()
    with pytest.raises(tf.errors.InvalidArgumentError):
        coordinator.raise_requested_exception()


def test_an_update_that_fails_after_the_end_is_nobodys(session):
    class Ending(tf1.train.Coordinator):
        """Is asked to stop while the update runs."""

        asked = 0

        def should_stop(self):
            self.asked += 1
            return self.asked > 1

    coordinator, number = Ending(), tf1.placeholder_with_default(-1, [])
    synchronous._apply(session, tf.zeros([number]).op, coordinator)
    assert coordinator.asked == 2
    coordinator.raise_requested_exception()


def test_updates_end_with_the_session_and_with_the_training(fresh_graph):
    count = tf1.get_variable("count", initializer=0, use_resource=True)
    step = count.assign_add(1)
    with tf1.Session(graph=fresh_graph) as session:
        session.run(count.initializer)
        coordinator = tf1.train.Coordinator()
        coordinator.request_stop()
        synchronous._apply(session, step.op, coordinator)
        assert session.run(count) == 0
    coordinator = tf1.train.Coordinator()
    synchronous._apply(session, step.op, coordinator)  # a session that is closed
    assert not coordinator.should_stop()
