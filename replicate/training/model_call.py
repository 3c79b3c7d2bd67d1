"""A model_fn as it is called: with the arguments that it names, as if there were one device."""

import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from replicate.compat import generators, keras
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import context

_log = logging.getLogger("replicate")
_ARGUMENTS = ("features", "labels", "mode", "params", "config")


class ModelCall:
    """A model_fn together with all its arguments but features and labels.

    Args:
        model_fn: Any Estimator model_fn.
        mode: The mode key.
        params: Copied for each call where it can be copied.
        config: Likewise.

    Attributes:
        mode: The mode key.
    """

    def __init__(self, model_fn: Callable, mode: str, params: Any, config: Any):
        self._model_fn = model_fn
        self.mode = mode
        self._params = params
        self._config = config
        self._names = argument_names(model_fn)

    def __call__(self, features: Any, labels: Any) -> Any:
        """Calls the model_fn with the arguments it names; returns its EstimatorSpec.

        Raises:
            ValueError: If labels came and it takes none.
            TypeError: If it returned something else than an EstimatorSpec.
        """
        given = {
            "mode": self.mode,
            "params": _copied(self._params),
            "config": _copied(self._config),
        }
        given = {name: value for name, value in given.items() if name in self._names}
        if "labels" in self._names:
            given["labels"] = labels
        elif labels is not None:
            raise ValueError(
                "A model_fn that gets labels must take them: the input_fn gave labels, and "
                f"{self._model_fn!r} takes {list(self._names)}. Add the argument `labels`, or "
                "let the input_fn return features alone."
            )
        spec = self._model_fn(features=features, **given)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        if not hasattr(spec, "train_op") or not hasattr(spec, "export_outputs"):
            raise TypeError(
                "A model_fn must return an EstimatorSpec; got "
                f"{type(spec).__name__} in mode {self.mode!r}. Return replicate.estimator."
                "EstimatorSpec(mode, ...)."
            )
        return spec


def argument_names(model_fn: Callable) -> tuple[str, ...]:
    """Returns those of a model_fn's known arguments that it names.

    Raises:
        ValueError: If it does not take `features`.
    """
    parameters = inspect.signature(model_fn).parameters
    bound = model_fn.keywords if isinstance(model_fn, functools.partial) else {}
    names = tuple(name for name in _ARGUMENTS if name in parameters and name not in bound)
    if "features" not in names:
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return _ARGUMENTS  # a wrapper, which names nothing because it passes all on
        raise ValueError(
            f"A model_fn must take `features`: {model_fn!r} takes {list(parameters)}. Write "
            "def model_fn(features, labels, mode, params)."
        )
    return names


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as reason:  # noqa: BLE001 - whatever a user's class raises
        _log.debug("%s cannot be copied and is shared by all towers: %s", type(value), reason)
        return value


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """Lets Keras, and generators of random numbers, do in a model_fn what they do on one device."""
    with (
        keras.loss_reductions(_keras_reduction),
        keras.output_names(_is_of_batch),
        generators.drawing_as_one_device(_is_of_whole_batch),
    ):
        yield


def _is_of_batch() -> bool:
    """Whether the running code is a tower's whose rows are a batch, or a part of one."""
    mode = context.current()
    return mode is not None and mode.tower is not None and mode.share is not None


def _is_of_whole_batch() -> bool:
    """Whether the running code is that of the only tower."""
    mode = context.current()
    return mode is not None and mode.share is not None and mode.strategy.is_single_tower


def _keras_reduction(reduction: Any) -> Any:
    """Lets a Keras loss average over its tower's rows; None: Keras decides."""
    if not _is_of_batch():
        return None
    if reduction == tf.keras.losses.Reduction.AUTO:
        reduction = tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
    tf1.get_default_graph()._last_loss_reduction = reduction  # as `tf.compat.v1.losses` do
    return reduction
