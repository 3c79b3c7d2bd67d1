"""The one function through which TensorFlow takes the gradients of a graph.

`tf.gradients`, every `tf.compat.v1.train` optimizer and `get_gradients` of tf_keras look
`_GradientsHelper` up in its module at each call. While a `Taker` is in charge, it is asked in
the thread that put it there; other threads, and graphs inside functions, never notice. What
stood there before is put back, also after an exception.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat import tensorflow as tfc

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
        return own(*args, **kwargs) if taker is None else taker(own, *args, **kwargs)

    take.__wrapped__ = own
    return take
