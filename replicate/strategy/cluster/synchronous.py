"""What `SyncReplicasOptimizer` needs beside a step: who applies what workers have brought.

Gradients of several workers wait on the parameter servers, and the chief's own thread applies their
mean as soon as there are enough. TensorFlow's hook starts that thread, too, but has a training wait
two minutes for it at its end, as it waits itself for gradients that never come.
"""

from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1

_THEIRS: Any = type(tf1.train.SyncReplicasOptimizer.make_session_run_hook(None, True))


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


class Hook(_THEIRS):
    """TensorFlow's hook, for whose thread no training waits.

    Attributes:
        release: In the chief, lets workers end the step that they are in, and make another one.
    """

    release: tf.Operation | None = None

    def begin(self) -> None:
        """See base class."""
        super().begin()
        if self._is_chief:
            optimizer = self._sync_optimizer
            most = max(optimizer._total_num_replicas, optimizer._replicas_to_aggregate)
            self.release = optimizer.get_init_tokens_op(2 * most)

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        """See base class."""
        super().after_create_session(session, _Unjoined(coord))


class _Unjoined:
    """A coordinator that waits for no thread: it is told of their errors, and when they end."""

    def __init__(self, coordinator: tf1.train.Coordinator):
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def register_thread(self, thread: object) -> None:
        """Leaves the thread to itself: it waits for gradients until its session is closed."""
