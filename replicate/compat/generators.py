"""`tf.random.Generator` where a strategy is in charge of a model that is one device's.

A generator mixes the number of its replica into what it draws, wherever there is a strategy, and
so draws what one device does not. While this is in charge, it asks first whether it is to see
replicas. What stood there before is put back, also after an exception.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from replicate.compat import tensorflow as tfc

_METHOD = "get_replica_id"  # by which generators learn the number of their replica
_lock = threading.Lock()
_askers: list[Callable[[], bool]] = []
_own: list[Callable] = []


@contextlib.contextmanager
def drawing_as_one_device(is_one_device: Callable[[], bool]) -> Iterator[None]:
    """Lets generators draw what they draw on one device.

    Args:
        is_one_device: Whether the running code is to see no replicas.
    """
    module = tfc.stateful_random_ops.target()
    with _lock:
        if not _askers:
            _own[:] = [getattr(module, _METHOD)]
            setattr(module, _METHOD, _replica_id)
        _askers.append(is_one_device)
    try:
        yield
    finally:
        with _lock:
            _askers.remove(is_one_device)
            if not _askers:
                setattr(module, _METHOD, _own[0])


def _replica_id() -> int | None:
    return None if any(ask() for ask in list(_askers)) else _own[0]()
