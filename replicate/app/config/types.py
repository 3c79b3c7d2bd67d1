"""The types that values of a config have: what each takes, and the rule it tells otherwise.

pydantic reads the values. What stands here is what it cannot say by itself: numbers as YAML
writes them, paths relative to the config's folder, unions that go by a value's type, and rules
between keys. `faults` shows the texts of `expected` and `fault` as they are.
"""

import contextlib
import dataclasses
import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, Union, get_args

import pydantic
import pydantic_core

from replicate.app.config import catalog

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S", bound="Section")
Type: TypeAlias = Any
"""What pydantic reads a value by: a class, a union, an Annotated."""
Fault: TypeAlias = tuple[tuple[str | int, ...], object, pydantic_core.PydanticCustomError]
"""The path below what is read, the value there, and what is wrong with it."""

_FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
FUNCTION_FORM = {"pattern": rf"{_FUNCTION}|\$\{{"}  # or a variable
TAG = "\0"  # begins the parts of an error's place that are no keys, but members of a union
_MAX_WHOLE = 2**63 - 1
_TYPO, _ALIKE = 0.8, 0.6  # how much of two words is the same, of 1


@dataclasses.dataclass
class Reading:
    """What is known while a document is read; pydantic hands it to every check.

    Attributes:
        folder: What relative paths are relative to.
        sections: For each mapping that was read, by its id: it, and what could be read of it.
        values: Of each section that is being read, the outermost first: what was read so far.
    """

    folder: Path
    sections: dict[int, tuple[object, "Section"]] = dataclasses.field(default_factory=dict)
    values: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def section_of(self, mapping: object, kind: type[S]) -> S:
        """Returns what was read of a mapping; an empty section of a kind where nothing was."""
        found: object = self.sections.get(id(mapping), (mapping, None))[1]
        empty: Any = kind.model_construct()  # to pydantic's plugin it is one of the bound
        return found if isinstance(found, kind) else empty

    def part_of(
        self, value: Any, read: Callable[[Any], Any], error: pydantic.ValidationError
    ) -> Any:
        """Returns a list or a mapping with wrong items, as far as it can be read; else None."""
        items = value if isinstance(value, dict) else {}
        items = dict(enumerate(value)) if isinstance(value, list) else items
        wrong: dict[object, object] = {}
        for one in error.errors():
            for key in [part for part in one["loc"] if part in items][:1]:
                wrong[key] = self.sections.get(id(items[key]), (None, _Unread()))[1]
        if not wrong:
            return None
        left = {key: one for key, one in items.items() if key not in wrong}
        try:
            good = left and read(left if isinstance(value, dict) else list(left.values()))
        except pydantic.ValidationError:
            return None
        good = good if isinstance(good, dict) else dict(zip(left, good, strict=True))
        made = {key: wrong[key] if key in wrong else good[key] for key in items}
        return made if isinstance(value, dict) else tuple(made.values())


class UnreadError(Exception):
    """What a config says of a key could not be read, and is asked for."""


class _Unread:
    """Stands in a list or a mapping for an item that could not be read."""

    def _ask(self, *_: object) -> Any:
        raise UnreadError

    __getattr__ = __eq__ = __lt__ = __gt__ = _ask
    __hash__ = object.__hash__


class Section(pydantic.BaseModel):
    """A mapping of known keys. Values do not change once they are read."""

    FORM: ClassVar[str] = "a mapping of keys to values"  # what is told of anything else
    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", defer_build=True, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: pydantic_core.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """See base class; tells what a config needs, which is not what this class needs."""
        made = handler(core_schema)
        own = handler.resolve_ref_schema(made)
        keys = own.get("properties", {})
        named = [name for name in ("kind", "name") if "const" in keys.get(name, ())]
        required = [name for name in own.get("required", ()) if name not in cls.filled_in()]
        own.pop("required", None)
        if named + required:
            own["required"] = named + required
        return made

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _note(
        cls,
        data: Any,
        handler: Callable[[Any], "Section"],
        info: pydantic.ValidationInfo,
    ) -> "Section":
        """Notes what is read of a mapping, and, where it is wrong, of its other keys."""
        if not isinstance(data, dict | Section):
            raise expected(cls.FORM)
        reading = info.context
        if not isinstance(reading, Reading) or not isinstance(data, dict):
            return handler(data)
        reading.values.append({})
        try:
            made = handler(data)
        except pydantic.ValidationError as e:
            made = cls.model_construct(**reading.values[-1])
            made.model_post_init(reading)
            for name in {str(one["loc"][0]) for one in e.errors()} - reading.values[-1].keys():
                made.__dict__.pop(name, None)
            raise
        finally:
            reading.values.pop()
            reading.sections[id(data)] = data, made
        return made

    @pydantic.field_validator("*", mode="wrap")
    @classmethod
    def _note_value(
        cls, value: object, handler: Callable[[object], object], info: pydantic.ValidationInfo
    ) -> object:
        """Notes what is read of a key; where it is wrong, the part of it that can be read."""
        if not isinstance(info.context, Reading):
            return handler(value)
        name, reading = str(info.field_name), info.context
        try:
            read = reading.values[-1][name] = handler(value)
        except pydantic.ValidationError as e:
            part = reading.sections.get(id(value), (None, None))[1]
            if getattr(cls.model_fields[name].annotation, "__origin__", None) in (dict, tuple):
                part = reading.part_of(value, handler, e)
            if part is not None:
                reading.values[-1][name] = part
            raise
        return read

    @classmethod
    def known_keys(cls) -> tuple[str, ...]:
        """Returns the keys that may stand here."""
        return tuple(cls.model_fields)

    @classmethod
    def filled_in(cls) -> Mapping[str, str]:
        """Returns what stands for required keys that a file may lack, in words."""
        return {}

    @classmethod
    def missing_text(cls, name: str) -> str:
        """Returns what is said where a key is required and not there."""
        return f"the key {name} is required here. Add it."

    def faults(self) -> Iterable[tuple[str, str]]:
        """Yields (key, rule) for rules between keys that are broken."""
        return ()

    if not TYPE_CHECKING:  # to which any attribute would be known

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise UnreadError(name)
            return super().__getattr__(name)


def known(*parts: Iterable[T]) -> Iterator[T]:
    """Yields what all parts yield; one that asks for a key that could not be read ends there."""
    for part in parts:
        with contextlib.suppress(UnreadError):
            yield from part


def each(ask: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Yields what is asked of items, but of those that it could not be read of."""
    return known(*(map(ask, (one,)) for one in items))


def expected(rule: str, then: str = "") -> pydantic_core.PydanticCustomError:
    """Returns the error that a value is not what the rule says, and what to do then."""
    return pydantic_core.PydanticCustomError("expected", "{rule}", {"rule": rule, "then": then})


def fault(text: str) -> pydantic_core.PydanticCustomError:
    """Returns the error of a rule that is broken, in a text of its own."""
    return pydantic_core.PydanticCustomError("fault", "{rule}", {"rule": text})


def refuse(faults: Iterable[Fault]) -> None:
    """Raises all faults at once, if any."""
    details = [
        pydantic_core.InitErrorDetails(type=error, loc=path, input=value)
        for path, value, error in faults
    ]
    if details:
        raise pydantic_core.ValidationError.from_exception_data("config", details)


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the known word most like this one, or meant by it; nothing where none is.

    A word that begins like this one comes before one that looks like it: `id` for `ident`, not
    `rent`. Where several may be meant: `int32 or int64`.
    """
    known = list(known)
    meant = [name for name in catalog.OTHER_NAMES.get(word.lower(), ()) if name in known]
    if meant and word not in known:
        return " or ".join(meant)
    word, by_lower = word.lower(), {name.lower(): name for name in known}
    begun = [one for one in by_lower if word.startswith(one) or one.startswith(word)]
    begun = [one for one in begun if min(len(one), len(word)) > 1]
    for names, cutoff in ((by_lower, _TYPO), (begun, 0.0), (by_lower, _ALIKE)):
        found = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
        if found:
            return by_lower[found[0]]
    return ""


def meant(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Asks whether the nearest known word is meant; where none is near, says something else."""
    near = nearest(word, known)
    return f"Did you mean {near}?" if near else otherwise


def one_of(
    names: Sequence[str], value: object, then: str = ""
) -> pydantic_core.PydanticCustomError:
    """Returns the error of a value that is none of a few words."""
    return expected(f"one of {', '.join(names)}", then or meant(str(value), names))


def _plain(value: Any) -> Any:
    """Returns a value without what `yaml_walk` notes on texts."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise expected("a text", "Put it in quotes if it looks like a number.")
    return value


def _character(value: object) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '\0\r\n"':
        raise expected("a single character in quotes, which ends no line and is no quote")
    return value


def is_function(value: object) -> bool:
    """Tells whether a value is a function's name as `package.module:function`."""
    return isinstance(value, str) and re.match(_FUNCTION, value) is not None


def _function(value: object) -> object:
    if not is_function(value):
        raise expected("a function's name as package.module:function", with_colon(value))
    return value


def with_colon(value: object) -> str:
    """Returns what is meant by a function's name in which the colon is a dot."""
    meant = ":".join(value.rsplit(".", 1)) if isinstance(value, str) else ""
    return f"Did you mean {meant}?" if is_function(meant) else ""


class File(str):
    """A path as it was read, so that it is told from other texts."""


def path_of(value: str, folder: Path | str | None) -> str:
    """Returns a path; a relative one is put below the folder it is relative to, if any.

    Raises:
        PydanticCustomError: If it cannot be a path.
    """
    if "\0" in value:
        raise expected("a path without the character 0", "Remove it.")
    if "://" in value or folder is None:
        return value
    try:
        return os.path.abspath(Path(folder, Path(value).expanduser()))
    except RuntimeError:
        rule = "a path in a home folder that is known"
        raise expected(rule, "Write the path without ~.") from None


def path(value: object, info: pydantic.ValidationInfo) -> str:
    """Takes a path; a relative one is put below the config's folder."""
    if not isinstance(value, str) or not value:
        raise expected("a path")
    folder = info.context.folder if isinstance(info.context, Reading) else None
    return path_of(value, getattr(value, "folder", folder))


Anything = Annotated[Any, pydantic.AfterValidator(_plain)]
Boolean = Annotated[bool, pydantic.Strict()]
Text = Annotated[str, pydantic.Field(min_length=1), pydantic.BeforeValidator(_text)]
Character = Annotated[
    str, pydantic.Field(min_length=1, max_length=1), pydantic.BeforeValidator(_character)
]
# Whether it exists is known when it is used.
Function = Annotated[
    str,
    pydantic.BeforeValidator(_function),
    pydantic.WithJsonSchema({"type": "string", **FUNCTION_FORM}),
]
PathText = Annotated[
    str,
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(path),
    pydantic.AfterValidator(File),
]


def whole(minimum: int | None = None, maximum: int = _MAX_WHOLE) -> pydantic.BeforeValidator:
    """Returns what reads whole numbers that TensorFlow can hold; 1e3 is one."""
    rule = "a whole number" + ("" if minimum is None else f" of at least {minimum}")
    least = -math.inf if minimum is None else minimum

    def read(value: object) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise expected(rule)
        if abs(number) > maximum:
            raise expected(f"{rule} and at most {maximum}")
        return number

    bounds = pydantic.Field(ge=minimum, le=maximum if maximum < _MAX_WHOLE else None)
    return pydantic.BeforeValidator(read, json_schema_input_type=Annotated[int, bounds])


def number(minimum: float | None = None, *, above: float | None = None) -> pydantic.BeforeValidator:
    """Returns what reads finite numbers, at least `minimum` or truly above `above`."""
    rule = "a number"
    rule += "" if minimum is None else f" of at least {minimum:g}"
    rule += "" if above is None else f" above {above:g}"

    def read(value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise expected(rule)
        # Of whole numbers, too, some are beyond what a float can hold.
        if not abs(value) <= sys.float_info.max:
            raise expected("a finite number")
        if (minimum is not None and value < minimum) or (above is not None and value <= above):
            raise expected(rule)
        return value

    bounds = pydantic.Field(ge=minimum, gt=above)
    return pydantic.BeforeValidator(read, json_schema_input_type=Annotated[float, bounds])


Positive = Annotated[int, whole(1)]
NotNegative = Annotated[int, whole(0)]
AboveZero = Annotated[float, number(above=0)]
Several = Annotated[tuple[T, ...], pydantic.Field(min_length=1)]
Named = Annotated[dict[str, T], pydantic.Field(min_length=1)]


def mapping(rule: str) -> pydantic.BeforeValidator:
    """Returns what refuses all but mappings, with a rule that says more than pydantic's."""

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise expected(rule)
        return value

    return pydantic.BeforeValidator(read)


def _choice(kinds: Mapping[str, Type], tag_of: Callable[[Any], str], rule: str = "") -> Type:
    """Returns the type of values that are of one of several types.

    Args:
        kinds: Tag -> type.
        tag_of: Tells which one a value is to be.
        rule: What is told of a value that is of none.
    """
    told: dict[str, str | int | float] = {"rule": rule, "then": ""}
    members = tuple(Annotated[kind, pydantic.Tag(TAG + tag)] for tag, kind in kinds.items())
    return Annotated[
        Union[members],  # noqa: UP007 - as many as there are
        pydantic.Discriminator(lambda value: TAG + tag_of(value), "expected", "{rule}", told),
    ]


_FORMS: dict[type, str] = {bool: "truth", int: "number", float: "number", str: "text"}
_FORMS |= {list: "list", tuple: "list", dict: "mapping", Section: "mapping"}


def _form(kind: Type) -> str:
    """Returns what the values of a type are in YAML; nothing where they are nothing of it."""
    while hasattr(kind, "__origin__"):
        kind = kind.__origin__
    cls = kind if isinstance(kind, type) else str  # Literals are texts
    return next((form for one, form in _FORMS.items() if issubclass(cls, one)), "")


def either(rule: str) -> pydantic.GetPydanticSchema:
    """Returns what reads a union by a value's Python type, e.g. a text or a list of texts."""

    def schema(union: Type, handler: pydantic.GetCoreSchemaHandler) -> pydantic_core.CoreSchema:
        kinds = {_form(kind): kind for kind in get_args(union)}
        return handler.generate_schema(_choice(kinds, lambda value: _form(type(value)), rule))

    return pydantic.GetPydanticSchema(schema)


def one_section(
    *classes: type[Section], key: str = "kind", or_else: str = ""
) -> pydantic.GetPydanticSchema:
    """Returns what reads a mapping by the section that one of its keys names.

    Args:
        *classes: Sections with this key, each with a default of its own for it.
        key: The key that decides.
        or_else: What else the caller takes, for the fault's text.
    """
    kinds = {cls.model_fields[key].default: cls for cls in classes}

    def check(value: object) -> object:
        if isinstance(value, classes):
            return value
        if not isinstance(value, dict):
            raise expected(f"a mapping with its {key}{or_else}")
        kind = value.get(key)
        if kind is None:
            raise fault(f"the key {key} is required here: one of {', '.join(kinds)}. Add it.")
        if not isinstance(kind, str) or kind not in kinds:
            refuse([((key,), kind, one_of(list(kinds), kind))])
        return value

    def tag_of(value: Any) -> str:
        return value[key] if isinstance(value, dict) else getattr(value, key)

    made: Type = Annotated[_choice(kinds, tag_of), pydantic.BeforeValidator(check)]
    return pydantic.GetPydanticSchema(lambda _, handler: handler.generate_schema(made))


class OrText:
    """Says in a JSON Schema that a value may also be a text of some form."""

    def __init__(self, form: Mapping[str, Any]):
        self._form = form

    def __get_pydantic_json_schema__(
        self, core_schema: pydantic_core.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """See pydantic."""
        return {"anyOf": [{"type": "string", **self._form}, handler(core_schema)]}


def word_or_function(*names: str) -> pydantic.BeforeValidator:
    """Returns what reads a few words, or a function's name."""

    def read(value: object) -> object:
        if isinstance(value, str) and ":" in value:
            return _function(value)
        if not isinstance(value, str) or value not in names:
            raise one_of([*names, "package.module:function"], value, with_colon(value))
        return value

    return pydantic.BeforeValidator(read)
