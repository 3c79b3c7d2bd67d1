"""Keras losses where a strategy is in charge.

A Keras loss that averages over its rows refuses to do so in a replica, because an average
of averages is not the whole batch's. A `Reducer` may know better; while it is in charge,
losses ask it first. What stood there before is put back, also after an exception.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat.tensorflow import tf

# Given a loss's `reduction`, returns the one to use; None: Keras decides.
Reducer = Callable[[Any], Any]

_METHOD = "_get_reduction"  # of `tf.keras.losses.Loss`, which its `__call__` asks
_lock = threading.Lock()
_reducers: list[Reducer] = []
_keras_own: list[Callable] = []


@contextlib.contextmanager
def loss_reductions(reducer: Reducer) -> Iterator[None]:
    """Lets `reducer` decide by what Keras losses are reduced; those of Keras 3 never ask."""
    if not hasattr(tf.keras.losses.Loss, _METHOD):
        yield
        return
    with _lock:
        if not _reducers:
            _keras_own[:] = [getattr(tf.keras.losses.Loss, _METHOD)]
            setattr(tf.keras.losses.Loss, _METHOD, _reduction)
        _reducers.append(reducer)
    try:
        yield
    finally:
        with _lock:
            _reducers.remove(reducer)
            if not _reducers:
                setattr(tf.keras.losses.Loss, _METHOD, _keras_own[0])


def _reduction(loss: Any) -> Any:
    for reducer in list(_reducers):
        decided = reducer(loss.reduction)
        if decided is not None:
            return decided
    return _keras_own[0](loss)
