"""The part of a config that says what data comes in: one section per kind of input."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar

import pydantic
from pydantic import Field

from replicate.app.config import catalog, cell_values, types

_MAX_BATCH = 2**31 - 1
_MAX_RANK = 253  # and the batch
_MAX_BUFFER = 10**8  # rows; TensorFlow makes room for all of them at once

_Buffer = bool | Annotated[int, Field(ge=1, le=_MAX_BUFFER), types.WHOLE]
_Files = Annotated[
    types.Several[types.FilePath],
    pydantic.BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=types.FilePath | types.Several[types.FilePath],
    ),
]
_Row = types.NotNegative | None


def _of_this_machine(paths: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Takes paths that Python opens: TensorFlow alone knows other file systems."""
    for path in (paths,) if isinstance(paths, str) else paths:
        if "://" in path:
            raise ValueError("must be on this machine: tfrecord alone is read from elsewhere")
    return paths


_LOCAL = pydantic.AfterValidator(_of_this_machine)

_I = TypeVar("_I", bound="Input")
_L = TypeVar("_L", bound="Labelled")


def _shape(sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Takes a shape that TensorFlow can hold."""
    if len(sizes) > _MAX_RANK or math.prod(size or 1 for size in sizes) > _MAX_BATCH:
        raise ValueError(f"must be a shape of at most {_MAX_RANK} sizes and {_MAX_BATCH:,} values")
    return sizes


SHAPE = pydantic.AfterValidator(_shape)


def _rows(rows: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Takes [start, stop]; either may be null."""
    start, stop = rows if len(rows) == 2 else (1, 0)
    if stop is not None and stop <= (start or 0):
        raise ValueError("must be [start, stop] with start below stop")
    return rows


class Input(types.Section):
    """What every kind of input has."""

    kind: str
    batch_size: Annotated[int, Field(ge=1, le=_MAX_BATCH), types.WHOLE] = 32
    """Rows of the global batch, all towers together."""
    shuffle: _Buffer | None = None
    """true: over all rows in memory, or 10,000 rows of a stream; or over so many rows. null: true
    for files in training, else false. Several TFRecord files are shuffled as well."""
    repeat: bool | types.Positive | None = None
    """true: for ever; false: once; or so many times. null: true in training only."""
    prefetch: Annotated[int, Field(ge=0, le=_MAX_BUFFER), types.WHOLE] = 2
    """Batches made ahead of time."""

    def for_training(self: _I, training: bool) -> _I:
        """Returns this input with the defaults that depend on what it is for."""
        shuffle = training and self.kind != "function" if self.shuffle is None else self.shuffle
        repeat = training if self.repeat is None else self.repeat
        return self.model_copy(update={"shuffle": shuffle, "repeat": repeat})

    def is_trained_on(self, trained: "Input") -> bool:
        """Tells whether this has rows of another input, but not just those it holds out."""
        wanted, left_out = (getattr(one, "holdout", None) for one in (self, trained))
        return wanted != left_out and not set(files_of(self)).isdisjoint(files_of(trained))

    def for_predictions(self: _I) -> _I:
        """Returns this input without its label, where it has one."""
        return self


class Labelled(Input):
    """What an input has whose features go by their names, the label among them."""

    NAMED: ClassVar[str]  # the key of these
    label: types.Text | None = None
    """The one that is the label; null where there is none."""
    holdout: Annotated[types.Number, Field(gt=0, lt=1)] | None = None
    """Which share of the rows training leaves out, as 0.1; an input that is not for training has
    these alone. Chosen by a hash of the row, so always the same rows."""
    cache: bool = False
    """true: what is read is kept in memory until a training, or one evaluation, is over. Tables
    below 1 GiB are in memory anyway."""

    _whole: "Labelled | None" = pydantic.PrivateAttr(None)  # of which this, to predict, is a part

    def for_predictions(self: _L) -> _L:
        """See base class."""
        named = {name: one for name, one in getattr(self, self.NAMED).items() if name != self.label}
        made = self.model_copy(update={self.NAMED: named, "label": None})
        made._whole = self._whole or self
        return made

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        known = getattr(self, self.NAMED)
        if self.label is not None and self.label not in known:
            then = types.meant(self.label, known, "Add it there.")
            yield ("label",), f"must be one of {self.NAMED}, got {self.label!r}. {then}"


class Table(Labelled):
    """What an input of columns has."""

    NAMED = "columns"
    file: Annotated[_Files, _LOCAL]
    """One path, or several, read one after the other; `*` and `?` stand for any characters."""
    columns: types.Named[catalog.Dtype]
    """The columns to read, each with its dtype; those of Parquet may be lists of one length."""
    defaults: dict[str, types.Anything] = Field({})
    """For a column, the value that stands for an empty cell."""

    def names_of(self, cells: int) -> list[str]:
        """Returns the columns of a file without a header, whose rows have so many cells.

        To predict, the label may be missing.
        """
        whole = self._whole if isinstance(self._whole, Table) else self
        left_out = whole.label if whole is not self and cells < len(whole.columns) else None
        return [name for name in whole.columns if name != left_out]

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        yield from super().faults()
        for name, value in self.defaults.items():
            if name not in self.columns:
                rule = f"must be for one of columns, got {name!r}"
                yield ("defaults", name), f"{rule}. {types.meant(name, self.columns, 'Remove it.')}"
            elif not cell_values.is_of(value, self.columns[name]):
                rule = f"must be {self.columns[name]} as its column is, got {value!r}"
                yield ("defaults", name), f"{rule}. Correct it."


class Csv(Table):
    """Comma-separated text, UTF-8, also compressed with gzip; features are a dict of columns."""

    kind: Literal["csv"] = "csv"
    """csv: comma-separated text."""
    na_values: types.Items[types.Text] = ()
    """Texts that make a cell an empty one, such as NA. A column of text keeps them, unless it has a
    value in defaults."""
    header: bool = True
    """Whether the first line has the names; else `columns` are all, in order."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """What separates the cells: one ASCII character, no quote."""

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        yield from super().faults()
        if self.delimiter in '\r\n"' or not self.delimiter.isascii():
            rule = "must be an ASCII character which ends no line and is no quote"
            yield ("delimiter",), f"{rule}, got {self.delimiter!r}."


class Parquet(Table):
    """Parquet files; features are a dict of columns."""

    kind: Literal["parquet"] = "parquet"
    """parquet: Parquet files."""


class Npz(Input):
    """Arrays from a NumPy archive, rows along axis 0."""

    kind: Literal["npz"] = "npz"
    """npz: a NumPy archive."""
    file: Annotated[types.FilePath, _LOCAL]
    """The path."""
    features: types.Text | types.Several[types.Text] | types.Named[types.Text] | None = None
    """Array names as a list, or feature name to array name: features are a dict; one name as a
    text: features are that array. null: a dict of all but the label."""
    label: types.Text | None = None
    """The array that is the label; null where there is none."""
    rows: Annotated[types.Items[_Row], pydantic.AfterValidator(_rows)] | None = None
    """[start, stop]: only these rows, e.g. to hold a test split out."""


class Feature(types.Section):
    """How one feature of a tf.train.Example is read."""

    dtype: Literal["float32", "int64", "string"]
    """float32, int64 or string, as Examples have them."""
    shape: Annotated[types.Items[types.NotNegative], SHAPE] = ()
    """Of a fixed feature, without the batch; [] is one value."""
    kind: Literal["fixed", "sparse", "ragged"] = "fixed"
    """fixed, sparse (becomes a SparseTensor) or ragged."""
    default: types.Anything = None
    """Of a fixed feature, where an Example lacks it: one value for all of its shape; null: it must
    be there."""

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        if self.kind != "fixed" and (self.shape or self.default is not None):
            yield ("kind",), f"must be fixed to have shape or default, got {self.kind!r}."
        if self.default is not None and not cell_values.is_of(self.default, self.dtype):
            yield ("default",), f"must be {self.dtype} as dtype says, got {self.default!r}."


class Tfrecord(Labelled):
    """tf.train.Examples in TFRecord files."""

    NAMED = "features"
    kind: Literal["tfrecord"] = "tfrecord"
    """tfrecord: tf.train.Examples."""
    file: _Files
    """One path or several; `*` and `?` stand for any characters."""
    features: types.Named[Feature]
    """For each feature, its label too, how it is read."""
    compression: Literal["none", "GZIP", "ZLIB"] = "none"
    """How the files are compressed."""
    parallel_reads: Annotated[int, Field(ge=1, le=1024), types.WHOLE] = 1
    """How many files are read at a time. Above 1, records come from so many files in turn, always
    in the same order where nothing is shuffled."""

    @property
    def compression_type(self) -> str:
        """How the files are compressed, as `tf.data` has it."""
        return "" if self.compression == "none" else self.compression


class Function(Input):
    """A function that returns a `tf.data.Dataset`, called with what it names."""

    kind: Literal["function"] = "function"
    """function: one of yours."""
    function: types.Function
    """`package.module:function`; may name `mode`, `params`, `batch_size`."""
    cache: bool = False
    """true: rows are kept in memory until a training, or one evaluation, is over. A function may
    keep them in files itself: `dataset.cache(path)`."""
    batched: bool | None = None
    """Whether its dataset is batched already; null: found out from its graph and its shapes."""


def _spelt_out(value: object) -> object:
    """Takes a function's bare name for a mapping."""
    return {"kind": "function", "function": value} if isinstance(value, str) else value


AnyTable: TypeAlias = Csv | Parquet
AnyInput: TypeAlias = AnyTable | Npz | Tfrecord | Function

_Section = Annotated[AnyInput, Field(discriminator="kind")]
_Any = Annotated[
    _Section,
    pydantic.BeforeValidator(_spelt_out, json_schema_input_type=types.Function | _Section),
]
TrainingInput = Annotated[_Any, pydantic.AfterValidator(lambda one: one.for_training(True))]
OtherInput = Annotated[_Any, pydantic.AfterValidator(lambda one: one.for_training(False))]


def files_of(source: Input) -> tuple[str, ...]:
    """Returns the files and patterns that an input names; none for a function."""
    named = getattr(source, "file", ())
    return (named,) if isinstance(named, str) else named
