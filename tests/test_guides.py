"""The examples of the guides run, or are what the commands and configs take."""

import importlib.util
import re
import shlex
import types
from pathlib import Path

import pytest
import yaml

import replicate
from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf

ROOT = Path(__file__).parent.parent
MIGRATION = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # an Estimator's temporary folder
]


def examples(text, language):
    """Returns the blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(source, path):
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_of_the_migration_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("\n".join(examples(MIGRATION, "python")), tmp_path / "migrated.py")
    assert found.mirrored.get_variable_value("global_step") == 3
    assert found.on_devices.get_variable_value("global_step") == 3


def replacements():
    """Returns the names on the right of the last table that are spelt out."""
    rows = MIGRATION.partition("of `tf.contrib`\n")[2]
    cells = re.findall(r"^\| `tf\.contrib[^|]*\|([^|]*)\|$", rows, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    return [name for name in names if name != "params"]


def test_what_replaces_tf_contrib_is_there():
    roots = {"replicate": replicate, "tf": tf}
    assert len(replacements()) > 15
    for name in replacements():
        first, *rest = name.split(".")
        value = roots[first]
        for part in rest:
            value = getattr(value, part)
        assert isinstance(value, type | types.ModuleType) or callable(value), name


def commands(text):
    """Returns the arguments of each `replicate` command in the shell's blocks."""
    blocks = "\n".join(examples(text, "sh")).replace("\\\n", " ")
    lines = [line.partition("replicate ") for line in blocks.splitlines()]
    return [shlex.split(rest, comments=True) for _, word, rest in lines if word]


@pytest.mark.parametrize("arguments", commands(HOW_TO), ids=lambda given: " ".join(given)[:60])
def test_the_commands_of_the_how_to_are_understood(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    write_first_config(tmp_path)
    given = arguments[: next((i for i, a in enumerate(arguments) if a in ("||", "|", ";")), None)]
    assert cli.main([*given, "--print-config"]) == 0
    capsys.readouterr()


def write_first_config(folder):
    """Writes the files that the section on a first config has."""
    (folder / "mine.yaml").write_text(first_config(), encoding="utf-8")


def first_config():
    (found,) = (block for block in examples(HOW_TO, "yaml") if "model_fn:" in block)
    return found


def test_the_keys_in_the_how_to_are_keys_of_a_config(tmp_path):
    for block in examples(HOW_TO, "yaml"):
        merged = yaml.safe_load(first_config()) | yaml.safe_load(block)
        (tmp_path / "merged.yaml").write_text(yaml.safe_dump(merged), encoding="utf-8")
        config.load(str(tmp_path / "merged.yaml"))


def test_the_first_config_of_the_how_to_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_first_config(tmp_path)
    (model,) = (block for block in examples(HOW_TO, "python") if "def model_fn" in block)
    (tmp_path / "mine.py").write_text(model, encoding="utf-8")
    (data,) = (block for block in examples(HOW_TO, "python") if "savez" in block)
    run(data, tmp_path / "data.py")
    devices = ["--set", "devices=[/cpu:0, /cpu:1]"]  # the suite's logical CPUs are made already
    assert cli.main(["train", "mine.yaml", "--quiet", "--set", "train.steps=2", *devices]) == 0
    capsys.readouterr()
