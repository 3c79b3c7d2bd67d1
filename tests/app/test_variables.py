"""Environment variables in values: typed as YAML types them, and nothing but values."""

import os

import pytest

from replicate import errors
from replicate.app.config import config, documents


def read(text):
    """Returns the value of `key` in a document."""
    return documents.parse(f"key: {text}\n", "c.yaml").data["key"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${R_STEPS}", 1000.0),
        ("'${R_STEPS}'", "1e3"),
        ('"${R_STEPS}"', "1e3"),
        ("${R_NONE:12}", 12),
        ("${R_NONE:}", None),
        ("${R_NONE:a b}", "a b"),
        ("${R_TRUE}", True),
        ("${R_EMPTY}", None),
        ("${R_EMPTY:3}", None),
        ("1${R_NONE:0}0", 100),
        ("data/${R_NAME}-${R_NONE:1}.csv", "data/train-1.csv"),
        ("$${R_NAME}", "${R_NAME}"),
        ("$${", "${"),
        ("$R_NAME", "$R_NAME"),
        ("${R_TEXT}", "[1, 2]"),
        ("${R_TAG}", "!!python/name:os.system x"),
        ("${R_AGAIN}", "${R_NAME}"),
        ("${R_MERGE}", "<<"),
        ("[x, '${R_NAME}']", ["x", "train"]),
    ],
)
def test_a_variable_is_typed_as_what_stands_in_the_file(monkeypatch, written, value):
    given = {
        "STEPS": "1e3",
        "TRUE": "true",
        "EMPTY": "",
        "NAME": "train",
        "TEXT": "[1, 2]",
        "TAG": "!!python/name:os.system x",
        "AGAIN": "${R_NAME}",
        "MERGE": "<<",
    }
    for name, text in given.items():
        monkeypatch.setenv(f"R_{name}", text)
    found = read(written)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("seed: ${R_NONE}", "c.yaml:2: seed: needs the environment variable R_NONE, which is not"),
        ("params:\n  a: x${R_NONE}", "c.yaml:3: params.a: needs the environment variable R_NONE"),
        ("seed: ${R_BAD}", "c.yaml:2: seed: must be a whole number, got 'x y'"),
        ("seed: ${}", "c.yaml:2: seed: must name a variable as ${NAME} or ${NAME:default}, got "),
        ("seed: ${1A}", "must name a variable as"),
        ("seed: ${A", "Write $${ for the text ${."),
        ("seed: ${A:${B}}", "must name a variable as"),
        ("devices: {cpu: ${R_NONE:2}}", "c.yaml:2: must be valid YAML"),
        ("devices: {cpu: ${R_NONE:2}}", "Write ${...} in a line of its own"),
        ("seed: ${R_LONG}", "c.yaml:2: seed: must be a value of the type int, got '999"),
    ],
)
def test_what_cannot_be_filled_in_is_one_fault(tmp_path, monkeypatch, text, fault):
    monkeypatch.setenv("R_BAD", "x y")
    monkeypatch.setenv("R_LONG", "9" * 5000)
    path = tmp_path / "c.yaml"
    path.write_text(f"model_fn: a:b\n{text}\n")
    with pytest.raises(errors.ConfigError) as caught:
        config.load(str(path))
    (found,) = str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()
    assert fault in found


def test_names_are_no_values():
    assert documents.parse("${A}: 1\n", "c.yaml").data == {"${A}": 1}


def test_variables_fill_no_memory(monkeypatch):
    monkeypatch.setenv("R_LONG", "x" * 100_000)
    text = "a: &a [" + ", ".join(["'${R_LONG}'"] * 20) + "]\n"
    with pytest.raises(errors.ConfigError, match="must be finite: values with variables"):
        documents.parse(text, "c.yaml")


@pytest.mark.parametrize("text", ["${A}", "$${A}", "$$${A", "a${", "$", "{${x}}"])
def test_texts_that_look_like_variables_are_dumped_as_texts(text):
    data = {"key": text, "list": [{"a": text}], text: 1}
    assert documents.parse(documents.dump(data), "c.yaml").data == data


def test_an_assignment_may_name_one(monkeypatch):
    monkeypatch.setenv("R_STEPS", "5")
    assert documents.parse("a: 1\n", "c.yaml", ["a=${R_STEPS}"]).data == {"a": 5}
