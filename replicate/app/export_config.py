"""The part of a config that says what is exported: one dataclass per kind of exporter."""

import dataclasses
import posixpath
from collections import Counter
from typing import Any, ClassVar

from replicate.app import catalog, checks

__all__ = ["Best", "Export", "Exporter", "Final", "Latest", "ServingInput"]


def _folder_name(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes the name of a folder that cannot be taken for an export's own number."""
    is_name = isinstance(value, str) and value.strip(". ") and not value.isdecimal()
    if not is_name or not value.isprintable() or set(value) & set('/\\:*?"<>|'):
        reader.expected(path, "a folder's name that is no number", value)
    return value


def _assets(reader: checks.Reader, path: checks.KeyPath, value: Any) -> Any:
    """Takes a mapping of paths within an export to files."""
    found = checks.mapping(checks.path_text)(reader, path, value)
    for name in found or ():
        if (
            not name
            or "\0" in name
            or posixpath.normpath(name) != name
            or name.startswith(("/", "..", "~"))
        ):
            rule = "named by a path within assets.extra, such as vocabulary.txt"
            reader.expected((*path, name), rule, name)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingInput:
    """One tensor that a served model is fed.

    Attributes:
        dtype: Its type.
        shape: Its shape without the batch; null where a dimension is not known.
    """

    dtype: str = checks.key(checks.one_of(*catalog.DTYPES))
    shape: tuple[int | None, ...] = checks.key(checks.listing(checks.optional(checks.whole(0))), ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exporter:
    """What every kind of exporter has.

    Attributes:
        name: The folder of its exports, in export.directory; null: its kind.
    """

    KIND: ClassVar[str] = ""
    name: str | None = checks.key(checks.optional(_folder_name), None)

    @property
    def folder(self) -> str:
        """The name, or the kind in its place."""
        return self.name or self.KIND


@dataclasses.dataclass(frozen=True, kw_only=True)
class Final(Exporter):
    """Exports once, when training is over."""

    KIND: ClassVar[str] = "final"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latest(Exporter):
    """Exports after each evaluation.

    Attributes:
        exports_to_keep: How many exports to keep, the newest; null: all.
    """

    KIND: ClassVar[str] = "latest"
    exports_to_keep: int | None = checks.key(checks.optional(checks.whole(1)), 5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(Latest):
    """Exports after an evaluation that is better than those of all exports before.

    Attributes:
        metric: The metric that is compared.
        higher_is_better: Whether more of it is better.
    """

    KIND: ClassVar[str] = "best"
    metric: str = checks.key(checks.text, "loss")
    higher_is_better: bool = checks.key(checks.boolean, False)


_EXPORTERS = {cls.KIND: cls for cls in (Final, Latest, Best)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """How to export SavedModels.

    Attributes:
        directory: Each export is a new folder in it; null: `export` in model_dir.
        towers: one: an unplaced single tower; merged: all towers.
        as_text: Whether to write graphs as text.
        assets_extra: Path below `assets.extra` in the export -> file to copy there.
        after_training: Whether `train` ends with an export into directory itself.
        exporters: What `train` exports besides, after evaluations or at its end.
        inputs: For each feature, what the served model is fed; null: as the features of
            predict.input, else of eval.input, else of train.input.
    """

    directory: str | None = checks.key(checks.optional(checks.path_text), None)
    towers: str = checks.key(checks.one_of("one", "merged"), "one")
    as_text: bool = checks.key(checks.boolean, False)
    assets_extra: dict[str, str] = checks.key(_assets, dict)
    after_training: bool = checks.key(checks.boolean, True)
    exporters: tuple[Exporter, ...] = checks.key(checks.listing(checks.one_kind(_EXPORTERS)), ())
    inputs: dict[str, ServingInput] | None = checks.key(
        checks.optional(
            checks.mapping(
                checks.section(ServingInput, "a mapping such as {dtype: float32, shape: [8]}"),
                1,
                "a mapping of features to what is fed, as {age: {dtype: float32}}",
            )
        ),
        None,
    )

    def faults(self):
        """Yields rules between keys that are broken."""
        for name, count in Counter(one.folder for one in self.exporters).items():
            if count > 1:
                yield (
                    "exporters",
                    f"must have different names, got {count} times {name!r}. Set their name.",
                )
