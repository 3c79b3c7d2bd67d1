"""Command lines are completed as shells ask for it, quickly and without TensorFlow."""

import argparse
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

# Tells on stderr, which the shell never shows, what was imported.
ANSWER = f"""
import os, sys
from replicate.app.command import cli
end = os._exit
os._exit = lambda code: (os.write(2, repr([m for m in {HEAVY!r} if m in sys.modules]).encode()),
                         end(code))
cli.main([])
"""


def completed(line, folder, imported=()):
    """Returns what a shell gets to show for a line, in bash's way; says what it may import."""
    answer = folder / "answer"
    done = subprocess.run(
        [sys.executable, "-c", ANSWER],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(TOP),
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_SHELL": "fish",  # which breaks no words at = or :
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", repr([*imported]))
    found = [one.partition("\t")[0] for one in answer.read_text().split("\n")]
    answer.unlink()
    return [one.strip() for one in found if one]


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with some files."""
    folder = tmp_path_factory.mktemp("completion")
    files = ("a.yaml", "b.yml", "c.txt", "configs/d.yaml", ".hidden.yaml", "old.png")
    for name in (*files, *STEPS, BEST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "mine.py").write_text(
        "class Table: ...\ndef rows(): ...\ndef model(): ...\ndef _own(): ...\nmost = 3\n"
    )
    (folder / "b.yml").write_text("model_fn: a:b\nmodel_dir: elsewhere  # not in runs\n")
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("replicate tr", ["train"]),
        ("replicate --ver", ["--version"]),
        ("replicate train ", ["a.yaml", "b.yml", "configs/", "elsewhere/", "runs/"]),
        ("replicate train configs/", ["configs/d.yaml"]),
        ("replicate train a.yaml --pri", ["--print-config"]),
        ("replicate train a.yaml --fr", ["--fresh"]),
        ("replicate launch a.yaml --wor", ["--workers"]),
        ("replicate launch a.yaml --cluster.communication ", ["auto", "nccl", "ring"]),
        ("replicate train a.yaml --set see", ["seed="]),
        ("replicate init m", ["mine:"]),
        ("replicate init mine:", ["mine:Table", "mine:model", "mine:rows"]),
        ("replicate init mine:model mine:r", ["mine:rows"]),
        ("replicate init other:", []),
        ("replicate train a.yaml --model_fn mine:m", ["mine:model"]),
        ("replicate train a.yaml --set model_fn=mine:m", ["model_fn=mine:model"]),
        ("replicate train a.yaml --set strategy=mi", ["strategy=mirrored"]),
        ("replicate train a.yaml --train.step", ["--train.steps"]),
        ("replicate train a.yaml --export.towers ", ["merged", "one"]),
        ("replicate train --train.steps 10 a", ["a.yaml"]),
        ("replicate evaluate a.yaml --model-dir c", ["configs/"]),
        ("replicate train a.yaml --se", ["--seed", "--set"]),
        ("replicate train a.yaml --strategy=mi", ["--strategy=mirrored"]),
        (
            "replicate evaluate a.yaml --checkpoint ",
            ["100", "90", "configs/", "elsewhere/", "runs/"],
        ),
        (
            "replicate evaluate b.yml --checkpoint ",
            ["best", "configs/", "elsewhere/", "runs/"],
        ),
        ("replicate average a.yaml --checkpoints 90,1", ["90,100"]),
        ("replicate export a.yaml --model-dir runs/a --checkpoint 1", ["100"]),
        ("replicate describe a.yaml --png ", ["configs/", "elsewhere/", "old.png", "runs/"]),
        ("replicate plot ", ["configs/", "elsewhere/", "runs/"]),
        ("replicate completion z", ["zsh"]),
    ],
)
def test_a_line_is_completed(folder, line, expected):
    assert sorted(completed(line, folder)) == expected


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


def test_a_label_is_a_column_of_the_data_on_the_line(folder, tmp_path):
    (tmp_path / "d.csv").write_text("age;rent;rooms\n1;2;3\n")
    line = f"replicate init mine:model {tmp_path / 'd.csv'} --label r"
    assert completed(line, folder, ("numpy", "pydantic")) == ["rent", "rooms"]
    found = argparse.Namespace(data=str(tmp_path / "none.csv"))
    assert completion.labels("", found) == []


def test_keys_are_those_of_a_config():
    # What is printed with all defaults has keys of the schema alone.
    def within(data, path=()):
        for name, value in data.items():
            yield ".".join((*path, name))
            if isinstance(value, dict) and name not in ("params", "devices", "metric_reductions"):
                yield from within(value, (*path, name))

    settings = config.load(str(TOP / "configs" / "digits.yaml"))
    known = completion.keys()
    assert set(within(yaml.safe_load(config.to_yaml(settings)))) <= set(known)
    assert known["loss_reduction"] == ("sum", "mean")


@pytest.mark.parametrize(
    ("shell", "text"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --command replicate")],
)
def test_each_shell_has_its_script(capsys, shell, text):
    assert cli.main(["completion", shell]) == 0
    assert text in capsys.readouterr().out


def test_an_unknown_shell_is_bad_usage(capsys):
    assert cli.main(["completion", "csh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


BASH = """
eval "$(replicate completion bash)"
COMP_LINE="replicate train a.yaml --set strategy=mi"; COMP_POINT=${#COMP_LINE}
COMP_WORDS=(replicate train a.yaml --set strategy = mi); COMP_CWORD=6; COMP_TYPE=9
_python_argcomplete replicate mi =
echo "${COMPREPLY[@]}"
"""  # which has broken the word at =
ZSH = """
compdef() {}
_describe() { print -l -- ${(P)2} }
eval "$(replicate completion zsh)"
words=(replicate); BUFFER="replicate train a.yaml --set strategy=mi"; CURSOR=${#BUFFER}
_python_argcomplete
"""
FISH = """
replicate completion fish | source
complete -C "replicate train a.yaml --set strategy=mi"
"""


@pytest.mark.parametrize(
    ("shell", "asked", "shown"),
    [
        ("bash", BASH, "mirrored"),
        ("zsh", ZSH, "strategy=mirrored:"),  # no description behind the colon
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
