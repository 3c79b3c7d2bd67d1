"""`tf.random.Generator` where a strategy is in charge of a model that is one device's.

A generator mixes the number of its replica into what it draws, wherever there is a strategy, and
so draws what one device does not. While this is in charge, it asks first whether it is to see
replicas.
"""

from collections.abc import Callable, Sequence

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc

Asker = Callable[[], bool]


def _seen(own: Callable[[], int | None], askers: Sequence[Asker]) -> Callable[[], int | None]:
    return lambda: None if any(ask() for ask in list(askers)) else own()


# By this name generators learn the number of their replica.
drawing_as_one_device = replacing.Replaced(
    tfc.stateful_random_ops.target, "get_replica_id", _seen
).by
"""While entered, generators draw what they draw on one device, where an `Asker` says so."""
