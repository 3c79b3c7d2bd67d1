"""The command line: usage, exit codes, and no TensorFlow where none is needed."""

import importlib.metadata
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import pytest
import yaml

import replicate
from replicate import errors
from replicate.app.cluster import launcher
from replicate.app.command import cli, commands
from replicate.app.config import config
from replicate.compat.tensorflow import tf
from replicate.console import failures, interrupts
from replicate.strategy.towers import lockstep

TOP = pathlib.Path(__file__).parents[2]
DIGITS = str(TOP / "configs" / "digits.yaml")
MODEL = "replicate.examples.digits:model_fn"


USAGE = """
| Missing command.
trane x.yaml | No such command 'trane'. Did you mean 'train'?
serve | No such command 'serve'.
train | Missing argument 'CONFIG'
evaluate DIGITS --checkpoint=3 --all | --checkpoint must not come with --all
average DIGITS | Missing option '--last'.
train DIGITS --sett a=b | No such option '--sett'. Did you mean --set?
train DIGITS --devices=auto --devices.cpu 2 | Set all of it: --set devices='{cpu: 2}'
train DIGITS --devices=auto --set devices.cpu=2 | Set all of it: --set devices='{cpu: 2}'
train DIGITS --model-fn a:b | '--model-fn'. Did you mean --model_fn?
train DIGITS --cpus=2 | Did you mean --devices?
train DIGITS --max-steps 4 | Did you mean --train.steps or --eval.steps?
train DIGITS --sede=5 | '--sede'. Did you mean --seed?
train DIGITS --stps 5 | Did you mean --train.steps or --eval.steps?
predict DIGITS --outptu p.csv | '--outptu'. Did you mean --output?
train DIGITS --modl-dir x | '--modl-dir'. Did you mean --model-dir?
plot runs --png a.png --sede=5 | No such option '--sede'.
predict DIGITS --output p.txt | must end in one of .jsonl, .json, .csv, .npz
train none.yaml | none.yaml: a config file must exist
train DIGITS --set train.steps | must be key=value
train DIGITS --set train=null | --set train=null: train: this section is required
evaluate DIGITS --set eval=null --set export=null | --set eval=null: eval: this section is requi
train DIGITS --train.stepz 3 | --train.stepz=3: train.stepz: unknown key. Did you mean steps?
train DIGITS --trian.steps=3 | --trian.steps=3: trian: unknown key
train DIGITS --train.steps x | --train.steps=x: train.steps: must be a whole number, got 'x'.
train DIGITS --train.steps --quiet | --train.steps: must have a value
train DIGITS --train.steps | --train.steps: must have a value. Write e.g. --train.steps 10
train DIGITS --train..steps=3 | --train..steps=3: must be key=value
--train.steps=3 train DIGITS | No such option '--train.steps'.
train DIGITS --train=null | --train=null: train: this section is required
launch DIGITS --workers 2 --ps 1 --strategy mirrored | strategy: must leave the variables to the
launch DIGITS --workers 2 -- x | CONFIG must be one, or a command behind --;
launch --workers 2 | CONFIG must be one, or a command behind --;
launch --workers 2 --seed 3 -- x | A command behind -- reads no config: leave that out.
launch DIGITS --workers 3:2 | must be a whole number of at least 1, or MIN:MAX
launch DIGITS --workers 1 --ps -1 | '--ps': -1 is not in the range x>=0
check none.yaml none_either.yaml | none_either.yaml: a config file must exist
completion csh | 'bash', 'zsh', 'fish'
"""


@pytest.mark.parametrize(("line", "text"), [row.split("| ") for row in USAGE.strip().splitlines()])
def test_bad_usage_is_exit_code_2(capsys, line, text):
    assert cli.main(line.replace("DIGITS", DIGITS).split()) == 2
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_behind_two_dashes_nothing_is_an_option(capsys):
    assert cli.main(["check", "--", DIGITS]) == 0
    assert capsys.readouterr().out == f"{DIGITS}: ok\n"
    assert cli.main(["check", "--", "--train.steps=3"]) == 2
    assert "--train.steps=3: a config file must exist" in capsys.readouterr().err


BAD = """
model_fn: mine:modle_fn
train: {stepz: 1, input: {kind: csv, file: none.csv, columns: {a: int8}, label: b}}
eval: {steps: 0, input: {kind: csv, file: x.csv, columns: {ruums: int8, rnet: int8}}}
"""
FAULTS = [
    ":3: train.stepz: unknown key. Did you mean steps?",
    ":3: train.input.label: must be one of columns, got 'b'. Add it there.",
    ":4: eval.steps: must be at least 1, got 0.",
]


def test_check_tells_people_and_machines_all_faults_then_what_is_not_there(capsys, tmp_path):
    mine, end = tmp_path / "mine.yaml", "warning: there is no"
    (tmp_path / "mine.py").write_text("def model_fn(): pass\n")
    (tmp_path / "x.csv").write_text("rooms,rent\n1,2\n")
    mine.write_text(BAD)
    assert cli.main(["check", str(mine), DIGITS]) == 2
    shown = capsys.readouterr()
    assert shown.out == f"{DIGITS}: ok\n"
    assert [line.removeprefix(str(mine)) for line in shown.err.splitlines()] == FAULTS
    assert cli.main(["check", DIGITS, str(mine), "--json", "--quiet"]) == 2
    shown = capsys.readouterr()
    digits, found = json.loads(shown.out)
    assert shown.err == ""
    assert digits == {"config": DIGITS, "ok": True, "faults": [], "warnings": []}
    assert [one.removeprefix(str(mine)) for one in found["faults"]] == FAULTS
    assert (found["ok"], found["warnings"]) == (False, [])
    text = BAD.replace("stepz", "steps").replace("label: b", "label: a")
    mine.write_text(text.replace("steps: 0", "steps: 1"))
    assert cli.main(["check", str(mine)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{mine}: ok\n"
    assert [line.removeprefix(str(mine)) for line in shown.err.splitlines()] == [
        f": train.input.file: {end} {tmp_path / 'none.csv'} yet",
        f": eval.input: warning: {tmp_path / 'x.csv'}:1: the header must have the column 'ruums' "
        "and the column 'rnet' once, got rooms, rent. Did you mean rooms and rent?",
        ": model_fn: warning: mine has no modle_fn. Did you mean model_fn?",
    ]
    assert cli.main(["check", DIGITS, str(mine), "--strict", "--quiet"]) == 1
    assert capsys.readouterr() == ("", shown.err)
    assert cli.main(["check", str(mine), "--strict", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)[0]["warnings"]) == 3
    assert cli.main(["check", DIGITS, "--strict"]) == 0


def test_print_config_shows_all_defaults_and_runs_nothing(capsys, tmp_path):
    line = ["train", DIGITS, "--print-config", "--set", "train.steps=1e3", "--model-dir", "x"]
    assert cli.main(line) == 0
    printed = capsys.readouterr().out
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(printed)
    path = tmp_path / "printed.yaml"
    path.write_text(printed)
    assert config.load(str(path)) == config.load(DIGITS, ["train.steps=1000"], model_dir="x")
    assert cli.main(["check", DIGITS, DIGITS + ".none", "--print-config", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", sorted(commands.whole_line.commands))
def test_help_ends_with_an_example_that_is_right(capsys, command):
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    example = text.partition("\nexample:\n  ")[2].splitlines()[0]
    words = shlex.split(example.removeprefix('eval "$(').partition(")")[0])
    assert words[:2] == ["replicate", command]
    asked = commands.whole_line.main(words[1:], "replicate", standalone_mode=False)
    assert asked[1].command == command


def process(*words, **options):
    """Runs Python with some words."""
    given = {"cwd": TOP, "capture_output": True, "check": False, **options}
    return subprocess.run([sys.executable, *words], **given)


def test_versions_are_told(capsys):
    assert cli.main(["--version"]) == 0
    python = ".".join(map(str, sys.version_info[:3]))
    assert capsys.readouterr().out.splitlines() == [
        f"replicate {replicate.__version__}",
        f"TensorFlow {importlib.metadata.version('tensorflow')}",
        f"Python {python}",
    ]


def test_who_has_seen_enough_ends_nothing_badly():
    ours, theirs = os.pipe()
    os.close(ours)  # as `head` does
    words = ["-m", "replicate", "train", DIGITS, "--print-config"]
    done = process(*words, capture_output=False, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_streams_that_are_closed_end_nothing_badly():
    def close():
        for number in (0, 1, 2):
            os.close(number)

    words = ["-m", "replicate", "check", DIGITS, "--json"]
    assert process(*words, capture_output=False, preexec_fn=close).returncode == 0


def test_what_a_stream_cannot_show_is_spelt_out(tmp_path):
    (tmp_path / "größe😀.yaml").write_text(f"model_fn: {MODEL}\n")
    words = ["-m", "replicate", "check", "größe😀.yaml", "--quiet", "--print-config"]
    env = {**os.environ, "PYTHONPATH": str(TOP), "PYTHONIOENCODING": "ascii"}
    done = process(*words, cwd=tmp_path, env=env)
    assert done.returncode == 0
    assert b"\n" + rb"name: gr\u00f6\u00dfe\ud83d\ude00" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--train.steps", "10", "--seed=-3"],
        ["--train.steps=1e1", "--seed", "-3"],
        ["--set", "train.steps=9", "--set", "seed=-3", "--train.steps=10"],
        ["--train.steps=9", "--set=train.steps=10", "--seed=1", "--seed=-3"],
    ],
)
def test_keys_are_options_and_the_last_one_counts(capsys, options):
    assert cli.main(["train", *options, DIGITS, "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["train"]["steps"], printed["seed"]) == (10, -3)


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        ([["--version"], ["--help"], ["train", "--help"]], {"pydantic", "yaml"}),
        ([["check", DIGITS], ["train", DIGITS, "--print-config"]], {"tensorflow", "numpy"}),
    ],
)
def test_a_command_imports_only_what_it_needs(commands, heavy):
    code = (
        "import sys\n"
        "from replicate.app.command import cli\n"
        f"codes = [cli.main(command) for command in {commands!r}]\n"
        f"heavy = {heavy | {'tensorflow', 'numpy'}!r} & set(sys.modules)\n"
        "sys.exit(f'{codes} {heavy}' if any(codes) or heavy else 0)\n"
    )
    done = process("-c", code)
    assert (done.returncode, done.stderr) == (0, b"")


def test_scripts_are_the_commands(tmp_path):
    scripts = {path.stem: path.read_text() for path in (TOP / "scripts").glob("*.py")}
    run = scripts["train"].partition('"""\n')[2]
    for command in "train launch evaluate predict export verify describe plot check".split():
        assert scripts[command].partition('"""\n')[2] == run.replace("train", command)
    done = process(TOP / "scripts" / "check.py", "none.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert b"none.yaml: a config file must exist" in done.stderr


def test_our_errors_are_shown_as_they_are():
    assert failures.explain(errors.DeviceError("no such device")) == "no such device"


def test_other_errors_are_shown_with_their_place():
    try:
        raise KeyError("k")
    except KeyError as e:
        text = failures.explain(e)
    assert text.startswith(f"{__file__}:")
    assert "KeyError: 'k'" in text
    assert "REPLICATE_DEBUG=1" in text


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow._api.v2.compat.v1"])
def test_who_misses_tf_estimator_is_led_to_ours(module):
    error = AttributeError(f"module '{module}' has no attribute 'estimator'")
    then = "call replicate.estimator.install() ahead of that line"
    assert failures.explain(error).count(then) == 1
    with pytest.raises(AttributeError), lockstep.explained():  # as where a model_fn is called
        raise error
    assert failures.explain(error).count(then) == 1


def test_who_has_no_memory_left_is_told_what_did_not_fit_and_what_to_do():
    reason = "OOM when allocating tensor with shape[9,9] and type float on /device:GPU:0 by a"
    with tf.Graph().as_default():
        error = tf.errors.ResourceExhaustedError(None, tf.zeros([9, 9], name="large").op, reason)
    text = failures.explain(error)
    assert f"ResourceExhaustedError: {reason}\n" in text
    assert (
        "This device's memory is full: 324 bytes do not fit. Set micro_batches" in text
    )  # 9 * 9 * 4
    assert "The operation is large." in text


@pytest.mark.parametrize(("number", "text"), [("SIGTERM", "terminated"), ("SIGINT", "interrupted")])
def test_a_signal_that_a_library_makes_an_error_of_is_an_interruption(
    monkeypatch, capsys, number, text
):
    def look(request):
        try:
            signal.raise_signal(getattr(signal, number))
        except KeyboardInterrupt:
            raise ValueError("a schema cannot be built") from None

    monkeypatch.setattr(commands.check, "callback", look)
    assert cli.main(["check", DIGITS]) == interrupts.INTERRUPTED
    assert capsys.readouterr().err == f"{text}\n"


def test_a_launcher_is_told_what_a_run_says_that_was_stopped(monkeypatch, capsys):
    def stopped(request):
        raise interrupts.Interrupted("stopped at step 3")

    told = []
    monkeypatch.setattr(cli.lifeline, "attached", lambda: told.append)
    monkeypatch.setattr(commands.train, "callback", stopped)
    assert cli.main(["train", DIGITS]) == interrupts.INTERRUPTED
    assert told == [{"stopped": "stopped at step 3"}]
    assert capsys.readouterr().err == "stopped at step 3\n"


def test_a_launch_starts_trainings_of_which_the_chief_tells_the_result(monkeypatch):
    words = [sys.executable, "-m", "replicate", "train", DIGITS]
    words += ["--set", "seed=3", "--model-dir", "x"]
    for given in ([], ["--json"]):
        lines = {}

        def launch(wanted, line_of, model_dir, display, lines=lines):
            lines.update({name: line_of(name) for name in ("chief:0", "worker:0")})

        monkeypatch.setattr(launcher, "launch", launch)
        line = ["launch", DIGITS, "--workers", "2", "--seed=3", "--model-dir", "x", *given]
        assert cli.main(line) == 0
        assert lines == {"chief:0": [*words, *given], "worker:0": words}
