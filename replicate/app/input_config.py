"""The part of a config that says what data comes in: one dataclass per kind of input."""

import dataclasses
from typing import Any, ClassVar

from replicate.app import catalog, checks

__all__ = [
    "KINDS",
    "Csv",
    "Feature",
    "Function",
    "Input",
    "Npz",
    "Tfrecord",
    "files_of",
    "input_of",
]

_FILES = checks.either(
    {
        str: lambda reader, path, value: (checks.path_text(reader, path, value),),
        list: checks.listing(checks.path_text, minimum=1),
    },
    "a path or a list of paths",
)
_TIMES = checks.either({bool: checks.boolean, int: checks.whole(1)}, "true, false or a number")
_MAX_BATCH = 2**31 - 1
_MAX_BUFFER = 10**8  # rows; TensorFlow makes room for all of them at once
_BUFFER = checks.either(
    {bool: checks.boolean, int: checks.whole(1, _MAX_BUFFER)}, "true, false or a number"
)


def _shape(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes a list of dimensions, null where one is not known."""
    return checks.listing(checks.optional(checks.whole(0)))(reader, path, value)


def _rows(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes [start, stop]; either may be null."""
    rows = checks.listing(checks.optional(checks.whole(0)))(reader, path, value)
    if rows is None or any(not isinstance(edge, int | None) for edge in rows):
        return None
    start, stop = rows if len(rows) == 2 else (1, 0)
    if stop is not None and stop <= (start or 0):
        reader.expected(path, "[start, stop] with start below stop", value)
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """What every kind of input has.

    Attributes:
        batch_size: Rows of the global batch, all towers together.
        shuffle: true: over all rows in memory, or 10,000 rows of a stream; or so many rows.
            Default: true for files in training, else false.
        repeat: true: for ever; false: once; or so many times. Default: true in training only.
        prefetch: Batches made ahead of time.
    """

    KIND: ClassVar[str] = ""
    batch_size: int = checks.key(checks.whole(1, _MAX_BATCH), 32)
    shuffle: bool | int | None = checks.key(checks.optional(_BUFFER), None)
    repeat: bool | int | None = checks.key(checks.optional(_TIMES), None)
    prefetch: int = checks.key(checks.whole(0, _MAX_BUFFER), 2)

    def for_training(self, training: bool) -> "Input":
        """Returns this input with the defaults that depend on what it is for."""
        shuffle = training and self.KIND != "function" if self.shuffle is None else self.shuffle
        repeat = training if self.repeat is None else self.repeat
        return dataclasses.replace(self, shuffle=shuffle, repeat=repeat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv(Input):
    """Comma-separated text, UTF-8, also compressed with gzip; features are a dict of columns.

    Attributes:
        file: One path, or several, read one after the other; `*` and `?` stand for any
            characters.
        columns: The columns to read, each with its dtype.
        label: The column that is the label; null where there is none.
        defaults: For a column, the value that stands for an empty cell.
        header: Whether the first line has the names; else `columns` are all, in order.
        delimiter: What separates the cells.
    """

    KIND: ClassVar[str] = "csv"
    file: tuple[str, ...] = checks.key(_FILES)
    columns: dict[str, str] = checks.key(
        checks.mapping(
            checks.one_of(*catalog.DTYPES), 1, "a mapping of columns to dtypes, as {age: float32}"
        )
    )
    label: str | None = checks.key(checks.optional(checks.text), None)
    defaults: dict[str, Any] = checks.key(checks.mapping(checks.anything), dict)
    header: bool = checks.key(checks.boolean, True)
    delimiter: str = checks.key(checks.text_of_one, ",")

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.label is not None and self.label not in self.columns:
            yield "label", f"must be one of columns, got {self.label!r}. Add it there."
        for name in self.defaults:
            if name not in self.columns:
                yield "defaults", f"must be for one of columns, got {name!r}. Remove it."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz(Input):
    """Arrays from a NumPy archive, rows along axis 0.

    Attributes:
        file: The path.
        features: Array names as a list, or feature name -> array name: features are a dict;
            one name as a text: features are that array. null: a dict of all but the label.
        label: The array that is the label; null where there is none.
        rows: [start, stop]: only these rows, e.g. to hold a test split out.
        dtypes: For a feature or array, the dtype to convert it to.
    """

    KIND: ClassVar[str] = "npz"
    file: str = checks.key(checks.path_text)
    features: str | tuple[str, ...] | dict[str, str] | None = checks.key(
        checks.optional(
            checks.either(
                {
                    str: checks.text,
                    list: checks.listing(checks.text, 1),
                    dict: checks.mapping(checks.text, 1),
                },
                "an array's name, a list of them, or feature: array",
            )
        ),
        None,
    )
    label: str | None = checks.key(checks.optional(checks.text), None)
    rows: tuple[int | None, int | None] | None = checks.key(checks.optional(_rows), None)
    dtypes: dict[str, str] = checks.key(checks.mapping(checks.one_of(*catalog.DTYPES)), dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """How one feature of a tf.train.Example is read.

    Attributes:
        dtype: float32, int64 or string, as Examples have them.
        shape: Of a fixed feature, without the batch; [] is one value.
        kind: fixed, sparse (becomes a SparseTensor) or ragged.
        default: Of a fixed feature, where an Example lacks it; null: it must be there.
    """

    dtype: str = checks.key(checks.one_of("float32", "int64", "string"))
    shape: tuple[int, ...] = checks.key(checks.listing(checks.whole(0)), ())
    kind: str = checks.key(checks.one_of("fixed", "sparse", "ragged"), "fixed")
    default: Any = checks.key(checks.anything, None)

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.kind != "fixed" and (self.shape or self.default is not None):
            yield "kind", f"must be fixed to have shape or default, got {self.kind!r}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tfrecord(Input):
    """tf.train.Examples in TFRecord files.

    Attributes:
        file: One path or several; `*` and `?` stand for any characters.
        features: For each feature, its label too, how it is read.
        label: The feature that is the label; null where there is none.
        compression: none, GZIP or ZLIB.
    """

    KIND: ClassVar[str] = "tfrecord"
    file: tuple[str, ...] = checks.key(_FILES)
    features: dict[str, Feature] = checks.key(
        checks.mapping(
            checks.section(Feature, "a mapping that says how it is read, as {dtype: float32}"),
            1,
            "a mapping of features to how they are read, as {age: {dtype: float32}}",
        )
    )
    label: str | None = checks.key(checks.optional(checks.text), None)
    compression: str = checks.key(checks.one_of("none", "GZIP", "ZLIB"), "none")

    def faults(self):
        """Yields rules between keys that are broken."""
        if self.label is not None and self.label not in self.features:
            yield "label", f"must be one of features, got {self.label!r}. Add it there."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function(Input):
    """A function that returns a `tf.data.Dataset`, called with what it names.

    Attributes:
        function: `package.module:function`; may name `mode`, `params`, `batch_size`.
        batched: Whether its dataset is batched already; null: found out, see `inputs`.
    """

    KIND: ClassVar[str] = "function"
    function: str = checks.key(checks.function)
    batched: bool | None = checks.key(checks.optional(checks.boolean), None)


KINDS = {cls.KIND: cls for cls in (Csv, Npz, Tfrecord, Function)}


def files_of(source: Input) -> tuple[str, ...]:
    """Returns the files and patterns that an input names; none for a function."""
    named = getattr(source, "file", ())
    return (named,) if isinstance(named, str) else named


def input_of(training: bool) -> checks.Check:
    """Returns a check for an input: a mapping with its `kind`, or a function's name."""
    of_a_kind = checks.one_kind(KINDS, ", or package.module:function")

    def read(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
        if isinstance(value, str):
            value = {"kind": "function", "function": value}
        made = of_a_kind(reader, path, value)
        return made.for_training(training) if made is not None else None

    return read
