"""The next session that a thread makes, watched while it begins.

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
from replicate.compat.tensorflow import tf1

Watch = Callable[[Callable], Callable]
"""Given what makes a session, returns what is to make it instead."""

_METHODS = ("prepare_session", "wait_for_session")


class _Watching(threading.local):
    """What a thread has asked for; its sessions are replaced while there is something."""

    def __init__(self):
        self.watches: list[Watch] = []
        self.entered = contextlib.ExitStack()


_mine = _Watching()


def _dispatching(own: Callable, _: object) -> Callable:
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
