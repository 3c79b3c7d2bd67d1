"""Sessions and servers as they are made: what each is told, and the next session of a thread.

An Estimator shows its settings of sessions to nobody, and TensorFlow's `train_and_evaluate` its
server, so what devices need is settled where a session or a server is made.

What a session runs first, to initialize or restore variables, no hook hears of. Estimators and
`tf.compat.v1.train.MonitoredTrainingSession` call TensorFlow's `SessionManager` for that; its
methods are replaced until the thread that asked for it has come by, once.
"""

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1

Making = Callable[..., tf1.Session]
"""Makes a session."""

Watch = Callable[[Making], Making]
"""Given what makes a session, returns what is to make it instead."""

Settle = Callable[[tf.Graph | None, tf1.ConfigProto | None], tf1.ConfigProto | None]
"""Given the graph of a session, or None for a server, and settings, returns those that it gets."""

SERVERS: list[tf.distribute.Server] = []
"""What this process has started since sessions and servers are settled; none can be stopped."""

_LONGEST_RUN = 2**40  # milliseconds; 35 years
_bounds: weakref.WeakKeyDictionary[tf.Graph, tf1.RunOptions] = weakref.WeakKeyDictionary()
_METHODS = ("prepare_session", "wait_for_session")


class _Watching(threading.local):
    """What a thread has asked for; its sessions are replaced while there is something."""

    def __init__(self) -> None:
        self.watches: list[Watch] = []
        self.entered = contextlib.ExitStack()


_mine = _Watching()


def _dispatching(own: Making, _: object) -> Making:
    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        if not _mine.watches:
            return own(*args, **kwargs)
        watch = _mine.watches[-1]
        _mine.watches.clear()
        _mine.entered.close()
        return watch(own)(*args, **kwargs)

    return make


_REPLACED: list[replacing.Replaced[None]] = [
    replacing.Replaced(lambda: tf1.train.SessionManager, name, _dispatching) for name in _METHODS
]


def watch_next(watch: Watch) -> None:
    """Lets something of ours make the next session of this thread; the last one asked counts."""
    if not _mine.watches:
        for each in _REPLACED:
            _mine.entered.enter_context(each.by(None))
    _mine.watches.append(watch)


@functools.cache
def settle_each(settle: Settle, check: Callable[[tf1.Session], None]) -> None:
    """Settles, from now on, each server and each session that this process makes for itself.

    Args:
        settle: Returns its settings.
        check: Looks at the session; what it raises closes it.
    """
    base = tf1.Session.__mro__[1]  # that of tf.compat.v1.InteractiveSession as well
    tf.distribute.Server.__init__ = _starting(tf.distribute.Server.__init__, settle)
    base.__init__ = _beginning(base.__init__, base.close, settle, check)


def _starting(own: Callable[..., None], settle: Settle) -> Callable[..., None]:
    signature = inspect.signature(own)

    @functools.wraps(own)
    def start(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        if not isinstance(given["server_or_cluster_def"], tf.train.ServerDef):  # that tells all
            given["config"] = settle(None, given.get("config") or tf1.ConfigProto())
        own(**given)
        SERVERS.append(given["self"])

    return start


def _beginning(
    own: Callable[..., None],
    close: Callable[[tf1.Session], None],
    settle: Settle,
    check: Callable[[tf1.Session], None],
) -> Callable[..., None]:
    @functools.wraps(own)
    def begin(
        session: tf1.Session,
        target: str = "",
        graph: tf.Graph | None = None,
        config: tf1.ConfigProto | None = None,
    ) -> None:
        if target:  # a server's, which shows what the server has
            own(session, target, graph, config)
            return
        own_graph = graph if isinstance(graph, tf.Graph) else tf1.get_default_graph()
        own(session, target, graph, settle(own_graph, config))
        try:
            check(session)
        except Exception:
            close(session)
            raise

    return begin


def bound_runs(graph: tf.Graph, seconds: float) -> None:
    """Bounds each run of a graph's sessions; the shortest bound counts.

    A run that is given a timeout of its own keeps it.

    NOTE: settings of sessions would bound all graphs, and a session in a server has the server's.
    """
    _watch_runs()
    known = _bounds.get(graph)
    most = _LONGEST_RUN if known is None else known.timeout_in_ms
    _bounds[graph] = tf1.RunOptions(timeout_in_ms=max(1, int(min(seconds * 1000, most))))


@functools.cache
def _watch_runs() -> None:
    """Bounds, from now on, the runs of graphs that are bounded."""
    base = tf1.Session.__mro__[1]
    own = base.run

    @functools.wraps(own)
    def run(
        session: tf1.Session,
        fetches: Any,
        feed_dict: Any = None,
        options: tf1.RunOptions | None = None,
        run_metadata: tf1.RunMetadata | None = None,
    ) -> Any:
        bound = _bounds.get(session.graph)
        if bound is not None:
            given, options = options, tf1.RunOptions()
            options.CopyFrom(bound)
            if given is not None:
                options.MergeFrom(given)
        return own(session, fetches, feed_dict, options, run_metadata)

    base.run = run


def default_config() -> tf1.ConfigProto:
    """Returns the settings of a session that is given none."""
    return tfc.eager_context.context().config
