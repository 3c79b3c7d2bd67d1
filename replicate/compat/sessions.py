"""Sessions as they are made: what each of them is told, and the next one of a thread, watched.

An Estimator shows its settings of sessions to nobody, so what a graph needs of them is settled
where a session is made.

What a session runs first, to initialize or restore variables, no hook hears of. Estimators and
`tf.compat.v1.train.MonitoredTrainingSession` call TensorFlow's `SessionManager` for that; its
methods are replaced until the thread that asked for it has come by, once.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1

Making = Callable[..., tf1.Session]
"""Makes a session."""

Watch = Callable[[Making], Making]
"""Given what makes a session, returns what is to make it instead."""

Settle = Callable[[tf.Graph, tf1.ConfigProto | None], tf1.ConfigProto | None]
"""Given the graph of a session and its settings, returns those that it gets."""

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
    """Settles, from now on, each session that this process makes for itself.

    Args:
        settle: Returns its settings.
        check: Looks at the session; what it raises closes it.
    """
    base = tf1.Session.__mro__[1]  # that of tf.compat.v1.InteractiveSession as well
    own = base.__init__

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
            base.close(session)
            raise

    base.__init__ = begin


def default_config() -> tf1.ConfigProto:
    """Returns the settings of a session that is given none."""
    return tfc.eager_context.context().config
