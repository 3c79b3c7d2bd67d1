"""The JSON Schema of configs, for editors: from the model, so that it says what `load` takes."""

import json
from pathlib import Path
from typing import Any

from pydantic import json_schema

from replicate.app import config

__all__ = ["FILE", "line", "schema", "text"]

FILE = Path(__file__).with_name("config.schema.json")


class _Generator(json_schema.GenerateJsonSchema):
    """Leaves out titles, which repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """See base class."""
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """See base class."""
        made = super().model_schema(schema)
        made.pop("title", None)
        return made

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        """See base class; what goes by a value's type need not be exclusive."""
        made = super().tagged_union_schema(schema)
        if not all("$ref" in member for member in made.get("oneOf", ())):
            made["anyOf"] = made.pop("oneOf")
        return made


def schema() -> dict[str, Any]:
    """Returns the schema, draft 2020-12."""
    made = config.Config.model_json_schema(schema_generator=_Generator)
    about = {"$schema": json_schema.GenerateJsonSchema.schema_dialect, "title": "replicate config"}
    return about | made


def text() -> str:
    """Returns the schema as the text of its file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def line(folder: Path | None = None) -> str:
    """Returns the first line of a config, which tells editors where its schema is.

    Args:
        folder: Where the config stands; None: anywhere.
    """
    package = FILE.parents[2]
    place = FILE.as_uri()
    if folder is not None and package in (folder.absolute(), *folder.absolute().parents):
        up = "../" * len(folder.absolute().relative_to(package).parts)
        place = up + FILE.relative_to(package).as_posix()
    return f"# yaml-language-server: $schema={place}\n"
