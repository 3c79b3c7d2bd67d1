"""Keras, and random generators, where a strategy is in charge.

A Keras loss that averages over its rows refuses to do so in a replica, because an average
of averages is not the whole batch's. A `Reducer` may know better; while it is in charge,
losses ask it first. Stateful layers, policies of mixed precision and optimizers that scale a loss
refuse strategies that they do not know; to a model of one device there is none. Nor is there one
to what `model_to_estimator` returns, which would cut the numbers off its outputs' names. Layers
that are given no seed draw one from a generator outside of the graph. Optimizers of Keras 3 know no
graph. A `tf.random.Generator` mixes the number of its replica into what it draws, wherever there is
a strategy.
"""

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf

# Given a loss's `reduction`, returns the one to use, or None for Keras to decide.
Reducer = Callable[[str], str | None]
Asker = Callable[[], bool]
Refuser = Callable[[], None]

_METHOD = "_get_reduction"  # of `tf.keras.losses.Loss`, which its `__call__` asks
_CONVERTER = "tensorflow_estimator.python.estimator.keras_lib"  # holds model_to_estimator


def _loss() -> type | None:
    loss = tf.keras.losses.Loss
    return loss if hasattr(loss, _METHOD) else None  # those of Keras 3 never ask


def _deciding(own: Callable[[Any], str], reducers: Sequence[Reducer]) -> Callable[[Any], str]:
    def reduction(loss: Any) -> str:
        for reducer in list(reducers):
            decided = reducer(loss.reduction)
            if decided is not None:
                return decided
        return own(loss)

    return reduction


class _View:
    """A module, but for some of its names.

    Args:
        module: The module.
        **names: What there is in place of its own.
    """

    def __init__(self, module: ModuleType, **names: Any):
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _without_strategy(own: ModuleType, askers: Sequence[Asker]) -> _View:
    has_strategy = _unless(own.distribute.has_strategy, askers)
    return _View(own, distribute=_View(own.distribute, has_strategy=has_strategy))


def _unless(own: Asker, askers: Sequence[Asker]) -> Asker:
    def has_strategy() -> bool:
        return own() and not any(ask() for ask in list(askers))

    return has_strategy


def _without_replica(
    own: Callable[[], int | None], askers: Sequence[Asker]
) -> Callable[[], int | None]:
    return lambda: None if any(ask() for ask in list(askers)) else own()


def is_of(kind: str, value: object) -> bool:
    """Whether a value, or class, is of a kind of Keras 2 or 3, of which nothing is loaded.

    Args:
        kind: The name of a class, such as `"Layer"`.
        value: The value.
    """
    bases = (value if isinstance(value, type) else type(value)).__mro__
    return any(
        kind in base.__name__ and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in bases
    )


def _keras_3_optimizer() -> type | None:
    module: Any = sys.modules.get("keras")
    is_loaded = getattr(module, "__version__", "").startswith("3.")
    return module.optimizers.Optimizer if is_loaded else None


def _refusing(own: Callable[..., Any], refusers: Sequence[Refuser]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(*args: Any, **kwargs: Any) -> Any:
        for refuse in list(refusers):
            refuse()
        return own(*args, **kwargs)

    return method


loss_reductions = replacing.Replaced(_loss, _METHOD, _deciding).by
"""While entered, a `Reducer` decides by what Keras losses are reduced; those of 3 never ask."""

output_names = replacing.Replaced(lambda: sys.modules.get(_CONVERTER), "tf", _without_strategy).by
"""While entered, models of `model_to_estimator` name outputs as on one device, if an `Asker` says
so."""

# NOTE: that is the module by which tf_keras knows TensorFlow; a model's `tf.distribute` is another.
without_strategies = replacing.Replaced(lambda: tf.compat.v2.distribute, "has_strategy", _unless).by
"""While entered, Keras sees no strategy, as on one device, where an `Asker` says so."""

# By this name generators learn the number of their replica.
drawing_as_one_device = replacing.Replaced(
    tfc.stateful_random_ops.target, "get_replica_id", _without_replica
).by
"""While entered, generators draw what they draw on one device, where an `Asker` says so."""

_MAKING, _APPLYING = (
    replacing.Replaced(_keras_3_optimizer, name, _refusing) for name in ("__init__", "apply")
)


@contextlib.contextmanager
def asking_before_keras_3(refuse: Refuser) -> Iterator[None]:
    """Calls a function before an optimizer of Keras 3 is made or applied; it may raise."""
    with _MAKING.by(refuse), _APPLYING.by(refuse):
        yield


@contextlib.contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Lets Python, NumPy and Keras draw from a seed, and go on later from where they were.

    Args:
        seed: Of their generators.
    """
    seeds = _keras_seeds()
    own = getattr(seeds, "generator", None)
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    if own is not None:
        seeds.generator = random.Random(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if own is not None:
            seeds.generator = own


def _keras_seeds() -> Any:
    """Returns what holds the generator of `tf.keras.utils.set_random_seed`, if something does."""
    package = tf.keras.layers.Layer.__module__.partition(".src.")[0]
    return getattr(sys.modules.get(f"{package}.src.backend"), "_SEED_GENERATOR", None)
