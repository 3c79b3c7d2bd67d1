"""What `SyncReplicasOptimizer` needs beside a step: who applies what workers have brought.

Gradients of several workers wait on the parameter servers, and the chief's own thread applies their
mean as soon as there are enough. TensorFlow's hook starts that thread, too, but has a training wait
two minutes for it at its end, as it waits itself for gradients that never come.
"""

import threading

from replicate import types
from replicate.compat.tensorflow import tf, tf1

_ENDED = (tf.errors.CancelledError, RuntimeError)  # of a session that is closed


def with_hook(
    spec: types.EstimatorSpec, optimizer: tf1.train.Optimizer | None, config: types.RunConfig | None
) -> types.EstimatorSpec:
    """Returns a spec that runs what its `SyncReplicasOptimizer` needs.

    Args:
        spec: The EstimatorSpec of mode TRAIN, which may bring TensorFlow's own hook.
        optimizer: What `optimizer_fn` made, or None.
        config: The RunConfig, or None.
    """
    hooks = [_ours(hook) for hook in spec.training_hooks]
    of_chief = [_ours(hook) for hook in spec.training_chief_hooks]
    is_missing = not any(isinstance(hook, Hook) for hook in (*hooks, *of_chief))
    if isinstance(optimizer, tf1.train.SyncReplicasOptimizer) and is_missing:
        # NOTE: without further tokens each step waits for the update that its own gradient makes.
        missing = optimizer._replicas_to_aggregate - optimizer._total_num_replicas
        hooks.append(Hook(optimizer, getattr(config, "is_chief", True), max(missing, 0)))
    return spec._replace(training_hooks=tuple(hooks), training_chief_hooks=tuple(of_chief))


def _ours(hook: tf1.train.SessionRunHook) -> tf1.train.SessionRunHook:
    """Returns a hook of ours in place of TensorFlow's own; any other as it is."""
    if type(hook) is not _THEIRS:
        return hook
    return Hook(hook._sync_optimizer, hook._is_chief, hook._num_tokens)


class Hook(tf1.train.SessionRunHook):
    """Begins synchronous steps, and has the chief apply what workers bring.

    Args:
        optimizer: The `SyncReplicasOptimizer`.
        is_chief: Whether this worker is the one that applies.
        num_tokens: How many steps may be made ahead of an update; -1: as many as workers.

    Attributes:
        release: In the chief, lets workers end the step that they are in, and make another one.
    """

    def __init__(self, optimizer: tf1.train.SyncReplicasOptimizer, is_chief: bool, num_tokens: int):
        self._optimizer = optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens
        self._tokens: tf.Operation | None = None
        self._updates: list[tf.Operation] = []
        self.release: tf.Operation | None = None

    def begin(self) -> None:
        """See base class."""
        if self._is_chief:
            self._updates = list(self._optimizer.get_chief_queue_runner().enqueue_ops)
            self._tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
            most = max(self._optimizer._total_num_replicas, self._optimizer._replicas_to_aggregate)
            self.release = self._optimizer.get_init_tokens_op(2 * most)

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        """See base class."""
        missing = session.run(self._optimizer.ready_for_local_init_op)
        if len(missing):
            names = ", ".join(name.decode() for name in missing)
            raise RuntimeError(
                f"Synchronous steps begin once all variables are initialized; {names} are not. Let "
                "the scaffold's init_op initialize them."
            )
        if not self._is_chief:
            session.run(self._optimizer.local_step_init_op)
            return
        session.run(self._optimizer.chief_init_op)
        session.run(self._tokens)
        for update in self._updates:
            apply = (session, update, coord)
            threading.Thread(target=_apply, args=apply, name="updates", daemon=True).start()


def _apply(session: tf1.Session, update: tf.Operation, coordinator: tf1.train.Coordinator) -> None:
    """Applies what workers bring, until the session is closed.

    NOTE: nobody waits for this thread: it waits for gradients until the session is closed, which
    must not wait for it.
    """
    try:
        while not coordinator.should_stop():
            session.run(update)
    except _ENDED:
        return
    except tf.errors.OpError as e:
        if not coordinator.should_stop():
            coordinator.request_stop(e)


_THEIRS = type(tf1.train.SyncReplicasOptimizer.make_session_run_hook(None, True))
