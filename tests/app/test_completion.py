"""Command lines are completed as shells ask for it, quickly and without TensorFlow."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

from replicate.app.command import cli, completion
from replicate.app.config import config

TOP = pathlib.Path(__file__).parents[2]
STEPS = ("runs/a/model.ckpt-100.index", "runs/a/model.ckpt-90.index")
BEST = "elsewhere/best/model.ckpt-90.index"
HEAVY = ("tensorflow", "numpy", "pydantic")

# Asks as a shell's script does, whose form differs among versions of click; tells what it imported.
ANSWER = f"""
import sys
from click import shell_completion
from replicate.app.command import commands
asked = shell_completion.FishComplete(commands.whole_line, {{}}, "replicate", "")
words = sys.argv[1].split(" ")
for one in asked.get_completions(words[1:-1], words[-1]):
    print(one.value if one.type == "plain" else one.type)
sys.stderr.write(repr([m for m in {HEAVY!r} if m in sys.modules]))
"""


def completed(line, folder):
    """Returns what a shell gets to show for a line.

    What the shell is to complete by itself is shown as `file` or `dir`.
    """
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "[]")
    return done.stdout.splitlines()


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with some files."""
    folder = tmp_path_factory.mktemp("completion")
    files = ("a.yaml", "b.yml", "c.txt", "configs/d.yaml", ".hidden.yaml", "old.png")
    for name in (*files, *STEPS, BEST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "b.yml").write_text("model_fn: a:b\nmodel_dir: elsewhere  # not in runs\n")
    return folder


# A _ at the end is a space.
LINES = """
tr | train
--ver | --version
train_ | file
train configs/ | file
train a.yaml --pri | --print-config
launch a.yaml --wor | --workers
launch a.yaml --cluster.communication_ | auto nccl ring
train a.yaml --set see | seed=
train a.yaml --set strategy=mi | strategy=mirrored
train a.yaml --train.step | --train.steps
train a.yaml --strategy=mi | mirrored
train --train.steps 10 a | file
evaluate a.yaml --model-dir c | dir
train a.yaml --se | --seed --set
evaluate a.yaml --checkpoint_ | 100 90
evaluate b.yml --checkpoint_ | best
average a.yaml --checkpoints 90,1 | 90,100
export a.yaml --model-dir runs/a --checkpoint 1 | 100
export a.yaml --checkpoint c | dir
describe a.yaml --png_ | file
plot_ | dir
completion z | zsh
"""


@pytest.mark.parametrize(
    ("line", "expected"), [row.split(" | ") for row in LINES.strip().splitlines()]
)
def test_a_line_is_completed(folder, line, expected):
    line = line.replace("_", " ") if line.endswith("_") else line
    assert sorted(completed(f"replicate {line}", folder)) == expected.split()


def test_keys_are_not_shown_before_one_is_begun(folder):
    options = completed("replicate train a.yaml --", folder)
    assert "--print-config" in options
    assert not [option for option in options if "." in option]


def test_keys_are_shown_from_their_first_letter_without_their_sections(folder):
    options = completed("replicate train a.yaml --t", folder)
    assert {"--tower_building", "--train.steps", "--train.input.kind"} <= set(options)
    assert not {"--train", "--train.input", "--set", "--run"} & set(options)
    assert completed("replicate train a.yaml --optimizer", folder)[0] == "--optimizer"  # a name


def test_keys_are_those_of_a_configs_own_kinds():
    def own(said, section):
        known = completion.keys(said)
        return {key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}.")}

    csv, npz = ({"train": {"input": {"kind": kind}}} for kind in ("csv", "npz"))
    assert {"columns", "delimiter", "file", "kind"} <= own(csv, "train.input")
    assert not {"features", "rows", "function", "compression"} & own(csv, "train.input")
    assert {"rows", "file"} <= own(npz, "train.input")
    assert not {"columns", "delimiter"} & own(npz, "train.input")
    assert {"columns", "rows"} <= own(npz, "eval.input")  # of which nothing is said
    assert completion.keys(csv)["train.input.kind"] == completion.keys()["train.input.kind"]
    function = own({"train": {"input": "a:rows"}}, "train.input")
    assert "function" in function
    assert "file" not in function
    assert "beta1" in own({"optimizer": "Adam"}, "optimizer")
    assert "momentum" not in own({"optimizer": {"name": "Adam"}}, "optimizer")
    assert own({"optimizer": "a:optimizer"}, "optimizer") == {"name"}


def test_of_a_config_on_the_line_keys_of_its_kinds_are_shown(folder):
    (folder / "base.yaml").write_text("model_dir: elsewhere\ntrain: {input: {kind: csv}}\n")
    (folder / "kind.yaml").write_text("extends: base.yaml\ntrain: {steps: 1}\n")
    try:
        found = completed("replicate train kind.yaml --train.input.c", folder)
        assert sorted(found) == ["--train.input.cache", "--train.input.columns"]
        assert completed("replicate train kind.yaml --train.input.rows", folder) == []
        assert completed("replicate train --train.input.rows", folder) != []
        assert completed("replicate export kind.yaml --checkpoint b", folder) == ["best"]
    finally:
        for name in ("base.yaml", "kind.yaml"):
            (folder / name).unlink()


def test_keys_are_those_of_a_config():
    # What is printed with all defaults has keys of the schema alone.
    def within(data, path=()):
        for name, value in data.items():
            yield ".".join((*path, name))
            if isinstance(value, dict) and name not in ("params", "devices"):
                yield from within(value, (*path, name))

    settings = config.load(str(TOP / "configs" / "digits.yaml"))
    known = completion.keys()
    assert set(within(yaml.safe_load(config.to_yaml(settings)))) <= set(known)
    assert known["loss_reduction"] == ("sum", "mean")


@pytest.mark.parametrize(
    ("shell", "text"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "--command replicate")],
)
def test_each_shell_has_its_script(capsys, shell, text):
    assert cli.main(["completion", shell]) == 0
    assert text in capsys.readouterr().out


BASH = """
eval "$(replicate completion bash)"
COMP_WORDS=(replicate train a.yaml --strategy mi); COMP_CWORD=4
_replicate_completion replicate mi --strategy
echo "${COMPREPLY[@]}"
"""
ZSH = """
compdef() {}
compadd() { print -l -- ${(P)5} }
eval "$(replicate completion zsh)"
words=(replicate train a.yaml --set strategy=mi); CURRENT=5
_replicate_completion
"""
FISH = """
replicate completion fish | source
complete -C "replicate train a.yaml --set strategy=mi"
"""


@pytest.mark.parametrize(
    ("shell", "asked", "shown"),
    [
        ("bash", BASH, "mirrored"),
        ("zsh", ZSH, "strategy=mirrored"),
        ("fish", FISH, "strategy=mirrored"),
    ],
)
def test_a_shell_completes_by_its_script(folder, tmp_path, shell, asked, shown):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    program = tmp_path / "replicate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m replicate "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [shell, "-c", asked],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(TOP),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == shown
