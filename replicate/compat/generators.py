"""`tf.random.Generator` where a strategy is in charge of a model that is one device's.

A generator mixes the number of its replica into what it draws, wherever there is a strategy, and
so draws what one device does not. While this is in charge, it asks first whether it is to see
replicas.
"""

import contextlib
from collections.abc import Callable, Sequence

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc

Asker = Callable[[], bool]


def _seen(own: Callable[[], int | None], askers: Sequence[Asker]) -> Callable[[], int | None]:
    return lambda: None if any(ask() for ask in list(askers)) else own()


# By this name generators learn the number of their replica.
_REPLICA_ID = replacing.Replaced(tfc.stateful_random_ops.target, "get_replica_id", _seen)


def drawing_as_one_device(is_one_device: Asker) -> contextlib.AbstractContextManager[None]:
    """Lets generators draw what they draw on one device.

    Args:
        is_one_device: Whether the running code is to see no replicas.
    """
    return _REPLICA_ID.by(is_one_device)
