"""The part of a config that says what data comes in: one section per kind of input."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import pydantic
from pydantic import Field

from replicate.app.config import catalog, cell_values, files, types

_MAX_BATCH = 2**31 - 1
_MAX_RANK = 253  # and the batch
_MAX_READS = 1024  # each one has a thread
_MAX_BUFFER = 10**8  # rows; TensorFlow makes room for all of them at once

_Times = Annotated[types.Boolean | types.Positive, types.either("true, false or a number")]
_Buffer = Annotated[
    types.Boolean | Annotated[int, types.number(int, 1, _MAX_BUFFER), types.tag("number")],
    types.either("true, false or a number"),
]
_Columns = Annotated[
    types.Named[catalog.Dtype],
    types.form(dict, "a mapping of columns to dtypes, as {age: float32}"),
]
_Arrays = Annotated[
    types.Text | types.Several[types.Text] | types.Named[types.Text],
    types.either("an array's name, a list of them, or feature: array"),
]


def _listed(value: object) -> object:
    """Takes a path for a list of one."""
    if not isinstance(value, str | list | tuple):
        raise types.expected("a path or a list of paths", value)
    return (value,) if isinstance(value, str) else value


_Files = Annotated[
    types.Several[types.PathText],
    pydantic.BeforeValidator(
        _listed, json_schema_input_type=types.PathText | types.Several[types.PathText]
    ),
]


def _rows(rows: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Takes [start, stop]; either may be null."""
    start, stop = rows if len(rows) == 2 else (1, 0)
    if stop is not None and stop <= (start or 0):
        raise types.expected("[start, stop] with start below stop", list(rows))
    return rows


_Rows = Annotated[tuple[types.NotNegative | None, ...], pydantic.AfterValidator(_rows)]


def _shape(sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Takes a shape that TensorFlow can hold."""
    if len(sizes) > _MAX_RANK or math.prod(size or 1 for size in sizes) > _MAX_BATCH:
        rule = f"a shape of at most {_MAX_RANK} sizes and {_MAX_BATCH:,} values"
        raise types.expected(rule, list(sizes))
    return sizes


SHAPE = pydantic.AfterValidator(_shape)


def _share(share: float) -> float:
    """Takes a part of all rows."""
    if share >= 1:
        raise types.expected("a number above 0 and below 1", share)
    return share


_Share = Annotated[types.AboveZero, pydantic.AfterValidator(_share)]


_I = TypeVar("_I", bound="Input")
_T = TypeVar("_T", bound="Table")


class Input(types.Section):
    """What every kind of input has."""

    kind: str
    batch_size: Annotated[int, types.number(int, 1, _MAX_BATCH)] = Field(
        32, description="Rows of the global batch, all towers together."
    )
    shuffle: _Buffer | None = Field(
        None,
        description="true: over all rows in memory, or 10,000 rows of a stream; or over so many "
        "rows. null: true for files in training, else false. Several TFRecord files are shuffled "
        "as well.",
    )
    repeat: _Times | None = Field(
        None,
        description="true: for ever; false: once; or so many times. null: true in training only.",
    )
    prefetch: Annotated[int, types.number(int, 0, _MAX_BUFFER)] = Field(
        2, description="Batches made ahead of time."
    )

    def for_training(self: _I, training: bool) -> _I:
        """Returns this input with the defaults that depend on what it is for."""
        shuffle = training and self.kind != "function" if self.shuffle is None else self.shuffle
        repeat = training if self.repeat is None else self.repeat
        return self.model_copy(update={"shuffle": shuffle, "repeat": repeat})

    def is_trained_on(self, trained: "Input") -> bool:
        """Tells whether this has rows of another input, but not just those it holds out."""
        both = (self, trained)
        own, others = (files_of(one) or (getattr(one, "function", None),) for one in both)
        wanted, left_out = (getattr(one, "holdout", None) for one in both)
        return not set(own).isdisjoint(others) and wanted != left_out

    _is_given: bool = pydantic.PrivateAttr(False)

    def called(self, section: str) -> str:
        """Returns what error texts call this: its key, or FILE, which stands in its place."""
        return files.GIVEN if self._is_given else f"{section}.input"

    def of_file(self: _I, path: str) -> _I:
        """Returns what reads another file as this input reads its own, once, in order, whole."""
        file = path if isinstance(getattr(self, "file", ()), str) else (path,)
        whole = {"shuffle": False, "repeat": False, "holdout": None, "rows": None, "file": file}
        fields = type(self).model_fields
        made = self.model_copy(update={key: one for key, one in whole.items() if key in fields})
        made._is_given = True
        return made

    def for_predictions(self: _I, features: Collection[str] | None = None) -> _I:
        """Returns this input without its label, and with these features alone, where it can be."""
        return self


def _chosen(
    known: Mapping[str, Any], label: str | None, names: Collection[str] | None
) -> dict[str, Any]:
    """Returns those of all but the label that are named; all where none is."""
    features = {name: one for name, one in known.items() if name != label}
    return {name: features[name] for name in features if name in (names or ())} or features


class Divisible(Input):
    """What an input has of which a part can be held out of training."""

    holdout: _Share | None = Field(
        None,
        description="Which share of the rows training leaves out, as 0.1; an input that is not "
        "for training has these alone. Chosen by a hash of the row, so always the same rows. Rows "
        "of a function must be the same each time: without random changes, and not padded to the "
        "longest of a batch, which is refused.",
    )


class Table(Divisible):
    """What an input of columns has."""

    file: _Files = Field(
        description="One path, or several, read one after the other; `*` and `?` stand for any "
        "characters."
    )
    columns: _Columns = Field(
        description="The columns to read, each with its dtype; those of Parquet may be lists of "
        "one length."
    )
    label: types.Text | None = Field(
        None, description="The column that is the label; null where there is none."
    )
    defaults: dict[str, types.Anything] = Field(
        {},
        description="For a column, the value that stands for an empty cell.",
    )
    cache: types.Boolean = Field(
        False,
        description="Only for files over 1 GiB, which are read as a stream; smaller ones are "
        "always in memory. true: rows are kept in memory until a training, or one evaluation, is "
        "over.",
    )

    _whole: "Table | None" = pydantic.PrivateAttr(
        None
    )  # what this one, for predictions, is part of

    def for_predictions(self: _T, features: Collection[str] | None = None) -> _T:
        """See base class."""
        columns = _chosen(self.columns, self.label, features)
        made = self.model_copy(update={"columns": columns, "label": None})
        made._whole = self._whole or self
        return made

    def names_of(self, cells: int) -> list[str]:
        """Returns the columns of a file without a header, whose rows have so many cells.

        To predict, the label may be missing.
        """
        whole = self._whole or self
        left_out = whole.label if whole is not self and cells < len(whole.columns) else None
        return [name for name in whole.columns if name != left_out]

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.label is not None and self.label not in self.columns:
            then = types.meant(self.label, self.columns, "Add it there.")
            yield "label", f"must be one of columns, got {self.label!r}. {then}"
        for rule in filter(None, map(self._fault_of_default, self.defaults)):
            yield "defaults", rule

    def _fault_of_default(self, name: str) -> str:
        value = self.defaults[name]
        if name not in self.columns:
            then = types.meant(name, self.columns, "Remove it.")
            return f"must be for one of columns, got {name!r}. {then}"
        try:
            cell_values.text_of(value, self.columns[name])
        except ValueError as e:
            return f"{name} must be {e} as its column is, got {value!r}. Correct it."
        return ""


def _character(value: object) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '\0\r\n"':
        rule = "a single character in quotes, which ends no line and is no quote"
        raise types.expected(rule, value)
    return value


class Csv(Table):
    """Comma-separated text, UTF-8, also compressed with gzip; features are a dict of columns."""

    kind: Literal["csv"] = Field("csv", description="csv: comma-separated text.")
    na_values: tuple[types.Text, ...] = Field(
        (),
        description="Texts that make a cell an empty one, such as NA. A column of text keeps them, "
        "unless it has a value in defaults.",
    )
    header: types.Boolean = Field(
        True, description="Whether the first line has the names; else `columns` are all, in order."
    )
    delimiter: Annotated[
        str, Field(min_length=1, max_length=1), pydantic.BeforeValidator(_character)
    ] = Field(",", description="What separates the cells.")


class Parquet(Table):
    """Parquet files; features are a dict of columns."""

    kind: Literal["parquet"] = Field("parquet", description="parquet: Parquet files.")


class Npz(Input):
    """Arrays from a NumPy archive, rows along axis 0."""

    kind: Literal["npz"] = Field("npz", description="npz: a NumPy archive.")
    file: types.PathText = Field(description="The path.")
    features: _Arrays | None = Field(
        None,
        description="Array names as a list, or feature name to array name: features are a dict; "
        "one name as a text: features are that array. null: a dict of all but the label.",
    )
    label: types.Text | None = Field(
        None, description="The array that is the label; null where there is none."
    )
    rows: _Rows | None = Field(
        None,
        description="[start, stop]: only these rows, e.g. to hold a test split out.",
    )
    dtypes: dict[str, catalog.Dtype] = Field(
        {},
        description="For a feature or array, the dtype to convert it to.",
    )


def _flat(value: Any) -> list[Any]:
    """Returns the values in a nest of lists."""
    return [one for part in value for one in _flat(part)] if isinstance(value, list) else [value]


def _can_be(value: object, dtype: str) -> bool:
    """Tells whether a value is one of a dtype, not just a text that stands for one."""
    try:
        cell_values.text_of(value, dtype)
    except ValueError:
        return False
    return isinstance(value, str) == (dtype == "string")


class Feature(types.Section):
    """How one feature of a tf.train.Example is read."""

    FORM = "a mapping that says how it is read, as {dtype: float32}"
    dtype: Literal["float32", "int64", "string"] = Field(
        description="float32, int64 or string, as Examples have them."
    )
    shape: Annotated[tuple[types.NotNegative, ...], SHAPE] = Field(
        (), description="Of a fixed feature, without the batch; [] is one value."
    )
    kind: Literal["fixed", "sparse", "ragged"] = Field(
        "fixed", description="fixed, sparse (becomes a SparseTensor) or ragged."
    )
    default: types.Anything = Field(
        None,
        description="Of a fixed feature, where an Example lacks it: one value for all of its "
        "shape, or a list of as many; null: it must be there.",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.kind != "fixed" and (self.shape or self.default is not None):
            yield "kind", f"must be fixed to have shape or default, got {self.kind!r}."
        if self.default is None:
            return
        values, size = _flat(self.default), math.prod(self.shape)
        if isinstance(self.default, list) and len(values) != size:
            rule = f"one value or a list of {size}, as many as its shape has, got {len(values)}"
            yield "default", f"must be {rule}. Correct it, or shape."
        for value in values:
            if not _can_be(value, self.dtype):
                yield "default", f"must be {self.dtype} as dtype says, got {value!r}. Correct it."
                return


_Features = Annotated[
    types.Named[Feature],
    types.form(dict, "a mapping of features to how they are read, as {age: {dtype: float32}}"),
]


class Tfrecord(Divisible):
    """tf.train.Examples in TFRecord files."""

    kind: Literal["tfrecord"] = Field("tfrecord", description="tfrecord: tf.train.Examples.")
    file: _Files = Field(description="One path or several; `*` and `?` stand for any characters.")
    features: _Features = Field(description="For each feature, its label too, how it is read.")
    label: types.Text | None = Field(
        None, description="The feature that is the label; null where there is none."
    )
    compression: Literal["none", "GZIP", "ZLIB"] = Field(
        "none", description="How the files are compressed."
    )
    parallel_reads: Annotated[int, types.number(int, 1, _MAX_READS)] = Field(
        1,
        description="How many files are read at a time. Above 1, records come from so many files "
        "in turn, always in the same order where nothing is shuffled.",
    )
    cache: types.Boolean = Field(
        False,
        description="true: the records are kept in memory until a training, or one evaluation, is "
        "over.",
    )

    @property
    def compression_type(self) -> str:
        """How the files are compressed, as `tf.data` has it."""
        return "" if self.compression == "none" else self.compression

    def for_predictions(self, features: Collection[str] | None = None) -> "Tfrecord":
        """See base class."""
        chosen = _chosen(self.features, self.label, features)
        return self.model_copy(update={"features": chosen, "label": None})

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        if self.label is not None and self.label not in self.features:
            then = types.meant(self.label, self.features, "Add it there.")
            yield "label", f"must be one of features, got {self.label!r}. {then}"


class Function(Divisible):
    """A function that returns a `tf.data.Dataset`, called with what it names."""

    kind: Literal["function"] = Field("function", description="function: one of yours.")
    function: types.Function = Field(
        description="`package.module:function`; may name `mode`, `params`, `batch_size`."
    )
    batched: types.Boolean | None = Field(
        None,
        description="Whether its dataset is batched already; null: found out from its graph and "
        "its shapes.",
    )
    cache: types.Boolean = Field(
        False,
        description="true: what the function's dataset yields is kept in memory until a training, "
        "or one evaluation, is over. The function may keep it in files: `dataset.cache(path)`.",
    )


def _spelt_out(value: object) -> object:
    """Takes a function's bare name for a mapping."""
    return {"kind": "function", "function": value} if isinstance(value, str) else value


AnyTable: TypeAlias = Csv | Parquet
AnyInput: TypeAlias = AnyTable | Npz | Tfrecord | Function

_Section = Annotated[
    AnyInput, types.one_section(*get_args(AnyInput), or_else=", or package.module:function")
]
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
