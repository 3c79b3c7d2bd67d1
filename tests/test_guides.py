"""The examples of the guides run, or are what the commands and configs take."""

import importlib.util
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml

import replicate
from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf
from replicate.strategy import base

ROOT = Path(__file__).parent.parent
README, COMMANDS, HOW_TO, MIGRATION, PYTHON, STRATEGIES = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        "docs/commands.md",
        "docs/how-to.md",
        "docs/migration.md",
        "docs/python.md",
        "docs/strategies.md",
    )
)

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


@pytest.mark.filterwarnings("ignore:`Model.state_updates` will be removed")
def test_the_examples_of_the_migration_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("\n".join(examples(MIGRATION, "python")), tmp_path / "migrated.py")
    assert found.mirrored.get_variable_value("global_step") == 3
    assert found.fitted.get_variable_value("estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE") == 3
    assert found.on_devices.get_variable_value("global_step") == 3


def test_the_examples_of_python_continue_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *example, _, _ = examples(PYTHON, "python")  # the last two are about logging
    found = run("\n".join([examples(README, "python")[0], *example]), tmp_path / "examples.py")
    assert found.found.holds
    with found.predictor as predictor:
        (predicted,) = predictor({"x": np.ones([5, 1], np.float32)}).values()
    np.testing.assert_allclose(predicted, np.full([5, 1], 3.0), atol=0.05)  # y = 3 x


@pytest.mark.thorough
def test_the_lines_that_quiet_tensorflow_do(tmp_path):
    quiet, logs = examples(PYTHON, "python")[-2:]
    loud = "import replicate\ntf.get_logger().warning('not this')\n"
    loud += "logging.getLogger('replicate').info('but this')\n"
    (tmp_path / "quiet.py").write_text(quiet + logs + loud, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "quiet.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "but this" in told
    assert "not this" not in told


def test_the_algorithm_of_ones_own_equals_one_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = examples(STRATEGIES, "python")
    copies = [copy.numpy() for copy in run(example, tmp_path / "own.py").w.members]
    # One device: the mean of (w x - y)^2 over (1, 3), (2, 6) has the gradient
    # (2 (w - 3) + 2 * 2 (2 w - 6)) / 2 = 5 (w - 3).
    w = 10.0
    for _ in range(100):
        w -= 0.1 * 5.0 * (w - 3.0)
    np.testing.assert_allclose(copies, [w, w], rtol=1e-6)


def test_every_strategy_of_a_name_is_in_the_guide():
    listed = set(re.findall(r'^\|[^|]*"(\w+)"', STRATEGIES, re.MULTILINE))
    assert listed >= set(base.NAMED)


def replacements():
    """Returns the names on the right of the last table that are spelt out."""
    rows = MIGRATION.partition("## Replacements of `tf.contrib`\n")[2]
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


_WITHOUT_KEYS = ("init", "plot")
_SHELLS = [
    given
    for given in commands(HOW_TO + COMMANDS)
    if given[0] not in _WITHOUT_KEYS and "--" not in given  # a script of one's own
]


@pytest.mark.parametrize("arguments", _SHELLS, ids=lambda given: " ".join(given)[:60])
def test_the_commands_of_the_guides_are_understood(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    write_first_config(tmp_path)
    given = arguments[: next((i for i, a in enumerate(arguments) if a in ("||", "|", ";")), None)]
    if given[0] != "check":
        given.append("--print-config")
    assert cli.main([one.replace("*", "digits") for one in given]) == 0
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


def test_recipes_have_ten_lines_or_fewer():
    section = HOW_TO.partition("## Recipes\n")[2].partition("\n## ")[0]
    recipes = examples(section, "yaml") + examples(section, "sh")
    assert len(recipes) > 6
    assert [len(one.splitlines()) for one in recipes if len(one.splitlines()) > 10] == []


# Keras 2.15 asks for a seed so.
@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")
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
