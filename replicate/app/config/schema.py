"""The JSON Schema of configs, for editors: from the model, so that it says what `load` takes."""

import json
from pathlib import Path
from typing import Any

from pydantic import json_schema

from replicate.app.config import config, documents

FILE = Path(__file__).with_name("config.schema.json")
BESIDE = "replicate.schema.json"  # a copy beside a config, so that a repository may have both

_VARIABLE = {
    "type": "string",
    "pattern": r"\$\{",
    "description": "A value with environment variables: ${NAME} or ${NAME:default}.",
}
_DATA = ("const", "default", "propertyNames")  # no schemas, or not of values


class _Generator(json_schema.GenerateJsonSchema):
    """Leaves out titles, which repeat the keys, and requires what unions go by."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """See base class."""
        return False

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        """See base class; the tag is required in each member, so nothing need name it."""
        made = super().tagged_union_schema(schema)
        made.pop("discriminator", None)
        return made

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """See base class."""
        made = super().model_schema(schema)
        made.pop("title", None)
        for key in made["properties"].values():
            key["description"] = " ".join(key.get("description", "").split())
        tags = [name for name, key in made["properties"].items() if "const" in key]
        if tags:
            made["required"] = [*tags, *made.get("required", ())]
        return made


def sections() -> dict[str, Any]:
    """Returns a schema for each section by its class's name, without variables and `extends`."""
    made = config.Config.model_json_schema(schema_generator=_Generator)
    return {config.Config.__name__: made, **made.pop("$defs")}


def schema() -> dict[str, Any]:
    """Returns the schema, draft 2020-12."""
    found = {name: _with_variables(one) for name, one in sections().items()}
    keys = found["Config"]["properties"]
    keys = {name: {"description": one["description"]} for name, one in keys.items()}
    return {
        "$schema": json_schema.GenerateJsonSchema.schema_dialect,
        "title": "replicate config",
        "type": "object",
        # What a base may have is not required here.
        "if": {"required": [documents.EXTENDS]},
        "then": {"properties": keys, "additionalProperties": False},
        "else": {"$ref": "#/$defs/Config"},
        "$defs": {**found, "Variable": _VARIABLE},
    }


def _with_variables(part: Any) -> Any:
    """Returns a part of a schema in which a variable may stand for what is no text."""
    if isinstance(part, list):
        return [_with_variables(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") in ("boolean", "integer", "number") or "enum" in part:
        about = {name: part[name] for name in ("default", "description") if name in part}
        rules = {name: one for name, one in part.items() if name not in about}
        return about | {"anyOf": [rules, {"$ref": "#/$defs/Variable"}]}
    return {name: one if name in _DATA else _with_variables(one) for name, one in part.items()}


def text() -> str:
    """Returns the schema as the text of its file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def line(folder: Path | None = None) -> str:
    """Returns the first line of a config, which tells editors where its schema is.

    Args:
        folder: Where the config stands: there, or in the schema's own checkout, the path is one
            for every machine. None: anywhere on this one.
    """
    checkout, place = FILE.parents[3], FILE.as_uri()
    if folder is not None and folder.absolute().is_relative_to(checkout):
        up = "../" * len(folder.absolute().relative_to(checkout).parts)
        place = up + FILE.relative_to(checkout).as_posix()
    elif folder is not None:
        place = BESIDE
    return f"# yaml-language-server: $schema={place}\n"
