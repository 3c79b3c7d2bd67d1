"""How a chief and workers begin whose variables are on parameter servers.

The chief makes or restores the variables, and writes down what it has built. Each worker
compares that with what it has built itself, and waits until the variables are there: in a short
session of its own, which looks often, so that the one it trains in finds all ready.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.training import synchronous

_log = logging.getLogger("replicate")
_SCOPE = "replicate_begin/"
_AGAIN = 0.5  # seconds until another session is made
_CLOSED = 3.0  # seconds after which a session is closed, or never will be
_OPEN: set = set()  # sessions that are not closed yet: one that is thrown away would be deleted
_NOT_YET = (
    tf.errors.AbortedError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)


def begin(spec: Any, strategy: Any, config: Any) -> Any:
    """Returns a spec whose sessions begin as those of a cluster.

    Args:
        spec: The EstimatorSpec of mode TRAIN.
        strategy: The `ParameterServerStrategy`.
        config: The RunConfig.
    """
    if strategy.part is None or not getattr(config, "master", ""):
        return spec
    strategy.start()
    filters = getattr(config.session_config, "device_filters", ())
    if not filters:
        _log.warning(
            "The session of %s waits for all other workers, and ends with any of them: its "
            "session_config has no device_filters. Leave session_config out of RunConfig, or call "
            "ParameterServerStrategy.configure(session_config).",
            strategy.part.job,
        )
    scaffold = _Scaffold(spec.scaffold, strategy, config)
    hooks = (_Closing(), *spec.training_hooks)
    if strategy.is_stopping is not None:
        given = (*hooks, *spec.training_chief_hooks)
        waiting = [hook for hook in given if isinstance(hook, synchronous.Hook)]
        hooks = (_Farewell(strategy, scaffold, waiting), *hooks)
    return spec._replace(scaffold=scaffold, training_hooks=hooks)


class _Closing(tf1.train.SessionRunHook):
    """Lets nobody wait for long until a session is closed."""

    def after_create_session(self, session, coord):
        """See base class."""
        del coord
        _close_soon(session)


def _close_soon(session: Any) -> None:
    """Changes how a session is closed: with a parameter server gone, that is left to a thread.

    NOTE: TensorFlow waits for each server to forget the session, also for one that is gone, until
    it has come back; nobody could say meanwhile that it is gone. It also closes a session that is
    thrown away, even while the process ends: then no thread begins any more, and who starts one
    waits for it for ever. What is left open at the end is the servers' to forget.
    """
    own = session.close
    _OPEN.add(session)

    def forget():
        try:
            own()
        except tf.errors.OpError as reason:
            _log.info("A session ended before it was closed: %s", reason.message)
        finally:
            _OPEN.discard(session)

    def close():
        if is_closed.is_set() or sys.is_finalizing():
            return
        is_closed.set()
        closing = threading.Thread(target=forget, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSED)

    is_closed = threading.Event()
    session.close = close


class _Farewell(tf1.train.SessionRunHook):
    """Lets the chief tell workers that the training is over, who end theirs after the step.

    A chief that is stopped tells nobody: it may come back, and workers go on.

    Args:
        strategy: The `ParameterServerStrategy`.
        scaffold: The scaffold of the session.
        waiting: The hooks of synchronous steps, in which workers wait for the chief.
    """

    def __init__(self, strategy: Any, scaffold: "_Scaffold", waiting: Sequence[synchronous.Hook]):
        self._strategy = strategy
        self._scaffold = scaffold
        self._waiting = waiting

    def before_run(self, run_context):
        """See base class."""
        return None if self._strategy.is_chief else tf1.train.SessionRunArgs(self._start.is_over)

    def after_run(self, run_context, run_values):
        """See base class."""
        if run_values.results:
            _log.info("The chief has ended the training; this worker ends as well.")
            run_context.request_stop()

    def end(self, session):
        """See base class."""
        if self._strategy.is_chief and not self._strategy.is_stopping():
            with contextlib.suppress(tf.errors.OpError):  # then nobody is there to be told
                session.run(self._start.end)
                for hook in self._waiting:
                    session.run(hook.release)

    @property
    def _start(self) -> "_Start":
        return self._scaffold.start


class _Scaffold(tf1.train.Scaffold):
    """A scaffold that waits for whom its session needs.

    Args:
        inner: The model's own.
        strategy: The `ParameterServerStrategy`.
        config: The RunConfig.

    Attributes:
        start: What the session begins with; None before it is finalized.
    """

    def __init__(self, inner: Any, strategy: Any, config: Any):
        self._strategy = strategy
        self._config = config
        self.start: _Start | None = None
        super().__init__(copy_from_scaffold=inner)

    def finalize(self) -> "_Scaffold":
        """See base class; once for each session that is made."""
        if self.start is not None:
            time.sleep(_AGAIN)  # TensorFlow tries again at once what has failed at once
        self._strategy.wait_for_servers()
        if self.start is None:
            self.start = _Start(self._strategy)
            if self._config.is_chief:
                local = self._local_init_op
                if local is None:
                    keys = "local_init_op", tf1.GraphKeys.LOCAL_INIT_OP
                    local = self.get_or_default(*keys, self.default_local_init_op)
                self._local_init_op = tf1.group(local, self.start.write)
        super().finalize()
        if not self._config.is_chief:
            self.start.wait(self._config)
        return self


class _Start:
    """What the chief writes down, and workers look at.

    Args:
        strategy: The `ParameterServerStrategy`.

    Attributes:
        write: Writes it down.
        end: Writes down that the training is over.
        is_over: Whether that was written.
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self._built = _built()
        with _apart(), tf1.device(strategy.part.servers[0]):
            options = {"trainable": False, "collections": [], "use_resource": True}
            kept = tf1.Variable("", name="built", **options)
            over = tf1.Variable(False, name="over", **options)
            begun = over.assign(False, read_value=False)
            with tf1.control_dependencies([begun]):
                self.write = kept.assign(self._built, read_value=False)
            self.end = over.assign(True, read_value=False)
            self.is_over = over.read_value()
            self._written = kept.read_value()
        self._missing: Any = None
        if not strategy.is_chief:
            with _apart(), tf1.device(strategy.home):
                self._missing = tf1.report_uninitialized_variables(tf1.global_variables())

    def wait(self, config: Any) -> None:
        """Waits until the chief has made the variables.

        Raises:
            ClusterError: If it has built something else, or does not in time.
        """
        hint = (
            "Look at the log of the chief, and start it again. All processes must run the same "
            "model, with the same config and packages."
        )
        with tf1.Session(config.master, config=config.session_config) as session:
            _close_soon(session)
            self._strategy.wait(lambda: self._is_ready(session), "the chief", hint)

    def _is_ready(self, session: Any) -> bool:
        try:
            written = session.run(self._written).decode()
        except _NOT_YET:
            return False
        difference = _difference(written.split("\n"), self._built.split("\n"))
        if difference is not None:
            raise errors.ClusterError(
                f"All tasks of a cluster run the same model: {difference}. Start all with the same "
                "config and packages, and let no variable be the chief's alone."
            )
        return not len(session.run(self._missing))


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Enters an absolute name scope, without devices and dependencies."""
    with tf1.control_dependencies(None), tf1.name_scope(_SCOPE), tf1.device(None):
        yield


def _built() -> str:
    """Returns what all tasks must have alike, a line for each thing."""
    lines = [f"TensorFlow {tf.__version__}"]
    for variable in tf1.global_variables():
        first = getattr(variable, "members", (variable,))[0]
        kind = f"{first.shape} {first.dtype.base_dtype.name}"
        lines.append(f"{first.op.name} {kind} on {first.device}")
    return "\n".join(lines)


def _difference(chiefs: list[str], own: list[str]) -> str | None:
    """Returns in what a worker differs from the chief, which may have more; None: in nothing."""
    for line in own:
        if line not in chiefs:
            name = line.split(" ", 1)[0]
            there = [other for other in chiefs if other.split(" ", 1)[0] == name]
            has = f"has {there[0]!r}" if there else "has none of it"
            return f"this worker has {line!r}, and the chief {has}"
    return None
