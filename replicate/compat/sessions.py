"""Sessions and servers: what each is told where it is made, and the runs of a graph's sessions.

An Estimator shows its settings of sessions to nobody, and TensorFlow's `train_and_evaluate` its
server, so what devices need is settled where a session or a server is made. What a session runs
first, to initialize or restore variables, no hook hears of, nor of what a step raises.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1

Watch = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Given what runs something in a session, returns what is to run it instead."""

Settle = Callable[[tf.Graph | None, tf1.ConfigProto | None], tf1.ConfigProto | None]
"""Given the graph of a session, or None for a server, and settings, returns those that it gets."""

SERVERS: list[tf.distribute.Server] = []
"""What this process has started since sessions and servers are settled; none can be stopped."""

_LONGEST_RUN = 2**40  # milliseconds; 35 years
_bounds: weakref.WeakKeyDictionary[tf.Graph, tf1.RunOptions] = weakref.WeakKeyDictionary()
_watches: weakref.WeakKeyDictionary[tf.Graph, dict[Watch, None]] = weakref.WeakKeyDictionary()


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


def watch_runs(graph: tf.Graph, watch: Watch) -> None:
    """Has a `Watch` run all that sessions of a graph run from now on."""
    _watch_runs()
    _watches.setdefault(graph, {})[watch] = None


@functools.cache
def _watch_runs() -> None:
    """Bounds and watches, from now on, the runs of graphs that are bounded or watched."""
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
        call = own
        for watch in _watches.get(session.graph, ()):
            call = watch(call)
        return call(session, fetches, feed_dict, options, run_metadata)

    base.run = run


def default_config() -> tf1.ConfigProto:
    """Returns the settings of a session that is given none."""
    return tfc.eager_context.context().config
