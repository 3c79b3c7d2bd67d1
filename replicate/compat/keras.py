"""Keras losses and models where a strategy is in charge.

A Keras loss that averages over its rows refuses to do so in a replica, because an average
of averages is not the whole batch's. A `Reducer` may know better; while it is in charge,
losses ask it first. What `model_to_estimator` returns cuts the numbers off its outputs' names
where there is a strategy; to a tower of one batch there is none. Layers that are given no seed
draw one from a generator outside of the graph. What stood there before is put back, also after an
exception.
"""

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf

# Given a loss's `reduction`, returns the one to use; None: Keras decides.
Reducer = Callable[[Any], Any]

_METHOD = "_get_reduction"  # of `tf.keras.losses.Loss`, which its `__call__` asks
_lock = threading.Lock()
_reducers: list[Reducer] = []
_keras_own: list[Callable] = []

_CONVERTER = "tensorflow_estimator.python.estimator.keras_lib"  # holds model_to_estimator
_askers: list[Callable[[], bool]] = []


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


class _View:
    """A module, but for some of its names.

    Args:
        module: The module.
        **names: What there is in place of its own.
    """

    def __init__(self, module: Any, **names: Any):
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _has_strategy() -> bool:
    return not any(ask() for ask in list(_askers)) and tf.distribute.has_strategy()


@contextlib.contextmanager
def output_names(is_one_device: Callable[[], bool]) -> Iterator[None]:
    """Lets models of `model_to_estimator` name their outputs as on one device.

    Args:
        is_one_device: Whether the running code is to see no strategy.
    """
    converter = sys.modules.get(_CONVERTER)
    if converter is None:  # nobody has converted a model
        yield
        return
    with _lock:
        if not _askers:
            converter.tf = _View(tf, distribute=_View(tf.distribute, has_strategy=_has_strategy))
        _askers.append(is_one_device)
    try:
        yield
    finally:
        with _lock:
            _askers.remove(is_one_device)
            if not _askers:
                converter.tf = tf


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
    """Returns what holds the generator of `tf.keras.utils.set_random_seed`; None: nobody does."""
    package = tf.keras.layers.Layer.__module__.partition(".src.")[0]
    return getattr(sys.modules.get(f"{package}.src.backend"), "_SEED_GENERATOR", None)
