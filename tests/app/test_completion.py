"""Command lines are completed as shells ask for it, quickly and without TensorFlow."""

import json
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
HEAVY = ("tensorflow", "numpy", "pydantic")

# Asks as a shell's script does, whose form differs among versions of click; tells what it imported.
ANSWERS = f"""
import json, sys
from click import shell_completion
from replicate.app.command import commands
asked = shell_completion.FishComplete(commands.whole_line, {{}}, "replicate", "")
lines = {{line: line.split(" ")[1:] for line in json.loads(sys.argv[1])}}
found = {{line: asked.get_completions(words[:-1], words[-1]) for line, words in lines.items()}}
plain = lambda one: one.value if one.type == "plain" else one.type
print(json.dumps({{line: list(map(plain, items)) for line, items in found.items()}}))
sys.stderr.write(repr([m for m in {HEAVY!r} if m in sys.modules]))
"""

# What the shell is to complete by itself is `file` or `dir`. A _ at the end is a space.
LINES = """
tr | train
--ver | --version
train_ | file
train configs/ | file
train a.yaml --pri | --print-config
launch a.yaml --wor | --workers
launch a.yaml --cluster.communication_ | auto nccl ring
train a.yaml --see | --seed
train a.yaml --train.step | --train.steps
train a.yaml --strategy=mi | mirrored
train --train.steps 10 a | file
evaluate a.yaml --model-dir c | dir
train a.yaml --se | --seed --set
export a.yaml --checkpoint c | dir
describe a.yaml --png_ | file
plot_ | dir
completion z | zsh
train a.yaml --optimizer.nam | --optimizer.name
"""


def completed(*lines):
    """Returns what a shell gets to show for each line."""
    asked = [f"replicate {line}" for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, json.dumps(asked)],
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "[]")
    found = json.loads(done.stdout)
    return [found[line] for line in asked]


def test_lines_are_completed():
    rows = [row.split(" | ") for row in LINES.strip().splitlines()]
    lines = [line.replace("_", " ") if line.endswith("_") else line for line, _ in rows]
    found = [sorted(items) for items in completed(*lines)]
    assert found == [expected.split() for _, expected in rows]


def test_keys_are_shown_from_their_first_letter_without_their_sections():
    none, begun, optimizer = completed(
        *(f"train a.yaml {word}" for word in ("--", "--t", "--optimizer"))
    )
    assert "--print-config" in none
    assert not [option for option in none if "." in option]
    assert {"--tower_building", "--train.steps", "--train.input.kind"} <= set(begun)
    assert not {"--train", "--train.input", "--set", "--run"} & set(begun)
    assert optimizer[0] == "--optimizer"  # a name


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
words=(replicate train a.yaml --strategy mi); CURRENT=5
_replicate_completion
"""
FISH = """
replicate completion fish | source
complete -C "replicate train a.yaml --strategy mi"
"""


@pytest.mark.parametrize(
    ("shell", "text", "asked", "shown"),
    [
        ("bash", "complete -o", BASH, "mirrored"),
        ("zsh", "compdef", ZSH, "mirrored"),
        ("fish", "--command replicate", FISH, "mirrored"),
    ],
)
def test_each_shell_has_its_script_which_completes(capsys, tmp_path, shell, text, asked, shown):
    assert cli.main(["completion", shell]) == 0
    assert text in capsys.readouterr().out
    if shutil.which(shell) is None:
        return
    program = tmp_path / "replicate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m replicate "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", asked],
        env={**os.environ, "PYTHONPATH": str(TOP), "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == shown
