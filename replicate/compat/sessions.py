"""The next session that a thread makes, watched while it begins.

What a session runs first, to initialize or restore variables, no hook hears of. Estimators and
`tf.compat.v1.train.MonitoredTrainingSession` call TensorFlow's `SessionManager` for that; its
methods are replaced until the thread that asked for it has come by, once.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from replicate.compat.tensorflow import tf1

_METHODS = ("prepare_session", "wait_for_session")


class _Watches(threading.local):
    def __init__(self):
        self.watch: Callable | None = None


_mine = _Watches()
_lock = threading.Lock()
_own: dict[str, Callable] = {}
_waiting: list[None] = []  # one for each thread that has asked


def watch_next(watch: Callable[[Callable], Callable]) -> None:
    """Lets something of ours make the next session of this thread.

    Args:
        watch: Given what makes the session, returns what is to make it instead.
    """
    is_first = _mine.watch is None
    _mine.watch = watch
    if is_first:
        _enter()


def _enter() -> None:
    with _lock:
        if not _waiting:
            for name in _METHODS:
                _own[name] = getattr(tf1.train.SessionManager, name)
                setattr(tf1.train.SessionManager, name, _dispatching(_own[name]))
        _waiting.append(None)


def _leave() -> None:
    with _lock:
        _waiting.pop()
        if not _waiting:
            for name in _METHODS:
                setattr(tf1.train.SessionManager, name, _own.pop(name))


def _dispatching(own: Callable) -> Callable:
    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        watch, _mine.watch = _mine.watch, None
        if watch is None:
            return own(*args, **kwargs)
        _leave()
        return watch(own)(*args, **kwargs)

    return make
