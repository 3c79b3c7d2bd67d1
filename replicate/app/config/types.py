"""The types of a config's values, for pydantic; and the known word that is nearest to another."""

import difflib
import os
import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import pydantic
import pydantic_core
from pydantic import Field

from replicate.app.config import catalog, documents, files

T = TypeVar("T")
S = TypeVar("S", bound="Section")
KeyPath: TypeAlias = documents.KeyPath

_FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_MOST = 2**63 - 1
_BYTES = r"\d+(\.\d+)? ?([kKMGT]i?)?B"


class Unknown(NamedTuple):
    """The value of an unknown key, and the keys that are known there."""

    value: object
    known: tuple[str, ...]


class Section(pydantic.BaseModel):
    """A mapping of known keys. Values do not change once they are read."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        defer_build=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_known(cls, data: Any) -> Any:
        """Notes beside each unknown key which ones are known."""
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        return {k: one if k in known else Unknown(one, tuple(known)) for k, one in data.items()}

    @pydantic.model_validator(mode="after")
    def _require_rules(self: S) -> S:
        """Refuses values of which each by itself is right."""
        broken = [
            pydantic_core.InitErrorDetails(
                type=pydantic_core.PydanticCustomError("rule", "{text}", {"text": text}),
                loc=path,
                input=None,
            )
            for path, text in self.faults()
        ]
        if broken:
            raise pydantic_core.ValidationError.from_exception_data("config", broken)
        return self

    def faults(self) -> Iterable[tuple[KeyPath, str]]:
        """Yields (path, rule) for rules between keys that are broken."""
        return ()


def _whole(value: object) -> object:
    """Takes 1e3 for the whole number that it is, and none that TensorFlow cannot hold."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, int) and abs(value) > _MOST:
        raise ValueError(f"must be at most {_MOST}")
    return value


def _resolved(value: object) -> object:
    """Returns a path as an absolute one, if it is relative to the folder of a file."""
    folder = getattr(value, "folder", None)
    if not value or folder is None or "://" in str(value):
        return value
    return os.path.abspath(os.path.join(folder, os.path.expanduser(str(value))))


def _written(path: str, info: pydantic.SerializationInfo) -> str:
    """Returns a path as a config in a folder, the context, has it."""
    return path if info.context is None else files.relative(path, info.context)


def _bytes(value: object) -> object:
    """Takes a number of bytes, or a text that pydantic reads whole."""
    if not isinstance(value, str):
        return _whole(value)
    if re.fullmatch(_BYTES, value) is None:
        raise ValueError("must be a number of bytes, such as 67108864, 64MB or 64MiB")
    return value


WHOLE = pydantic.BeforeValidator(_whole)
Whole = Annotated[int, WHOLE]
Positive = Annotated[int, Field(ge=1), WHOLE]
NotNegative = Annotated[int, Field(ge=0), WHOLE]
Bytes = Annotated[
    pydantic.ByteSize,
    Field(ge=1),
    pydantic.BeforeValidator(_bytes),
    pydantic.WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": f"^{_BYTES}$", "examples": ["64MB"]},
            ]
        }
    ),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
AtLeastZero = Annotated[Number, Field(ge=0)]
AboveZero = Annotated[Number, Field(gt=0)]
Anything = Annotated[
    Any,
    pydantic.GetPydanticSchema(lambda _, handler: handler.generate_schema(pydantic.JsonValue)),
    pydantic.WithJsonSchema({}),
]
Text = Annotated[str, Field(min_length=1)]
# Whether it exists is known when it is used.
Function = Annotated[
    str,
    Field(pattern=_FUNCTION),
    pydantic.WithJsonSchema({"type": "string", "pattern": rf"{_FUNCTION}|\$\{{"}),  # a variable
]
FilePath = Annotated[
    Text, pydantic.BeforeValidator(_resolved), pydantic.PlainSerializer(_written, str)
]
Items = Annotated[tuple[T, ...], Field(strict=False)]
Several = Annotated[Items[T], Field(min_length=1)]
Named = Annotated[dict[str, T], Field(min_length=1)]


def is_function(value: object) -> bool:
    """Tells whether a value is a function's name as `package.module:function`."""
    return isinstance(value, str) and re.match(_FUNCTION, value) is not None


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the known word most like this one, or meant by it; nothing where none is.

    A word that begins like this one comes before one that looks like it: `id` for `ident`, not
    `rent`. Where several may be meant: `int32 or int64`.
    """
    known = list(known)
    others = [name for name in catalog.OTHER_NAMES.get(word.lower(), ()) if name in known]
    if others and word not in known:
        return " or ".join(others)
    word, by_lower = word.lower(), {name.lower(): name for name in known}
    begun = [one for one in by_lower if word.startswith(one) or one.startswith(word)]
    begun = [one for one in begun if min(len(one), len(word)) > 1]
    alike = difflib.get_close_matches(word, begun or by_lower, n=1, cutoff=0.0 if begun else 0.6)
    return by_lower[alike[0]] if alike else ""


def meant(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Asks whether the nearest known word is meant; where none is near, says something else."""
    near = nearest(word, known)
    return f"Did you mean {near}?" if near else otherwise
