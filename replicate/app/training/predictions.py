"""Predictions: of a SavedModel in place of a checkpoint, and into a file of any form."""

import contextlib
import csv
import itertools
import json
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from replicate import errors
from replicate.app.config import types
from replicate.app.runs import atomic_files
from replicate.compat.tensorflow import tf, tf1
from replicate.console import json_output, messages
from replicate.exporting import predictor as predictors


def require_keys(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Raises a RunError where `predict.keys` names what is not predicted."""
    for name in wanted:
        if name not in known:
            then = types.meant(name, known, f"Name one of {', '.join(sorted(known))}.")
            raise errors.RunError(
                f"predict.keys: the model must predict what is named, got {name!r}. {then}"
            )


class Source(NamedTuple):
    """What of which SavedModel predicts.

    Attributes:
        path: Its directory.
        signature: The signature that is run.
        input: What error texts call what it predicts for.
    """

    path: str
    signature: str
    input: str = "predict.input"

    def rows(
        self,
        make_input: Callable[[Collection[str]], Callable[[], tf.data.Dataset]],
        keys: Sequence[str],
    ) -> Iterator[dict[str, Any]]:
        """Yields what the signature predicts, row by row, in the order of the input.

        Args:
            make_input: Returns what makes the batches that it is fed; given what it takes.
            keys: Which outputs to yield; none are named: all.

        Raises:
            RunError: If there is no such SavedModel or signature, or the input does not fit it.
        """
        with contextlib.closing(_loaded(self.path)) as predictor:
            known = predictor.signatures
            if self.signature not in known:
                then = types.meant(self.signature, known, "Name one of them with --signature.")
                raise self._fault(
                    f"the signature must be one of {', '.join(sorted(known))}, got "
                    f"{self.signature!r}. {then}"
                )
            inputs, outputs = known[self.signature]
            require_keys(keys, outputs)
            for features in _batches(make_input(inputs)):
                given = features if isinstance(features, Mapping) else {inputs[0]: features}
                missing = [name for name in inputs if name not in given]
                if missing:
                    raise self._fault(
                        f"{self.signature} takes the inputs {', '.join(inputs)}; {self.input} has "
                        f"{', '.join(sorted(given))}: {missing[0]} is missing. "
                        + types.meant(missing[0], given, f"Add it to {self.input}.")
                    )
                try:
                    feeds = {name: given[name] for name in inputs}
                    found = predictor(feeds, self.signature)
                except (ValueError, TypeError, tf.errors.OpError) as e:
                    raise self._fault(
                        f"{self.signature} must be able to take the rows of {self.input}: "
                        f"{messages.first_lines(e)}"
                    ) from e
                yield from self.rows_of(found, keys)

    def rows_of(self, outputs: Mapping[str, Any], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields one dict for each row of a batch of outputs; see `rows`."""
        chosen = {name: outputs[name] for name in keys or outputs}
        counts = {name: len(one) if np.ndim(one) else "no rows" for name, one in chosen.items()}
        if "no rows" in counts.values() or len(set(counts.values())) > 1:
            found = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise self._fault(
                f"all outputs of {self.signature} must have a row for each row of the input; "
                f"{found}. Choose those that do with predict.keys."
            )
        for row in zip(*chosen.values(), strict=True):
            yield dict(zip(chosen, row, strict=True))

    def _fault(self, text: str) -> errors.RunError:
        return errors.RunError(f"--saved-model {self.path}: {text}")


def _loaded(path: str) -> predictors.Predictor:
    try:
        return predictors.load_exported(path)
    except (ValueError, OSError, RuntimeError, tf.errors.OpError) as e:
        names = []
        with contextlib.suppress(tf.errors.OpError):
            names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
        newest = max((name for name in names if name.isdecimal()), key=int, default=None)
        then = f" Did you mean {os.path.join(path, newest)}?" if newest else ""
        raise errors.RunError(f"--saved-model {path}: {messages.first_lines(e)}{then}") from e


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


def write(rows: Iterable[Mapping[str, Any]], path: str) -> int:
    """Writes predictions in the form that the file's ending says.

    The file appears when all rows are written; until then, and if that fails, what was
    there before stays.

    Returns:
        How many rows were written.

    Raises:
        RunError: If the file cannot be written, or the rows do not fit the form.
    """
    ending = Path(path).suffix.lower()
    rows = _with_own_errors(rows)
    try:
        with atomic_files.replacing(path) as unfinished:
            if ending == ".npz":
                return _write_npz(rows, unfinished)
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                return _write_csv(rows, file) if ending == ".csv" else write_lines(rows, file)
    except OSError as e:
        raise errors.RunError(
            f"--output {path}: must be a file that can be written: {e.strerror or e}. "
            "Check that its directory exists and allows it."
        ) from e


def _with_own_errors(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Passes rows on; what the system refuses while they are made is not the output's fault."""
    try:
        yield from rows
    except OSError as e:
        raise errors.RunError(f"making predictions failed: {e}. Check the input.") from e


def write_lines(rows: Iterable[Mapping[str, Any]], file: TextIO) -> int:
    """Writes one JSON object per line; returns how many."""
    count = 0
    for row in rows:
        line = json.dumps(json_output.plain(row), allow_nan=False, ensure_ascii=False)
        file.write(f"{line}\n")
        count += 1
    return count


def _write_csv(rows: Iterable[Mapping[str, Any]], file: TextIO) -> int:
    """Writes a column per number: `p` of shape [3] becomes p_0, p_1, p_2."""
    writer = csv.writer(file, lineterminator="\n")
    names: list[str] = []
    count = 0
    for row in rows:
        cells = dict(itertools.chain.from_iterable(_cells(k, v) for k, v in row.items()))
        if not count:
            names = list(cells)
            writer.writerow(names)
        if list(cells) != names:
            raise errors.RunError(
                f"--output: a CSV file needs the same columns in each row; row {count} has "
                f"{len(cells)}, the first has {len(names)}. Write .jsonl instead."
            )
        writer.writerow(cells.values())
        count += 1
    return count


def _cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _cells(f"{name}_{key}", one)
        return
    array = np.asarray(value)
    for index in np.ndindex(array.shape):
        one = array[index]
        one = one.item() if isinstance(one, np.generic) else one
        text = json_output.plain(one) if isinstance(one, bytes) else one
        yield "_".join([name, *map(str, index)]), text["b64"] if isinstance(text, dict) else text


def _write_npz(rows: Iterable[Mapping[str, Any]], path: str) -> int:
    """Writes an array of shape [rows, ...] for each prediction."""
    columns: dict[str, list[npt.NDArray[Any]]] = {}
    count = 0
    for row in rows:
        count += 1
        for name, value in row.items():
            columns.setdefault(name, []).append(np.asarray(value))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, values in columns.items():
        shapes = {value.shape for value in values}
        if len(shapes) > 1 or len(values) != count:
            raise errors.RunError(
                f"--output: an npz file needs one shape for all rows; {name} has "
                f"{', '.join(map(str, sorted(shapes)))}. Write .jsonl instead."
            )
        stacked = np.stack(values)
        arrays[name] = stacked.astype(bytes) if stacked.dtype == object else stacked
    # NOTE: np.savez_compressed takes no array that is called `file`, and would pickle objects.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return count
