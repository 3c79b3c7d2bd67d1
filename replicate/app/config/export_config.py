"""The part of a config that says what is exported: one section per kind of exporter."""

import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from replicate.app.config import catalog, checks

__all__ = ["Best", "Export", "Exporter", "Final", "Latest", "ServingInput"]


def _folder_name(value: Any) -> str:
    """Takes the name of a folder that cannot be taken for an export's own number."""
    is_name = isinstance(value, str) and value.strip(". ") and not value.isdecimal()
    if not is_name or not value.isprintable() or set(value) & set('/\\:*?"<>|'):
        raise checks.expected("a folder's name that is no number")
    return value


def _asset(name: str) -> str:
    """Takes a path within an export."""
    is_plain = name and "\0" not in name and posixpath.normpath(name) == name
    if not is_plain or name.startswith(("/", "..", "~")):
        raise checks.expected("named by a path within assets.extra, such as vocabulary.txt")
    return name


class ServingInput(checks.Section):
    """One tensor that a served model is fed."""

    dtype: Literal[catalog.DTYPES] = Field(description="Its type.")
    shape: checks.listing(checks.whole(0) | None) = Field(
        (), description="Its shape without the batch; null where a dimension is not known."
    )


class Exporter(checks.Section):
    """What every kind of exporter has."""

    kind: str
    name: Annotated[str, pydantic.BeforeValidator(_folder_name)] | None = Field(
        None, description="The folder of its exports, in export.directory; null: its kind."
    )

    @property
    def folder(self) -> str:
        """The name, or the kind in its place."""
        return self.name or self.kind


class Final(Exporter):
    """Exports once, when training is over."""

    kind: Literal["final"] = Field("final", description="final: once, when training is over.")


class Latest(Exporter):
    """Exports after each evaluation."""

    kind: Literal["latest"] = Field("latest", description="latest: after each evaluation.")
    exports_to_keep: checks.whole(1) | None = Field(
        5, description="How many exports to keep, the newest; null: all."
    )


class Best(Latest):
    """Exports after an evaluation that is better than those of all exports before."""

    kind: Literal["best"] = Field(
        "best", description="best: after an evaluation that is better than all exported before."
    )
    metric: checks.Text = Field("loss", description="The metric that is compared.")
    higher_is_better: checks.Boolean = Field(False, description="Whether more of it is better.")


class Export(checks.Section):
    """How to export SavedModels."""

    directory: checks.PathText | None = Field(
        None, description="Each export is a new folder in it; null: `export` in model_dir."
    )
    towers: Literal["one", "merged"] = Field(
        "one", description="one: an unplaced single tower; merged: all towers."
    )
    as_text: checks.Boolean = Field(False, description="Whether to write graphs as text.")
    assets_extra: dict[Annotated[str, pydantic.AfterValidator(_asset)], checks.PathText] = Field(
        {},
        description="Path below `assets.extra` in the export, and the file to copy there.",
    )
    after_training: checks.Boolean = Field(
        True, description="Whether `train` ends with an export into directory itself."
    )
    exporters: checks.listing(checks.one_kind(Final, Latest, Best)) = Field(
        (), description="What `train` exports besides, after evaluations or at its end."
    )
    inputs: (
        Annotated[
            dict[
                str,
                Annotated[
                    ServingInput,
                    checks.must_be(
                        dict | ServingInput, "a mapping such as {dtype: float32, shape: [8]}"
                    ),
                ],
            ],
            Field(min_length=1),
            checks.must_be(
                dict, "a mapping of features to what is fed, as {age: {dtype: float32}}"
            ),
        ]
        | None
    ) = Field(
        None,
        description="For each feature, what the served model is fed; null: as the features of "
        "predict.input, else of eval.input, else of train.input.",
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        for name, count in Counter(one.folder for one in self.exporters).items():
            if count > 1:
                yield (
                    "exporters",
                    f"must have different names, got {count} times {name!r}. Set their name.",
                )
