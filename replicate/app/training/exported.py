"""Predictions of a SavedModel in place of a checkpoint's, for the same rows of input."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate import errors
from replicate.app.config import checks
from replicate.app.console import failures
from replicate.app.training import predictions
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import predictor as predictors

__all__ = ["Source", "rows"]


class Source(NamedTuple):
    """What of which SavedModel predicts.

    Attributes:
        path: Its directory.
        signature: The signature that is run.
    """

    path: str
    signature: str


def rows(
    source: Source,
    input_fn: Callable[[], tf.data.Dataset],
    keys: Sequence[str] | None,
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yields what a signature predicts, row by row, in the order of the input.

    Args:
        source: The SavedModel and its signature.
        input_fn: Makes the batches that it is fed.
        keys: Which outputs to yield; None: all.
        say: Is told what of the input is not used.

    Raises:
        RunError: If there is no such SavedModel or signature, or the input does not fit it.
    """
    with contextlib.closing(_loaded(source.path)) as predictor:
        inputs, outputs = _signature(predictor, source)
        predictions.require_keys(keys, outputs)
        is_first = True
        for features in _batches(input_fn):
            feeds, unused = _feeds(features, inputs, source)
            if is_first and unused:
                say(f"predict.input: {', '.join(unused)}: no input of the SavedModel, left out")
            is_first = False
            yield from _rows(_run(predictor, feeds, source), keys, source)


def _loaded(path: str) -> Any:
    try:
        return predictors.load_exported(path)
    except (ValueError, OSError, RuntimeError, tf.errors.OpError) as e:
        numbers = [name for name in _names_in(path) if name.isdecimal()]
        newest = max(numbers, key=int, default=None)
        then = f" Did you mean {os.path.join(path, newest)}?" if newest else ""
        raise errors.RunError(f"--saved-model {path}: {failures.first_lines(e)}{then}") from e


def _names_in(path: str) -> list[str]:
    with contextlib.suppress(tf.errors.OpError):
        return [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
    return []


def _signature(predictor: Any, source: Source) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the names of the signature's inputs and outputs."""
    known = predictor.signatures
    if source.signature not in known:
        near = checks.nearest(source.signature, known)
        then = f"Did you mean {near}?" if near else "Name one of them with --signature."
        raise errors.RunError(
            f"--saved-model {source.path}: the signature must be one of "
            f"{', '.join(sorted(known))}, got {source.signature!r}. {then}"
        )
    return known[source.signature]


def _batches(input_fn: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    """Yields the features of each batch, as sessions return them."""
    with tf.Graph().as_default() as graph:
        iterator = tf1.data.make_initializable_iterator(input_fn())
        element = iterator.get_next()
        features = element[0] if isinstance(element, tuple) else element
        start = [iterator.initializer, tf1.tables_initializer()]
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        session.run(start)
        while True:
            try:
                batch = session.run(features)
            except tf.errors.OutOfRangeError:
                return
            yield batch


def _feeds(
    features: Any, inputs: Sequence[str], source: Source
) -> tuple[dict[str, Any], Sequence[str]]:
    """Returns input -> array, and the features that are no input."""
    if not isinstance(features, Mapping):
        if len(inputs) != 1:
            raise errors.RunError(
                f"--saved-model {source.path}: {source.signature} takes the inputs "
                f"{', '.join(inputs)}, but predict.input gives a single tensor without a name. "
                "Give the features names."
            )
        return {inputs[0]: features}, ()
    unused = [name for name in features if name not in inputs]
    for name in inputs:
        if name not in features:
            near = checks.nearest(name, unused)
            then = f"Is it what predict.input calls {near}?" if near else "Add it to predict.input."
            raise errors.RunError(
                f"--saved-model {source.path}: {source.signature} takes the inputs "
                f"{', '.join(inputs)}; predict.input has {', '.join(sorted(features))}: "
                f"{name} is missing. {then}"
            )
    return {name: features[name] for name in inputs}, unused


def _run(predictor: Any, feeds: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    try:
        return predictor(feeds, source.signature)
    except (ValueError, TypeError, tf.errors.OpError) as e:
        raise errors.RunError(
            f"--saved-model {source.path}: {source.signature} must be able to take the rows of "
            f"predict.input: {failures.first_lines(e)}"
        ) from e


def _num_rows(value: Any) -> int | None:
    return len(value) if isinstance(value, np.ndarray) and value.ndim else None


def _rows(
    outputs: Mapping[str, Any], keys: Sequence[str] | None, source: Source
) -> Iterator[dict[str, Any]]:
    """Yields one dict for each row of a batch of outputs."""
    chosen = {name: outputs[name] for name in keys or outputs}
    counts = {name: _num_rows(value) for name, value in chosen.items()}
    if None in counts.values() or len(set(counts.values())) > 1:
        found = ", ".join(
            f"{name} has {'no rows' if count is None else count}" for name, count in counts.items()
        )
        raise errors.RunError(
            f"--saved-model {source.path}: all outputs of {source.signature} must have a row for "
            f"each row of the input; {found}. Choose those that do with predict.keys."
        )
    for index in range(next(iter(counts.values()), 0)):
        yield {name: value[index] for name, value in chosen.items()}
