#!/usr/bin/env python3
"""Writes what is derived from the config's model: its JSON Schema, docs/configuration.md."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_TOP))  # the checkout, so that it also runs without being installed

from replicate.app.config import catalog, documents, schema  # noqa: E402 - see above

_HEAD = """\
# Configuration

All keys of a config, from the model that reads it; `scripts/configuration.py` writes this page.
`replicate check CONFIG` names every fault of a config at once; rules between the keys of a section
are told once each key by itself is right. Where there is no fault it warns of files, modules and
functions that are not there, and of tables whose first rows do not fit. `--print-config` shows a
config with all defaults, `replicate check --schema` prints the JSON Schema. An editor with a YAML
language server completes and explains the keys of a config that begins with the line
`# yaml-language-server: $schema=…`, as those of `configs/` do.

Keys are strict. Numbers may be written as `1e-3`. Relative paths are relative to the file they
stand in, `model_dir` to the working directory. Functions are named as `package.module:function`;
modules are looked up in the config's folder, the working directory and the environment. A dtype is
one of bool, float16, float32, float64, int8, int16, int32, int64, string, uint8.

## One config on top of another

```yaml
extends: base.yaml      # relative to this file; it may extend a third one
train:
  steps: 2000           # all else of train is the base's
```

Mappings are merged key by key; lists and all else are replaced; `null` takes a section away. A
mapping of another `kind` than the base's (an input, say), or an optimizer or a schedule of another
`name`, takes no keys from there.

## Environment variables

```yaml
seed: ${SEED}                          # must be set
train:
  steps: ${STEPS:1000}                 # else 1000
  input: {kind: npz, file: "${DATA:.}/digits.npz"}
params: {greeting: "costs $${20}"}     # the text ${20}
```

A value that is not in quotes gets the type that it has with the variables filled in; in quotes it
stays a text. One variable never becomes a list or a mapping. Inside braces YAML needs the quotes,
so a number from a variable stands in a line of its own.

## On the command line

```
replicate train configs/digits.yaml --train.steps 200 --set optimizer.momentum=0.8 --seed=1
```

Each key is an option, with a space or `=`, and `--set key=value` is the same; if one is repeated,
the last wins. Values are typed as in the file.
"""
_TITLES = {
    "Config": "A config",
    "Train": "train",
    "Eval": "eval",
    "Predict": "predict",
    "Csv": "Input: csv",
    "Parquet": "Input: parquet",
    "Npz": "Input: npz",
    "Tfrecord": "Input: tfrecord",
    "Feature": "A feature of a tfrecord input",
    "Function": "Input: function",
    "Export": "export",
    "ServingInput": "A tensor of export.inputs",
    "Run": "run",
    "Cluster": "cluster",
}
_OPTIMIZERS, _SCHEDULES = "Optimizers", "Learning-rate schedules"
_ABOUT = {
    _OPTIMIZERS: """\
Those of `tf.compat.v1.train`, with its defaults. Besides: `AdamW`, Adam with a decay of weights of
its own (<https://arxiv.org/abs/1711.05101>), and `LAMB`, whose steps go by the norm of each
variable (<https://arxiv.org/abs/1904.00962>); `exclude_from_decay` has parts of the names of
variables that do not decay, e.g. `[bias, LayerNorm]`.
""",
    _SCHEDULES: """\
Those of `tf.compat.v1.train`, with its defaults. Besides: `constant`, and `inverse_sqrt_decay`:
learning_rate / sqrt(1 + step / decay_steps). Each takes `warmup_steps: N`, too: in the first N
steps the rate rises from 0 linearly, and the schedule begins behind them.
""",
}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_COLUMNS = ("key", "type", "default", "meaning")


def main() -> None:
    """Writes the files, each where it belongs."""
    page = _TOP / "docs" / "configuration.md"
    for file, written in {schema.FILE: schema.text(), page: text()}.items():
        file.write_text(written, encoding="utf-8")
        print(file)


def text() -> str:
    """Returns the whole page."""
    sections = schema.sections()
    rows = {**catalog.OPTIMIZERS, **catalog.SCHEDULES}
    described = [name for name in sections if name not in rows]
    parts = [_HEAD]
    for name in sorted(described, key=[*_TITLES, *described].index):
        parts += _section(_title(name), sections[name])
    parts += _arguments(_OPTIMIZERS, catalog.OPTIMIZERS)
    parts += _arguments(_SCHEDULES, catalog.SCHEDULES)
    return "\n".join(parts)


def _title(name: str) -> str:
    if name in catalog.OPTIMIZERS:
        return _OPTIMIZERS
    return _SCHEDULES if name in catalog.SCHEDULES else _TITLES.get(name, name)


def _section(title: str, section: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}\n\n{section['description']}\n"
    yield _row(_COLUMNS)
    yield _row(["---"] * len(_COLUMNS))
    for name, key in section["properties"].items():
        default = f"`{_flow(key['default'])}`" if "default" in key else "each at its own"
        default = "required" if name in section.get("required", ()) else default
        yield _row([f"`{name}`", _type(key), default, key["description"]])
    yield ""


def _arguments(title: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}\n\n{_ABOUT[title]}"
    yield _row(["name", "arguments"])
    yield _row(["---", "---"])
    for name, arguments in table.items():
        told = [
            f"`{argument}`" if default is catalog.REQUIRED else f"`{argument}: {_flow(default)}`"
            for argument, default in arguments.items()
        ]
        yield _row([f"`{name}`", ", ".join(told)])
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _flow(value: Any) -> str:
    """Returns a value as YAML in one line."""
    return documents.dump({"value": value}).partition(": ")[2].strip()


def _type(key: Mapping[str, Any]) -> str:
    """Returns in words what a key takes."""
    if "$ref" in key:
        title = _title(key["$ref"].rpartition("/")[2])
        anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        return f"[{title.rpartition(': ')[2]}](#{anchor})"
    if "const" in key:
        return f"`{key['const']}`"
    return _listed(_members(key)) or _plain_type(key)


def _members(key: Mapping[str, Any]) -> list[str]:
    """Returns what each of several types or words is, those of members too."""
    if "enum" in key:
        is_dtype = tuple(key["enum"]) == catalog.DTYPES
        return ["dtype"] if is_dtype else [f"`{one}`" for one in key["enum"]]
    found = []
    for member in [*key.get("anyOf", ()), *key.get("oneOf", ())]:
        found += _members(member) or [_type(member)]
    return list(dict.fromkeys(found))


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _grouped(key: Mapping[str, Any]) -> str:
    """Returns the type of what stands in a list or a mapping."""
    text = _type(key)
    return f"({text})" if " or " in text else text


def _plain_type(key: Mapping[str, Any]) -> str:
    kind = key.get("type")
    if kind == "array":
        return f"list of {_grouped(key['items'])}"
    if kind == "object":
        keys = _type(key["propertyNames"]) if "propertyNames" in key else "name"
        values = key.get("additionalProperties", True)
        return f"mapping of {keys} to {'anything' if values is True else _grouped(values)}"
    if kind in ("integer", "number"):
        bounds = [f" {sign} {key[bound]:,}" for bound, sign in _SIGNS.items() if bound in key]
        return ("whole number" if kind == "integer" else "number") + ",".join(bounds)
    if kind == "string" and "pattern" in key:
        return f"text such as `{key['examples'][0]}`" if "examples" in key else "function"
    if kind == "string":
        return "character" if key.get("maxLength") == 1 else "text"
    return {"boolean": "`true`, `false`", "null": "`null`"}.get(kind, "anything")


if __name__ == "__main__":
    main()
