"""The types that values of a config have: what each takes, and the rule it tells otherwise.

pydantic reads the values. What stands here is what it cannot say by itself: numbers as YAML
writes them, paths relative to the config's folder, unions that go by a value's form, and the texts
of its errors, which every section gives its own.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, Union

import pydantic
import pydantic_core

from replicate.app.config import catalog

T = TypeVar("T")
Type: TypeAlias = Any
"""What pydantic reads a value by: a class, a union, an Annotated."""
KeyPath: TypeAlias = tuple[str | int, ...]
Fault: TypeAlias = tuple[KeyPath, object, str]
"""The path below what is read, the value there, and what is wrong with it."""

_FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_MAX_WHOLE = 2**63 - 1
_TYPO, _ALIKE = 0.8, 0.6  # how much of two words is the same, of 1
TAG = "\0"  # begins the parts of an error's place that are no keys, but forms of a union
_FORMS = {bool: "truth", int | float: "number", str: "text", list | tuple: "list", dict: "mapping"}
_RULES = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "tuple_type": "a list",
}
_COUNTS = {"Tuple": "a list of at least {} values", "Dictionary": "a mapping of at least {} keys"}


class Section(pydantic.BaseModel):
    """A mapping of known keys. Values do not change once they are read."""

    FORM: ClassVar[str] = _RULES["dict_type"]  # what is told of anything else
    ALSO: ClassVar[tuple[str, ...]] = ()  # keys that are read before
    FILLED_IN: ClassVar[Mapping[str, str]] = {}  # what stands for required keys, in words
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
        required = [name for name in own.pop("required", ()) if name not in cls.FILLED_IN]
        if named + required:
            own["required"] = named + required
        return made

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: Callable[[Any], "Section"]) -> "Section":
        """Gives every error its text, and tells the rules between keys."""
        if not isinstance(data, dict | Section):
            raise expected(cls.FORM, data)
        try:
            made = handler(data)
        except pydantic.ValidationError as e:
            refuse(cls._faults_of(e.errors(include_url=False), data))
            raise
        refuse(((key,), getattr(made, key), text) for key, text in made.faults())
        return made

    @classmethod
    def _faults_of(cls, details: Sequence[Any], data: Any) -> Iterator[Fault]:
        """Yields unknown keys, then the other faults; not that a key meant by one is missing."""
        known, right = (*cls.ALSO, *cls.model_fields), set()
        for one in details:
            if one["type"] == "extra_forbidden":
                name = str(one["loc"][0])
                right.add(nearest(name, known))
                then = _spaced({name: data[name]})
                then = then or meant(name, known, f"Known: {', '.join(sorted(known))}.")
                yield one["loc"], one["input"], f"unknown key. {then}"
        for one in details:
            path, value = one["loc"], one["input"]
            if one["type"] == "extra_forbidden" or (path and path[0] in right - data.keys()):
                continue
            if one["type"] == "missing":
                yield (), value, cls.missing_text(str(path[0]))
            else:
                yield path, value, _text_of(one)

    @classmethod
    def missing_text(cls, name: str) -> str:
        """Returns what is said where a key is required and not there."""
        return f"the key {name} is required here. Add it."

    def faults(self) -> Iterable[tuple[str, str]]:
        """Yields (key, rule) for rules between keys that are broken."""
        return ()


def _text_of(detail: Any) -> str:
    """Returns the text of an error that is no section's."""
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "fault":
        return str(detail["msg"])
    if kind == "literal_error":
        return one_of(re.findall(r"'([^']*)'", context["expected"]), value).message()
    rule = context.get("rule") or _RULES.get(kind)
    if kind == "too_short":
        rule = _COUNTS[context["field_type"]].format(context["min_length"])
    return expected(rule, value).message() if rule else f"must be valid, got {value!r}."


def keys_of(place: Sequence[str | int], data: Any) -> KeyPath:
    """Returns the keys on the way to an error, without what pydantic puts between them."""
    path: list[str | int] = []
    for n, part in enumerate(place, 1):
        is_last, is_whole = n == len(place), not path
        within = data if isinstance(data, dict) else {}
        # A section goes by its kind or name, but the whole config.
        is_tag = part in (within.get("kind"), within.get("name")) and not is_whole
        is_tag = is_tag or str(part).startswith(TAG)
        has_it = part in within or (isinstance(data, list) and part in range(len(data)))
        if (has_it and (is_last or not is_tag)) or (is_last and within and not is_tag):
            path.append(part)
            data = data[part] if has_it else None
    return tuple(path)


def expected(rule: str, value: object, then: str = "") -> pydantic_core.PydanticCustomError:
    """Returns the error that a value is not what the rule says, and what to do then."""
    then = then or _spaced(value)
    return fault(f"must be {rule}, got {value!r}." + (f" {then}" if then else ""))


def fault(text: str) -> pydantic_core.PydanticCustomError:
    """Returns the error of a rule that is broken."""
    return pydantic_core.PydanticCustomError("fault", "{text}", {"text": text})


def refuse(faults: Iterable[Fault]) -> None:
    """Raises all faults at once, if any."""
    details = [
        pydantic_core.InitErrorDetails(type=fault(text), loc=path, input=value)
        for path, value, text in faults
    ]
    if details:
        raise pydantic_core.ValidationError.from_exception_data("config", details)


def _spaced(value: object) -> str:
    """Returns what to do about `{cpu:2}`, which YAML takes for a key `cpu:2` without a value."""
    keys = [key for key, one in value.items() if one is None] if isinstance(value, dict) else ()
    joined = [key.partition(":") for key in keys if isinstance(key, str) and ":" in key]
    return f"YAML wants a space after the colon: {joined[0][0]}: {joined[0][2]}" if joined else ""


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
    rule = f"one of {', '.join(names)}"
    return expected(rule, value, then or meant(str(value), names))


def form(kind: type, rule: str, **schema: Type) -> pydantic.BeforeValidator:
    """Returns what refuses all but values of a Python type, with a rule that says more."""

    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise expected(rule, value)
        return value

    return pydantic.BeforeValidator(read, **schema)


def either(rule: str) -> pydantic.GetPydanticSchema:
    """Returns what tells the members of a union apart by a value's form, which their Tag names."""

    def form_of(value: object) -> str:
        value = {} if isinstance(value, Section) else value
        return next((TAG + name for kind, name in _FORMS.items() if isinstance(value, kind)), "")

    by_form = pydantic.Discriminator(form_of, "form", "{rule}", {"rule": rule})
    return pydantic.GetPydanticSchema(
        lambda union, handler: handler.generate_schema(Annotated[union, by_form])
    )


def tag(form: str) -> pydantic.Tag:
    """Says which form of value a member of a union takes; see `either`."""
    return pydantic.Tag(TAG + form)


def one_section(
    *classes: type[Section], key: str = "kind", or_else: str = ""
) -> pydantic.GetPydanticSchema:
    """Returns what reads a mapping by the section that one of its keys names.

    Args:
        *classes: Sections with this key, each with a default of its own for it.
        key: The key that decides.
        or_else: What else the caller takes, for the fault's text.
    """
    names = [cls.model_fields[key].default for cls in classes]

    def check(value: object) -> object:
        if isinstance(value, classes):
            return value
        if not isinstance(value, dict):
            raise expected(f"a mapping with its {key}{or_else}", value)
        kind = value.get(key)
        if kind is None:
            then = _spaced(value) or "Add it."
            raise fault(f"the key {key} is required here: one of {', '.join(names)}. {then}")
        if kind not in names:
            refuse([((key,), kind, one_of(names, kind).message())])
        return value

    made: Type = Annotated[
        Union[classes],  # noqa: UP007 - as many as there are
        pydantic.Field(discriminator=key),
        pydantic.BeforeValidator(check),
    ]
    return pydantic.GetPydanticSchema(lambda _, handler: handler.generate_schema(made))


def _plain(value: Any) -> Any:
    """Returns a value without what `yaml_nodes` notes on texts."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise expected("a text", value, "Put it in quotes if it looks like a number.")
    return value


def is_function(value: object) -> bool:
    """Tells whether a value is a function's name as `package.module:function`."""
    return isinstance(value, str) and re.match(_FUNCTION, value) is not None


def _function(value: object) -> object:
    if not is_function(value):
        raise expected("a function's name as package.module:function", value, with_colon(value))
    return value


def with_colon(value: object) -> str:
    """Returns what is meant by a function's name in which the colon is a dot."""
    meant = ":".join(value.rsplit(".", 1)) if isinstance(value, str) else ""
    return f"Did you mean {meant}?" if is_function(meant) else ""


def word_or_function(*names: str) -> pydantic.BeforeValidator:
    """Returns what reads a few words, or a function's name."""

    def read(value: object) -> object:
        if isinstance(value, str) and ":" in value:
            return _function(value)
        if not isinstance(value, str) or value not in names:
            raise one_of([*names, "package.module:function"], value, with_colon(value))
        return value

    return pydantic.BeforeValidator(read)


class File(str):
    """A path as it was read, so that it is told from other texts."""


def path_of(value: str, folder: Path | str | None) -> str:
    """Returns a path; a relative one is put below the folder it is relative to, if any.

    Raises:
        PydanticCustomError: If it cannot be a path.
    """
    if "\0" in value:
        raise expected("a path without the character 0", value, "Remove it.")
    if "://" in value or folder is None:
        return value
    try:
        return os.path.abspath(Path(folder, Path(value).expanduser()))
    except RuntimeError:
        rule = "a path in a home folder that is known"
        raise expected(rule, value, "Write the path without ~.") from None


def _path(value: object, info: pydantic.ValidationInfo) -> str:
    """Takes a path; a relative one is put below the config's folder, which is the context."""
    if not isinstance(value, str) or not value:
        raise expected("a path", value)
    return path_of(value, getattr(value, "folder", info.context))


def number(
    kind: type[int] | type[float] = float,
    ge: float | None = None,
    le: float | None = None,
    *,
    gt: float | None = None,
) -> pydantic.BeforeValidator:
    """Returns what reads finite numbers, or whole ones that TensorFlow can hold; 1e3 is one."""
    is_whole = kind is int
    rule = "a whole number" if is_whole else "a number"
    rule += "" if ge is None else f" of at least {ge:g}"
    rule += "" if gt is None else f" above {gt:g}"
    most: float = _MAX_WHOLE if is_whole else sys.float_info.max
    most = most if le is None else le

    def read(value: object) -> int | float:
        if is_whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise expected(rule, value)
        if (ge is not None and value < ge) or (gt is not None and value <= gt):
            raise expected(rule, value)
        if not abs(value) <= most:
            of_range = f"{rule} and at most {most}" if is_whole else "a finite number"
            raise expected(of_range, value)
        return value

    bounds = pydantic.Field(ge=ge, le=le, gt=gt)
    return pydantic.BeforeValidator(read, json_schema_input_type=Annotated[kind, bounds])


Anything = Annotated[Any, pydantic.AfterValidator(_plain)]
Boolean = Annotated[bool, pydantic.Strict(), tag("truth")]
Text = Annotated[str, pydantic.Field(min_length=1), pydantic.BeforeValidator(_text), tag("text")]
# Whether it exists is known when it is used.
Function = Annotated[
    str,
    pydantic.BeforeValidator(_function),
    pydantic.WithJsonSchema({"type": "string", "pattern": rf"{_FUNCTION}|\$\{{"}),  # a variable
    tag("text"),
]
PathText = Annotated[
    str,
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(_path),
    pydantic.AfterValidator(File),
    tag("text"),
]
Positive = Annotated[int, number(int, 1), tag("number")]
NotNegative = Annotated[int, number(int, 0)]
AboveZero = Annotated[float, number(gt=0)]
Several = Annotated[tuple[T, ...], pydantic.Field(min_length=1), tag("list")]
Named = Annotated[dict[str, T], pydantic.Field(min_length=1), tag("mapping")]
