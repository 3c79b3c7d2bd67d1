"""The one function through which TensorFlow takes the gradients of a graph.

`tf.gradients`, every `tf.compat.v1.train` optimizer and `get_gradients` of tf_keras look
`_GradientsHelper` up in its module at each call. While a `Taker` is in charge, it is asked in
the thread that put it there; other threads, and graphs inside functions, never notice. What
stood there before is put back, also after an exception.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf1

# Given TensorFlow's function and a call's arguments, returns the gradients.
Taker = Callable[..., list]

_NAME = "_GradientsHelper"


class _Takers(threading.local):
    def __init__(self):
        self.takers: list[Taker] = []


_mine = _Takers()
_lock = threading.Lock()
_own: list[Callable] = []  # TensorFlow's function, once for each place it is kept from


@contextlib.contextmanager
def taken_by(taker: Taker | None) -> Iterator[None]:
    """Lets `taker` take the gradients that this thread asks for; None: TensorFlow itself."""
    _enter()
    _mine.takers.append(taker)
    try:
        yield
    finally:
        _mine.takers.pop()
        _leave()


def _enter() -> None:
    module = tfc.gradients_util.target()
    with _lock:
        if not _own:
            setattr(module, _NAME, _dispatching(getattr(module, _NAME)))
        _own.append(getattr(module, _NAME).__wrapped__)


def _leave() -> None:
    with _lock:
        own = _own.pop()
        if not _own:
            setattr(tfc.gradients_util.target(), _NAME, own)


def _dispatching(own: Callable) -> Callable:
    def take(*args: Any, **kwargs: Any) -> list:
        taker = _mine.takers[-1] if _mine.takers else None
        if taker is None:
            return own(*args, **kwargs)
        lock = tf1.get_default_graph()._mutation_lock()
        with _left(lock):
            return taker(_inside(lock, own), *args, **kwargs)

    take.__wrapped__ = own
    return take


@contextlib.contextmanager
def _left(lock: Any) -> Iterator[None]:
    """Lets others change and run the graph while a taker waits for them.

    TensorFlow holds the lock while it takes gradients, and no session runs then.
    """
    lock.__exit__(None, None, None)
    try:
        yield
    finally:
        lock.__enter__()


def _inside(lock: Any, own: Callable) -> Callable:
    """Returns TensorFlow's function, which holds the lock again while it runs."""

    @functools.wraps(own)
    def locked(*args: Any, **kwargs: Any) -> list:
        with lock:
            return own(*args, **kwargs)

    return locked
