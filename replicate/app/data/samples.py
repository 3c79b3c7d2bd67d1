"""What a data file holds, found by looking at its beginning: for a config to begin with."""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replicate import errors
from replicate.app.config import catalog, cell_values, files
from replicate.app.data import csv_rows, npz

_LABELS = ("label", "labels", "target", "targets", "y", "class", "classes", "output", "outcome")
_TRAIN = "train"
_OTHERS = ("test", "eval", "val", "valid", "validation", "dev")
_KEY = "DATA"  # what names the file in error texts

_ROWS = 10_000  # of CSV that are looked at
_DELIMITER_ROWS = 20  # that are looked at for the delimiter
_DELIMITERS = ",;\t|"
_EMPTY = {"int64": 0, "float32": 0.0, "bool": False}
_ARROW = {  # what Parquet's own types are read as, where they are called otherwise
    "double": "float32",
    "float": "float32",
    "halffloat": "float16",
    **dict.fromkeys(("binary", "large_binary", "large_string", "null"), "string"),
}
_ABSENT = frozenset(  # in numbers' place
    {"", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "?", "-"}
)
_TRUTHS = ("true", "false")

# The name of what tells rows apart, as id, user_id, PassengerId.
_ID = re.compile(r"(^|[\W_])(?i:id|uuid|guid)$|[a-z]I[dD]$")

_READABLE = "biufcSU"  # kinds of dtypes
_SHARE = 0.8  # of the rows are for training
_FEW = 10  # rows are not divided
_HOLDOUT = {"holdout": 0.1}
_FEW_BY_HASH = 50  # of fewer rows perhaps none is held out


@dataclasses.dataclass(frozen=True)
class Sample:
    """An input that a data file may be.

    Attributes:
        keys: Those of the config's input, in order.
        names: What may be the label: columns, arrays, features.
        label: What is taken for it; None where nothing is called so.
        other_keys: Those that an evaluation's input has in their place; empty where it is not
            known what to evaluate on.
        notes: Key -> what to say about it.
        remarks: What is to be said of columns.
        is_guessed: Whether the label is taken for its name alone.
        goes_by_mode: Whether it is a function that returns other rows to evaluate.
    """

    keys: dict[str, Any]
    names: Sequence[str] = ()
    label: str | None = None
    other_keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    remarks: Sequence[str] = ()
    is_guessed: bool = False
    goes_by_mode: bool = False

    @property
    def listed(self) -> str:
        """What may be the label, for people."""
        return ", ".join(self.names)


def of_function(name: str, goes_by_mode: bool) -> Sample:
    """Returns the input that a function may be, whose rows cannot be looked at."""
    keys = {"kind": "function", "function": name}
    if goes_by_mode:
        return Sample(keys, goes_by_mode=True)
    note = "change: remove it where the function goes by mode, or pads batches"
    return Sample({**keys, **_HOLDOUT}, notes={"holdout": note})


def look(kind: str, path: str, label: str | None = None) -> Sample:
    """Looks at a file.

    Args:
        kind: csv, npz, parquet or tfrecord.
        path: The file; of a pattern the first one is looked at.
        label: What is the label; else what is called so.

    Raises:
        RunError: If it is no such file, or holds nothing that can be read.
    """
    looks = {"csv": _csv, "npz": _npz, "parquet": _parquet, "tfrecord": _tfrecord}
    first = files.expanded([path], _KEY)[0]
    found = looks[kind](first, label)
    if path != first:
        others = _file_beside(path) if "file" in found.other_keys else found.other_keys
        found = dataclasses.replace(found, keys={**found.keys, "file": path}, other_keys=others)
    return dataclasses.replace(found, is_guessed=label is None and found.label is not None)


def _label_of(names: Iterable[str]) -> str | None:
    """Returns the name that a label usually has; None where there is none."""
    by_lower = {name.lower(): name for name in reversed(list(names))}
    return next((by_lower[word] for word in _LABELS if word in by_lower), None)


def _counterpart(name: str, is_known: Callable[[str], bool]) -> str | None:
    """Returns what is for evaluation where a name says that it is for training.

    E.g. `test.csv` for `train.csv`, and `x_test` for `x_train`.
    """
    parts = re.split(r"([^A-Za-z]+)", name)
    if _TRAIN not in parts:
        return None
    at = parts.index(_TRAIN)
    others = ("".join([*parts[:at], word, *parts[at + 1 :]]) for word in _OTHERS)
    return next(filter(is_known, others), None)


def _file_beside(path: str) -> dict[str, str]:
    """Returns the key of the file for evaluation that stands beside one for training, if any."""
    file = Path(path)
    other = _counterpart(file.name, lambda name: not files.absent([str(file.with_name(name))]))
    return {"file": str(file.with_name(other))} if other is not None else {}


def _divided(sample: Sample, path: str, rows: int) -> Sample:
    """Returns a sample that names what to evaluate on: another file, or rows of this one."""
    beside = _file_beside(path)
    if beside or rows < _FEW_BY_HASH:
        return dataclasses.replace(sample, other_keys=beside)
    notes = {**sample.notes, "holdout": "of the rows, always the same, are for evaluation alone"}
    return dataclasses.replace(sample, keys={**sample.keys, **_HOLDOUT}, notes=notes)


def _csv(path: str, label: str | None) -> Sample:
    delimiter = _delimiter(path)
    lines = dict(itertools.islice(_rows(path, delimiter), _ROWS))
    if not lines:
        raise errors.RunError(f"{_KEY}: {path}: must have rows, has none.")
    columns, has_header, unnamed = _columns(path, list(lines.values()))
    names = list(columns)
    label = label or _label_of(names)
    _require_feature(path, names, label, unnamed)
    ids = _ids(columns, label)
    cells = {name: set(one) for name, one in columns.items() if name not in ids}
    absent = {name: _absent(given) for name, given in cells.items()}
    dtypes = {name: _dtype(given - absent[name]) for name, given in cells.items()}
    empty = {  # a row without a label is not to be trained on as if it had one
        name: _EMPTY.get(dtypes[name])
        for name, given in cells.items()
        if given & absent[name] and name != label
    }
    na_values = sorted(set().union(*absent.values()) - {""})
    defaults = {name: value for name, value in empty.items() if value is not None}
    keys: dict[str, Any] = {"kind": "csv", "file": path, "columns": dtypes}
    keys |= {"defaults": defaults} if defaults else {}
    keys |= {"na_values": na_values} if na_values else {}
    keys |= {} if has_header else {"header": False}
    keys |= {} if delimiter == "," else {"delimiter": delimiter}
    notes = {
        "columns": f"dtypes as of the first {len(lines) - has_header} rows{_without(ids)}",
        "defaults": "change: what stands for an empty cell",
        "header": "change: name the columns above" if not has_header else "",
    }
    numbers = list(lines)[has_header:]
    strays = [_strays(n, columns[n], numbers) for n, one in dtypes.items() if one == "string"]
    remarks = [*unnamed, *_told_of(ids), *filter(None, strays)]
    sample = Sample(keys, names, label, notes=notes, remarks=remarks)
    return _divided(sample, path, len(lines))


def _columns(
    path: str, rows: Sequence[Sequence[str]]
) -> tuple[dict[str, list[str]], bool, list[str]]:
    """Returns the columns that have a name, whether a header gives it, what is said of others."""
    head, *given = ([cell.strip() for cell in row] for row in rows)
    has_header = _is_header(head, given)
    names = head if has_header else [f"column_{number}" for number in range(1, len(head) + 1)]
    given = given if has_header else [head, *given]
    columns = {n: c for n, *c in zip(names, *given, strict=True) if n and names.count(n) == 1}
    if not columns:
        raise errors.RunError(
            f"{_KEY}: {path}: must have a column with a name of its own, got {', '.join(names)}. "
            "Rename them in the header."
        )
    return columns, has_header, _unnamed(names)


def _is_header(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Tells whether a first row has names.

    It has where a word is above numbers, a label's name above other words, or nothing above the
    index that pandas writes. Where none is so, names are words, and all are different.
    """
    index = list(map(str, range(len(rows))))
    for name, *cells in zip(head, *rows, strict=True):
        below = set(cells) - _ABSENT
        is_word = not _is_number(name) and name.lower() not in (*map(str.lower, _ABSENT), *_TRUTHS)
        is_label = len(name) > 1 and name.lower() in _LABELS and name not in below
        if below and (is_label or (is_word and _dtype(below) != "string")):
            return True
        if not name and cells and cells == index:
            return True
    return all(head) and len(set(head)) == len(head) and not any(map(_is_number, head))


def _unnamed(names: Sequence[str]) -> list[str]:
    """Returns what is said of columns that have no name of their own."""
    told = [
        f"column {number}: left out, as it has no name, like the index that pandas writes; to "
        "read it, give it one"
        for number, name in enumerate(names, start=1)
        if not name
    ]
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    return told + [
        f"{name}: left out, as {names.count(name)} columns are called so; to read them, rename them"
        for name in repeated
    ]


def _require_feature(
    path: str, names: Collection[str], label: str | None, remarks: Sequence[str]
) -> None:
    """Refuses a table that has the label alone, if others have no name of their own."""
    if set(names) == {label}:
        others = "".join(f"; {one}" for one in remarks)
        raise errors.RunError(
            f"{_KEY}: {path}: must have a column besides the label, got {label} alone{others}. "
            "Correct the file."
        )


def _ids(columns: Mapping[str, Sequence[object]], label: str | None) -> list[str]:
    """Returns the columns that only tell rows apart, where other features are left."""
    ids = [
        name
        for name, values in columns.items()
        if name != label and _ID.search(name) and len(set(map(str, values))) == len(values) > 1
    ]
    return ids if columns.keys() - {*ids, label} else []


def _told_of(ids: Sequence[str]) -> list[str]:
    then = "to tell predictions by it, add it to columns and return it from model_fn"
    return [f"{name}: left out, as it is another one in each row; {then}" for name in ids]


def _without(ids: Sequence[str]) -> str:
    return f"; without {', '.join(ids)}" if ids else ""


def _strays(name: str, cells: Sequence[str], lines: Sequence[int]) -> str:
    """Returns what is said of the few cells that make a column of numbers text."""
    is_stray = {cell: cell not in _ABSENT and not _is_number(cell) for cell in set(cells)}
    found = [(line, cell) for line, cell in zip(lines, cells, strict=True) if is_stray[cell]]
    if not 0 < 2 * len(found) < len(cells):
        return ""
    are = "is no number" if len(found) == 1 else "are no numbers"
    line, cell = found[0]
    return (
        f"{name}: string, as {len(found)} of {len(cells)} cells {are}, the first in line {line}: "
        f"{cell!r}; correct the cell, or name it in na_values"
    )


def _parquet(path: str, label: str | None) -> Sample:
    from pyarrow import parquet  # for a table alone: see `arrow`

    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            head = next(file.iter_batches(_ROWS), ())
    except (OSError, ValueError) as e:
        raise errors.RunError(f"{_KEY}: {path}: must be Parquet, read by pyarrow: {e}") from e
    dtypes = {}
    for field in schema:
        values = field.type
        while hasattr(values, "value_type"):  # of a list
            values = values.value_type
        dtypes[field.name] = _ARROW.get(str(values), str(values))
    own = [name for name in dtypes if name and schema.names.count(name) == 1]
    columns = {name: dtypes[name] for name in own if dtypes[name] in catalog.DTYPES}
    left_out = [name for name in own if name not in columns]
    label = label or _label_of(columns)
    _require_feature(path, own, label, _unnamed(schema.names))
    values = {
        n: one.to_pylist() for n, one in zip(schema.names, head, strict=False) if n in columns
    }
    ids = _ids(values, label)
    columns = {name: one for name, one in columns.items() if name not in ids}
    absent = {name for name, one in zip(schema.names, head, strict=False) if one.null_count}
    empty = {"string": "", **_EMPTY}
    defaults = {n: empty.get(columns[n], 0) for n in columns if n in absent and n != label}
    keys = {"kind": "parquet", "file": path, "columns": columns}
    keys |= {"defaults": defaults} if defaults else {}
    without = f"; no dtype is that of {', '.join(left_out)}" if left_out else ""
    notes = {
        "columns": f"of lists, the dtype of their values{without}{_without(ids)}",
        "defaults": "change: what stands for an empty cell",
    }
    remarks = [*_unnamed(schema.names), *_told_of(ids)]
    sample = Sample(keys, [*columns, *ids], label, notes=notes, remarks=remarks)
    return _divided(sample, path, rows)


def _rows(path: str, delimiter: str) -> Iterator[csv_rows.Row]:
    """Yields the line and the cells of each row, which have all as many."""
    count = 0
    for line, cells in csv_rows.rows(path, delimiter, _KEY):
        count = count or len(cells)
        if len(cells) != count:
            raise errors.RunError(
                f"{_KEY}: {path}:{line}: must have {count} cells like the first row, got "
                f"{len(cells)}. Correct the row."
            )
        yield line, cells


def _delimiter(path: str) -> str:
    """Returns the delimiter that gives the most cells in each of the first rows."""
    counts, shown = {}, []
    for delimiter in _DELIMITERS:
        try:
            rows = [cells for _, cells in itertools.islice(_rows(path, delimiter), _DELIMITER_ROWS)]
        except errors.RunError:
            continue
        counts[delimiter] = len(rows[0]) if rows else 0
        if counts[delimiter] == 1:
            shown = [one for one in _DELIMITERS if one in rows[0][0]]
    best = max(counts, key=counts.__getitem__, default=",")
    # Where none fits, the one that is there is to be complained about.
    return shown[0] if shown and counts[best] == 1 else best


def _absent(given: set[str]) -> set[str]:
    """Returns what stands for an empty cell in a column; words only where the rest is no text."""
    others = given - _ABSENT
    return given & _ABSENT if others and _dtype(others) != "string" else {""}


def _dtype(given: Collection[str]) -> str:
    """Returns the dtype that all cells have, of which none is empty."""
    if not given:
        return "string"
    if all(cell.lower() in _TRUTHS for cell in given):
        return "bool"
    is_code = any(re.fullmatch(r"[+-]?0[0-9]+", cell) for cell in given)
    if not is_code and all(_is_number(cell, "int64") for cell in given):
        return "int64"
    return "float32" if not is_code and all(map(_is_number, given)) else "string"


def _is_number(cell: str, dtype: str = "float64") -> bool:
    try:
        cell_values.value_of(cell, dtype)
    except ValueError:
        return False
    return True


class _Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"{self.dtype} {list(self.shape[1:])}" if self.shape[1:] else self.dtype


def _npz(path: str, label: str | None) -> Sample:
    arrays, objects = _arrays(path)
    pairs = {name: _counterpart(name, arrays.__contains__) for name in arrays}
    if any(pairs.values()):
        return dataclasses.replace(_divided_npz(path, label, arrays, pairs), remarks=objects)
    label = label or _label_of(arrays)
    counts = Counter(one.shape[0] for one in arrays.values())
    rows = arrays[label].shape[0] if label in arrays else counts.most_common(1)[0][0]
    if not rows:
        raise errors.RunError(f"{_KEY}: {path}: must have rows, has none.")
    features = [name for name, one in arrays.items() if one.shape[0] == rows and name != label]
    others = {name: one.shape[0] for name, one in arrays.items() if one.shape[0] != rows}
    remarks = [f"{name}: left out, as it has {others[name]} rows, not {rows}" for name in others]
    remarks += objects
    if remarks and not features:
        raise errors.RunError(
            f"{_KEY}: {path}: must have an array besides the label, {label}, with as many rows; "
            f"{'; '.join(remarks)}. Correct the file."
        )
    notes = {"features": _told(arrays, features, path)}
    keys: dict[str, Any] = {"kind": "npz", "file": path, "features": features}
    other_keys = {}
    if rows >= _FEW:
        edge = int(rows * _SHARE)
        keys["rows"], other_keys["rows"] = [0, edge], [edge, rows]
        notes["rows"] = "the rest is held out for evaluation"
    return Sample(keys, list(arrays), label, other_keys, notes, remarks)


def _divided_npz(
    path: str,
    label: str | None,
    arrays: Mapping[str, _Array],
    pairs: Mapping[str, str | None],
) -> Sample:
    """Describes a file that has arrays for training and others for evaluation."""
    train = {name: _stem(name) for name, other in pairs.items() if other is not None}
    if label is None:
        named = _label_of(train.values())
        label = next((name for name, stem in train.items() if stem == named), None)
    features = {stem: name for name, stem in train.items() if name != label}
    others: dict[str, Any] = {"features": {stem: pairs[name] for stem, name in features.items()}}
    if label in train:
        others["label"] = pairs[label]
    keys = {"kind": "npz", "file": path, "features": features}
    notes = {"features": _told(arrays, features.values(), path)}
    return Sample(keys, list(arrays), label, others, notes)


def _stem(name: str) -> str:
    """Returns a name without the word that says it is for training."""
    return "_".join(part for part in re.split(r"[^A-Za-z0-9]+", name) if part != _TRAIN)


def _told(arrays: Mapping[str, _Array], names: Iterable[str], path: str) -> str:
    """Returns what the features are, for people."""
    told = ", ".join(f"{name}: {arrays[name].text}" for name in names)
    if not told:
        raise errors.RunError(f"{_KEY}: {path}: must have an array besides the label. Add it.")
    return told


def _arrays(path: str) -> tuple[dict[str, _Array], list[str]]:
    """Returns arrays that have a name and rows of numbers or text; what is said of objects."""
    arrays, objects = {}, []
    for name, one in npz.load(path, _KEY).items():
        if name.strip() and one.shape and one.dtype.kind in _READABLE:
            arrays[name] = _Array("string" if one.dtype.kind in "SU" else one.dtype.name, one.shape)
        if one.dtype.hasobject:
            told = f"{name}: left out, as it holds Python objects, as of lists of several lengths"
            objects.append(f"{told}; pad them, or write TFRecords")
    if not arrays:
        raise errors.RunError(
            f"{_KEY}: {path}: must have arrays of numbers or text with rows, has none"
            f"{''.join(f'; {one}' for one in objects)}."
        )
    return arrays, objects


def _tfrecord(path: str, label: str | None) -> Sample:
    kind = files.kind_of(path)
    compression = "GZIP" if kind == "gzip" else "none" if kind else "ZLIB"
    from replicate.app.data import records  # which takes TensorFlow along

    examples = records.looked_at(path, compression, _KEY)
    names = sorted({name for example in examples for name in example})
    if not names:
        raise errors.RunError(
            f"{_KEY}: {path}: must hold tf.train.Examples with features, has none."
        )
    features = {name: _feature(name, examples, path) for name in names}
    keys: dict[str, Any] = {"kind": "tfrecord", "file": path, "features": features}
    keys |= {} if compression == "none" else {"compression": compression}
    notes = {"features": f"as of the first {len(examples)} records"}
    sample = Sample(keys, names, label or _label_of(names), notes=notes)
    return _divided(sample, path, len(examples))


def _feature(name: str, examples: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
    """Returns how a feature is to be read: fixed where all records have as many values."""
    found = [example[name] for example in examples if name in example]
    dtypes = {dtype for dtype, count in found if count} or {dtype for dtype, _ in found}
    if len(dtypes) > 1:
        raise errors.RunError(
            f"{_KEY}: {path}: {name} must be of one type, got {' and '.join(sorted(dtypes))}. "
            "Write the records again."
        )
    counts = {count for _, count in found}
    if len(counts) > 1 or len(found) < len(examples):
        return {"dtype": dtypes.pop(), "kind": "sparse"}
    count = counts.pop()
    return {"dtype": dtypes.pop(), "shape": [] if count == 1 else [count]}
