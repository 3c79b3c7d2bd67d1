"""What a data file holds, found by looking at its beginning: for a config to begin with.

Types are those that pyarrow finds in tables, NumPy in arrays, and tf.train.Examples say.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replicate import errors
from replicate.app.config import catalog, files, types
from replicate.app.data import npz
from replicate.console import messages

_LABELS = ("label", "labels", "target", "targets", "y", "class", "classes", "output", "outcome")
_TRAIN = "train"
_OTHERS = ("test", "eval", "val", "valid", "validation", "dev")
_KEY = "DATA"  # what names the file in error texts

_DELIMITERS = ",;\t|"
_DTYPES = {  # what pyarrow's types are read as, where they are called otherwise
    **{"double": "float32", "float": "float32", "halffloat": "float16"},
    **dict.fromkeys(("binary", "large_binary", "large_string", "null"), "string"),
}
_EMPTY = {"bool": False, "string": "", "float32": 0.0}  # stands for an empty cell; of others 0
_ABSENT = ("", "#N/A", "-", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")  # which no header has
_CODE = re.compile(r"[+-]?0[0-9xX]")  # begins a number that is text, as a ZIP code

# The name of what tells rows apart, as id, user_id, PassengerId.
_ID = re.compile(r"(^|[\W_])(?i:id|uuid|guid)$|[a-z]I[dD]$")

_SHARE = 0.8  # of the rows of an npz file are for training
_FEW = 10  # of fewer rows none is left for evaluation
_FEW_BY_HASH = 50  # of fewer rows perhaps none is held out
_RECORDS = 100  # that are looked at
_KINDS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}

_HELD_OUT = "It has the rows that training leaves out."
_BY_MODE = "The function may name mode, which is train, eval or infer, and return other rows."


class Sample(NamedTuple):
    """An input that a data file may be.

    Attributes:
        keys: Those of the config's input, in order.
        names: What may be the label: columns, arrays, features.
        label: What is taken for it; None where nothing is called so.
        others: The keys that an evaluation's input has in their place; or what is said of it.
        left_out: Column or array -> why it is none of them.
    """

    keys: dict[str, Any]
    names: Sequence[str] = ()
    label: str | None = None
    others: Mapping[str, Any] | str = "Change: training sees these rows; name others here."
    left_out: Mapping[str, str] = {}


def look(data: str, label: str | None = None) -> Sample:
    """Looks at the data.

    Args:
        data: A file; a pattern, whose first file is looked at; or a function of a dataset.
        label: The column, array or feature that is the label; None: the one that is called so.

    Raises:
        ConfigError: If there is no label by this name.
        RunError: If it is none of these, or holds nothing that can be read.
    """
    if types.is_function(data) and not os.path.exists(data):
        return Sample({"kind": "function", "function": data}, others=_BY_MODE)
    path = os.path.abspath(data)
    is_there = not os.path.isdir(path) and not files.absent([path])
    first = files.expanded([path], _KEY)[0] if is_there else ""
    kind = files.KINDS.get(files.form_of(first))
    if kind is None or (kind == "npz" and first != path):
        rule = "CSV, npz, Parquet or TFRecord with rows"
        rule = rule if is_there else "a file of this machine, a pattern of such files"
        rule += ", or package.module:function"
        rule = "one file where it is npz, got a pattern" if kind else rule
        raise errors.RunError(f"{_KEY}: {data}: must be {rule}. Check the path and the file.")
    looks = {"csv": _csv, "npz": _npz, "parquet": _parquet, "tfrecord": _tfrecord}
    sample = looks[kind](first, label)
    sample.keys["file"] = path
    if label is not None and label not in sample.names:
        why = sample.left_out.get(label)
        then = types.meant(label, sample.names, f"It has {', '.join(sample.names)}.")
        then = f"It is left out, as {why}." if why else then
        raise errors.ConfigError(f"--label {label}: must be in {data}. {then}")
    folder = Path(path).parent
    other = _counterpart(Path(path).name, lambda name: not files.absent([str(folder / name)]))
    if other is None or kind == "npz":
        return sample
    sample.keys.pop("holdout", None)
    return sample._replace(others={"file": str(folder / other)})


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


def _label_of(names: Iterable[str]) -> str | None:
    """Returns the name that a label usually has; None where there is none."""
    by_lower = {name.lower(): name for name in reversed(list(names))}
    return next((by_lower[word] for word in _LABELS if word in by_lower), None)


def _fault(path: str, rule: str, left_out: Mapping[str, str] | None = None) -> errors.RunError:
    told = "".join(f"; {name}: left out, as {why}" for name, why in (left_out or {}).items())
    return errors.RunError(f"{_KEY}: {path}: {rule}{told}. Correct the file.")


def _held_out(sample: Sample, rows: int) -> Sample:
    """Returns a sample some of whose rows are for evaluation, if there are enough."""
    if rows < _FEW_BY_HASH:
        return sample
    sample.keys["holdout"] = 0.1
    return sample._replace(others=_HELD_OUT)


def _csv(path: str, label: str | None) -> Sample:
    import pyarrow

    from replicate.app.data import tables  # for a table alone: see there

    with tables.naming(path, _KEY, ","):
        heads = {d: next(tables.texts(path, d), (0, []))[1] for d in _DELIMITERS}
    delimiter = max(_DELIMITERS, key=lambda d: len(heads[d]))
    head = [cell.strip() for cell in heads[delimiter]]
    if not head:
        raise _fault(path, "must have rows, has none")
    has_header = not any(map(_NUMBER.fullmatch, head))

    def rows(skipped: int, **convert: Any) -> Sequence[Any]:
        numbers = list(map(str, range(len(head))))
        found = next(iter(tables.batches(path, delimiter, numbers, skipped, **convert)), None)
        return [pyarrow.nulls(0)] * len(head) if found is None else found.columns

    with tables.naming(path, _KEY, delimiter):
        columns = rows(int(has_header), null_values=_ABSENT)
        are_texts = {str(number): pyarrow.string() for number in range(len(head))}
        texts = rows(int(has_header), column_types=are_texts)
    dtypes, absent = [], set()
    for column, cells in zip(columns, texts, strict=True):
        given = {cell.strip() for cell in cells.to_pylist()}
        dtype = _DTYPES.get(str(column.type), str(column.type))
        is_text = dtype not in catalog.DTYPES or any(map(_CODE.match, given))
        dtypes.append("string" if is_text else dtype)
        absent |= given.intersection(_ABSENT) if dtypes[-1] != "string" else set()
    keys: dict[str, Any] = {"kind": "csv", "na_values": sorted(absent - {""})}
    keys |= {"header": has_header, "delimiter": delimiter}
    keys = {key: one for key, one in keys.items() if one not in ([], True, ",")}
    names = head if has_header else [f"column_{n}" for n in range(1, len(head) + 1)]
    return _table(path, Sample(keys, names, label), dtypes, columns, len(columns[0]))


def _parquet(path: str, label: str | None) -> Sample:
    from replicate.app.data import tables  # for a table alone: see there

    with tables.naming(path, _KEY, None), tables.parquet.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        first = next(file.iter_batches(), None)
    dtypes = []
    for field in schema:
        values = field.type
        while hasattr(values, "value_type"):  # of a list
            values = values.value_type
        dtypes.append(_DTYPES.get(str(values), str(values)))
    sample = Sample({"kind": "parquet"}, schema.names, label)
    return _table(path, sample, dtypes, [] if first is None else first.columns, rows)


def _table(
    path: str, sample: Sample, dtypes: Sequence[str], columns: Sequence[Any], rows: int
) -> Sample:
    """Returns a table with those of its columns that can be read.

    Args:
        path: The file.
        sample: With the names of all columns.
        dtypes: Of each column.
        columns: The first values of each; none where there are no rows.
        rows: How many rows there are.
    """
    names, left_out = list(sample.names), {}
    label = sample.label or _label_of(names)
    values = dict(zip(names, columns, strict=False))
    ids = {n for n, one in values.items() if n != label and _ID.search(n) and _are_distinct(one)}
    ids = ids if {*names} - {*ids, label, ""} else set()
    for name, dtype in zip(names, dtypes, strict=True):
        if not name:
            left_out["a column without a name"] = "pandas writes such an index; to read it, name it"
        elif names.count(name) > 1:
            left_out[name] = f"{names.count(name)} columns are called so; to read them, rename them"
        elif dtype not in catalog.DTYPES:
            left_out[name] = f"no dtype is {dtype}"
        elif name in ids:
            left_out[name] = "it is another one in each row; add it to columns to return it"
    known = dict(zip(names, dtypes, strict=True))
    chosen = {name: dtype for name, dtype in known.items() if name and name not in left_out}
    if not set(chosen) - {label}:
        raise _fault(path, "must have a column with a name besides the label", left_out)
    empty = {  # a row without a label is not to be trained on as if it had one
        name: _EMPTY.get(dtype, 0)
        for name, dtype in chosen.items()
        if name != label and name in values and values[name].null_count
        if dtype != "string" or sample.keys["kind"] != "csv"
    }
    keys = {"kind": sample.keys["kind"], "file": path, "columns": chosen, "defaults": empty}
    keys = {key: one for key, one in {**keys, **sample.keys}.items() if one != {}}
    own = [name for name in names if name in chosen or name in ids]
    return _held_out(Sample(keys, own, label, left_out=left_out), rows)


def _are_distinct(values: Any) -> bool:
    return len(values) > 1 and len(set(map(str, values.to_pylist()))) == len(values)


def _npz(path: str, label: str | None) -> Sample:
    stored = npz.load(path, _KEY)
    arrays = {
        n: a for n, a in stored.items() if n.strip() and a.shape and a.dtype.kind in "biufcSU"
    }
    left_out = {
        n: "it holds Python objects; pad them" for n, a in stored.items() if a.dtype.hasobject
    }
    pairs = {name: _counterpart(name, arrays.__contains__) for name in arrays}
    pairs = {name: other for name, other in pairs.items() if other is not None}
    keys: dict[str, Any] = {"kind": "npz", "file": path}
    others: dict[str, Any] = {}
    if pairs:  # arrays for training, and others for evaluation
        own = {re.sub(rf"[\W_]*{_TRAIN}[\W_]*", "", name): name for name in pairs}
        label = label or own.get(_label_of(own) or "")
        own = {stem: name for stem, name in own.items() if name != label}
        keys["features"], named = own, list(own.values())
        others["features"] = {stem: pairs[name] for stem, name in own.items()}
        others |= {"label": pairs[label]} if label in pairs else {}
    else:
        label = label or _label_of(arrays)
        counts = Counter(map(len, arrays.values()))
        rows = (
            len(arrays[label])
            if label in arrays
            else max(counts, key=counts.__getitem__, default=0)
        )
        named = [name for name, one in arrays.items() if name != label and len(one) == rows > 0]
        keys["features"] = named
        told = {n: f"it has {len(one)} rows, not {rows}" for n, one in arrays.items()}
        left_out |= {name: why for name, why in told.items() if name not in (*named, label)}
        if rows >= _FEW:
            keys["rows"], others["rows"] = [0, int(rows * _SHARE)], [int(rows * _SHARE), rows]
    if not named:
        raise _fault(
            path, "must have an array of numbers or text, with rows, besides the label", left_out
        )
    sample = Sample(keys, list(arrays), label, left_out=left_out)
    return sample._replace(others=others) if others else sample


def _tfrecord(path: str, label: str | None) -> Sample:
    kind = files.kind_of(path)
    compression = "GZIP" if kind == "gzip" else "" if kind else "ZLIB"
    examples = _examples(path, compression)
    names = sorted({name for example in examples for name in example})
    if not names:
        raise _fault(path, "must hold tf.train.Examples with features, has none")
    features = {}
    for name in names:
        found = [example[name] for example in examples if name in example]
        dtypes = sorted({dtype for dtype, count in found if count} or {found[0][0]})
        if len(dtypes) > 1:
            rule = f"{name} must be of one type, got {' and '.join(dtypes)}"
            raise _fault(path, rule)
        counts = {count for _, count in found}
        is_fixed = len(counts) == 1 and len(found) == len(examples)
        shape = {"shape": [] if counts == {1} else list(counts)}
        features[name] = {"dtype": dtypes[0], **(shape if is_fixed else {"kind": "sparse"})}
    keys: dict[str, Any] = {"kind": "tfrecord", "file": path, "features": features}
    keys |= {"compression": compression} if compression else {}
    return _held_out(Sample(keys, names, label or _label_of(names)), len(examples))


def _examples(path: str, compression: str) -> list[dict[str, tuple[str, int]]]:
    """Returns for each feature of the first records its dtype, and how many values it has."""
    from google.protobuf import message

    from replicate.compat.tensorflow import tf, tf1

    examples: list[dict[str, tuple[str, int]]] = []
    try:
        found = tf1.io.tf_record_iterator(path, tf.io.TFRecordOptions(compression))
        for record in itertools.islice(found, _RECORDS):
            known = tf.train.Example.FromString(record).features.feature
            kinds = {name: feature.WhichOneof("kind") for name, feature in known.items()}
            examples.append(
                {n: (_KINDS[k], len(getattr(known[n], k).value)) for n, k in kinds.items() if k}
            )
    except (tf.errors.OpError, message.DecodeError, UnicodeDecodeError) as e:
        is_read = not isinstance(e, tf.errors.OpError)
        reason = "it is no Example" if is_read else messages.first_lines(e).rstrip(".")
        rule = "must be a TFRecord file of tf.train.Examples"
        raise _fault(path, f"{rule}: record {len(examples) + 1}: {reason}") from e
    return examples
