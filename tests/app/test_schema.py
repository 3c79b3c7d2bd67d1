"""The JSON Schema says what `load` takes, and so does docs/configuration.md."""

import json
import pathlib
import re
import runpy
import urllib.request

import pytest
import yaml

from replicate.app.command import cli
from replicate.app.config import catalog, config, schema

TOP = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((TOP / "configs").glob("*.yaml"))
RICH = """
name: rich
model_fn: a.b:c
optimizer: {name: Momentum, momentum: 0.9, learning_rate: {name: piecewise_constant,
  boundaries: [3, 9], values: [0.3, 0.2, 0.001]}}
params: {layers: [64, 32], rates: {a: 0.001}, name: null}
devices: [/gpu:0, 'CPU:1']
clip_global_norm: 1
train: {steps: 1000.0, input: {kind: csv, file: [a.csv, b.csv], columns: {x: float32, y: int64},
  label: y, defaults: {x: 0}, shuffle: 100, repeat: true}}
eval: {input: {kind: npz, file: a.npz, features: {x: y}, rows: [null, 3]}}
predict: {input: 'a.b:rows', keys: [p]}
export: {inputs: {x: {dtype: float32, shape: [null, 3]}}}
run: {per_process_gpu_memory_fraction: 0.5}
"""
TFRECORD = """
model_fn: a:b
optimizer: Adam
devices: {cpu: 2}
train: {steps: 1, input: {kind: tfrecord, file: '*.r', features: {x: {dtype: int64, shape: [3]}}}}
"""
SPARSE = """
model_fn: ${FN:a:b}
seed: ${SEED:3}
strategy: ${STRATEGY:mirrored}
train:
  steps: ${STEPS:100}
  input: {kind: npz, file: a.npz, features: x}
"""
TYPES = {
    "array": list,
    "boolean": bool,
    "null": type(None),
    "number": int | float,
    "object": dict,
    "string": str,
}


def is_of(type_name, value):
    """Whether a value is of a JSON type."""
    if type_name == "integer":
        return is_of("number", value) and float(value).is_integer()
    is_truth = isinstance(value, bool)
    return isinstance(value, TYPES[type_name]) and (not is_truth or type_name == "boolean")


def rules_of(root, part):
    """Yields (keyword's test) of one part of a schema; only what our schema uses is known."""
    known = {
        "$ref": lambda v, to: fits(root, root["$defs"][to.rpartition("/")[2]], v),
        "additionalProperties": lambda v, one: (
            not isinstance(v, dict)
            or all(one and fits(root, one, v[k]) for k in v.keys() - part.get("properties", {}))
        ),
        "anyOf": lambda v, parts: any(fits(root, one, v) for one in parts),
        "const": lambda v, one: v == one,
        "enum": lambda v, names: v in names,
        "exclusiveMaximum": lambda v, high: not is_of("number", v) or v < high,
        "exclusiveMinimum": lambda v, low: not is_of("number", v) or v > low,
        "items": lambda v, one: not isinstance(v, list) or all(fits(root, one, x) for x in v),
        "maxProperties": lambda v, count: not isinstance(v, dict) or len(v) <= count,
        "maximum": lambda v, high: not is_of("number", v) or v <= high,
        "maxLength": lambda v, count: not isinstance(v, str) or len(v) <= count,
        "minimum": lambda v, low: not is_of("number", v) or v >= low,
        "minItems": lambda v, count: not isinstance(v, list) or len(v) >= count,
        "minLength": lambda v, count: not isinstance(v, str) or len(v) >= count,
        "minProperties": lambda v, count: not isinstance(v, dict) or len(v) >= count,
        "oneOf": lambda v, parts: sum(fits(root, one, v) for one in parts) == 1,
        "pattern": lambda v, form: not isinstance(v, str) or re.search(form, v),
        "properties": lambda v, keys: (
            not isinstance(v, dict) or all(fits(root, keys[k], v[k]) for k in keys.keys() & v)
        ),
        "propertyNames": lambda v, one: (
            not isinstance(v, dict) or all(fits(root, one, k) for k in v)
        ),
        "required": lambda v, names: not isinstance(v, dict) or set(names) <= v.keys(),
        "type": lambda v, name: is_of(name, v),
    }
    if "if" in part:
        yield lambda v: fits(root, part["then" if fits(root, part["if"], v) else "else"], v)
    said_elsewhere = ("$defs", "$schema", "default", "description", "title", "examples")
    said_elsewhere += ("if", "then", "else")
    for keyword, said in part.items():
        if keyword not in said_elsewhere:
            yield lambda v, keyword=keyword, said=said: known[keyword](v, said)


def fits(root, part, value):
    """Whether a value is what a part of a schema says."""
    return part is True or all(rule(value) for rule in rules_of(root, part))


def is_taken(text):
    """Whether a config's text is what the schema says."""
    whole = schema.schema()
    return fits(whole, whole, yaml.safe_load(text))


def test_the_file_is_what_the_model_gives():
    written = json.loads(schema.FILE.read_text(encoding="utf-8"))
    assert written == schema.schema(), "scripts/configuration.py writes it again"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_schema_takes_each_config_and_its_first_line_leads_there(path):
    text = path.read_text(encoding="utf-8")
    assert is_taken(text)
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert (path.parent / named[1]).resolve() == schema.FILE
    assert schema.line(path.parent) == named[0]


def test_the_schema_takes_what_check_takes(tmp_path):
    for text in (RICH, TFRECORD, SPARSE):
        assert is_taken(text)
        (tmp_path / "c.yaml").write_text(text)
        assert is_taken(config.to_yaml(config.load(str(tmp_path / "c.yaml"))))


@pytest.mark.parametrize("name", catalog.OPTIMIZERS)
def test_the_schema_knows_the_arguments_of_every_optimizer(name):
    needed = {key: 1 for key, one in catalog.OPTIMIZERS[name].items() if one is catalog.REQUIRED}
    told = {"model_fn": "a:b", "optimizer": {"name": name, **needed}}
    assert is_taken(yaml.safe_dump(told))
    told["optimizer"]["beta9"] = 1
    assert not is_taken(yaml.safe_dump(told))


@pytest.mark.parametrize(
    "wrong",
    [
        "modelfn: a:b",
        "model_fn: a",
        "{model_fn: 'a:b', stratgy: mirrored}",
        "{model_fn: 'a:b', strategy: miror}",
        "{model_fn: 'a:b', seed: x}",
        "{model_fn: 'a:b', accumulate_steps: 0}",
        "{model_fn: 'a:b', devices: {tpu: 1}}",
        "{model_fn: 'a:b', optimizer: Momentum}",
        "{model_fn: 'a:b', train: {input: 'a:b'}}",
        "{model_fn: 'a:b', predict: {input: {file: a.npz}}}",
        "{model_fn: 'a:b', predict: {input: {kind: npz, file: a.npz, columns: {a: int32}}}}",
        "{model_fn: 'a:b', predict: {input: {kind: csv, file: a, columns: {a: int}}}}",
        "{model_fn: 'a:b', predict: {input: {kind: nzp, file: a.npz}}}",
    ],
)
def test_the_schema_refuses_what_check_refuses(wrong):
    assert not is_taken(wrong)


def test_every_key_is_described():
    def undescribed(part, path):
        for name, key in part.get("properties", {}).items():
            is_argument = path[0] in catalog.OPTIMIZERS or path[0] in catalog.SCHEDULES
            if "description" not in key and not is_argument:
                yield (*path, name)

    whole = schema.schema()
    parts = whole["$defs"].items()
    assert [key for name, part in parts for key in undescribed(part, (name,))] == []


def test_a_config_that_extends_another_may_lack_what_that_one_has():
    assert is_taken("{extends: base.yaml, train: {input: {rows: [0, 3]}}}")
    assert not is_taken("{extends: base.yaml, trian: {steps: 3}}")


def test_check_prints_the_schema(capsys):
    assert cli.main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema.schema()


def test_what_print_config_writes_leads_to_the_schema(capsys):
    assert cli.main(["check", str(CONFIGS[0]), "--print-config"]) == 0
    place = re.match(r"# yaml-language-server: \$schema=(\S+)\n", capsys.readouterr().out)[1]
    with urllib.request.urlopen(place) as file:
        assert json.load(file) == schema.schema()


@pytest.fixture(name="page", scope="module")
def make_page():
    """Returns the page as the script writes it."""
    return runpy.run_path(str(TOP / "scripts" / "configuration.py"))["text"]()


def test_the_page_is_what_the_model_gives(page):
    written = (TOP / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == page, "scripts/configuration.py writes it again"


def test_the_page_has_every_key_of_every_section(page):
    rows = {line.split(" | ")[0] for line in page.splitlines()}
    for section in schema.sections().values():
        is_section = section["properties"].get("name", {}).get("const") is None
        assert not is_section or {f"| `{key}`" for key in section["properties"]} <= rows
    assert {f"| `{name}`" for name in [*catalog.OPTIMIZERS, *catalog.SCHEDULES]} <= rows


def test_a_row_says_type_default_and_meaning(page):
    lines = page.splitlines()
    meaning = config.Config.model_fields["clip_global_norm"].description
    assert f"| `clip_global_norm` | number > 0 or `null` | `null` | {meaning} |" in lines
    assert "| `Adagrad` | `learning_rate`, `initial_accumulator_value: 0.1` |" in lines


def test_the_page_names_the_dtypes_that_there_are(page):
    assert f"one of {', '.join(catalog.DTYPES)}." in page
