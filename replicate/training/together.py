"""How workers begin alike, and run each step together.

Before its session is made, a worker waits until all others are there, and compares with them
what each has built. The session then begins with an operation in which all meet: they get the
first worker's variables, restored or made. Each step runs all that workers join, whoever of
them asks for more.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from replicate import errors, types
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.strategy.cluster import agreement, presence

_log = logging.getLogger("replicate")


def require_worker_alone(own: str, config: Any, is_export: bool) -> None:
    """Looks at what a worker that is no chief does by itself.

    Args:
        own: The worker, as people call it.
        config: The RunConfig, or None.
        is_export: Whether it exports, and does not evaluate or predict.

    Raises:
        RunError: If it exports.
    """
    if is_export:
        raise presence.export_refusal(own)
    directory = getattr(config, "model_dir", None)
    if directory and not tf.train.latest_checkpoint(directory):
        _log.warning(
            "%s has no checkpoint in its model_dir, %s: without a checkpoint_path its variables "
            "are as the model makes them. The chief alone writes checkpoints; let all workers "
            "reach its model_dir.",
            own,
            directory,
        )


def run_all(spec: Any, across: collectives.Across) -> Any:
    """Returns a spec of which each step runs all that workers join.

    NOTE: the chief alone fetches summaries. What these are made of must not wait for a worker
    that fetches none.
    """
    made = across.made
    if spec.mode == types.TRAIN:
        return spec._replace(train_op=tf1.group(spec.train_op, *made, name="train_together"))
    with tf1.control_dependencies(made):
        loss = tf.identity(spec.loss)
    metrics = {
        name: (value, tf1.group(update, *made))
        for name, (value, update) in (spec.eval_metric_ops or {}).items()
    }
    return spec._replace(loss=loss, eval_metric_ops=metrics)


def begin(
    spec: Any, strategy: Any, across: collectives.Across, compared: dict, farewell: Any = None
) -> Any:
    """Returns a spec whose sessions begin with the first worker's variables.

    Args:
        spec: The EstimatorSpec.
        strategy: The strategy, with `start`, `cluster` and `agree`.
        across: Joins what workers bring.
        compared: What workers must have alike, beside what they have built: lists of texts.
        farewell: How a worker that ends alone tells the others: an `ends.Farewell`, or None.
    """
    hooks = "training_hooks" if spec.mode == types.TRAIN else "evaluation_hooks"
    meeting = across.meeting() if spec.mode == types.TRAIN else None
    watch = _Watch(strategy.cluster, across.options.timeout, farewell, meeting)
    return spec._replace(
        scaffold=_Scaffold(spec.scaffold, strategy, across, compared),
        **{hooks: (*(getattr(spec, hooks) or ()), watch)},
    )


class _Watch(tf1.train.SessionRunHook):
    """Lets a session say who was lost where a step fails for that, and say when it ends.

    Args:
        cluster: The cluster.
        seconds: How long a task waits for another one.
        farewell: See `begin`.
        meeting: In what all meet at last; None: in nothing.
    """

    def __init__(self, cluster: Any, seconds: float, farewell: Any, meeting: Any):
        self._cluster = cluster
        self._seconds = seconds
        self._farewell = farewell
        self._meeting = meeting
        self._is_in_step = False
        self._has_failed = False

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        """See base class."""
        del coord
        # NOTE: what a step raises no hook hears of; and of some of it a session makes a new one.
        run = presence.watched(session.run, self._cluster, self._seconds, agreement.LOSSES)

        def step(*args, **kwargs):
            try:
                result = run(*args, **kwargs)
            except Exception:
                self._has_failed |= self._is_in_step  # hooks run more, as the one that saves
                raise
            self._is_in_step = False  # whatever other hooks make of the step
            return result

        session.run = step

    def before_run(self, run_context: Any) -> None:
        """See base class."""
        self._is_in_step = True

    def end(self, session: tf1.Session) -> None:
        """See base class; where all workers' input has ended in a step, all know of it."""
        if self._farewell is not None and not (self._is_in_step or self._has_failed):
            fed = {self._farewell.brought: self._farewell.value}
            with contextlib.suppress(tf.errors.OutOfRangeError):
                session.run(self._farewell.ended, fed)
        if self._meeting is not None:
            # NOTE: this hook comes behind the one that saves. When a worker goes on, the chief's
            # last checkpoint is there: what evaluates, or asks whether max_steps are reached. The
            # step before has failed, as one does in which input ends.
            session.run(self._meeting)


class _Scaffold(tf1.train.Scaffold):
    """A scaffold whose local initialization is where workers meet.

    Args:
        inner: The model's own.
        strategy: See `begin`.
        across: Joins what workers bring.
        compared: See `begin`.
    """

    def __init__(self, inner: Any, strategy: Any, across: collectives.Across, compared: dict):
        self._strategy = strategy
        self._across = across
        self._compared = compared
        self._sessions = 0
        # NOTE: only the first worker makes values; the others are ready to be given them.
        ready = None if across.is_first else tf.constant([], tf.string)
        super().__init__(copy_from_scaffold=inner, ready_for_local_init_op=ready)

    def finalize(self) -> "_Scaffold":
        """See base class; once for each session that is made.

        Raises:
            ClusterError: If a worker does not come, or differs; or if a session was lost: a
                process that has lost another one cannot meet the others again.
        """
        self._sessions += 1
        if self._sessions > 1:
            reason = errors.RunError("the session was lost")
            raise presence.lost(self._strategy.cluster, reason, self._across.options.timeout)
        own = self._local_init_op
        local = self.default_local_init_op() if own is None else own
        self._local_init_op = tf1.group(local, *agreement.begin(self._across))
        self._strategy.agree({**self._compared, **agreement.built(self._across)})
        super().finalize()
        sessions.watch_next(self._watched)
        return self

    def _watched(self, make: Callable) -> Callable:
        seconds = self._across.options.timeout
        return presence.watched(make, self._strategy.cluster, seconds, agreement.LOSSES)
