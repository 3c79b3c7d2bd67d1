"""The commands: a function each, with its options; what runs a model is imported when it is run."""

import contextlib
import os
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from replicate import errors
from replicate.app.cluster import places
from replicate.app.command import command_line as line
from replicate.app.command import completion
from replicate.app.config import catalog
from replicate.console import interrupts, messages

if TYPE_CHECKING:
    from replicate.app.command.requests import Request
    from replicate.console import progress

_FAILED, _BAD_USAGE = 1, 2  # exit codes
_OF_MODEL = ("model_fn:", "params.", "params:")  # keys that a checkpoint must fit
_COUNT, _COUNT_OR_NONE = click.IntRange(1), click.IntRange(0)
_DIGITS = "configs/digits.yaml"

whole_line = line.whole_line
_checkpoint = line.option(
    "--checkpoint",
    "WHICH",
    "in place of the newest: a step, a path, best (of train.keep_best) or averaged (by `replicate "
    "average`)",
    shell_complete=completion.folder,
)


def _json(what: str) -> Any:
    return line.flag("--json", f"print {what} as JSON, and nothing else on stdout")


def _size(text: str) -> places.Size:
    counts = text.split(":")
    if len(counts) <= 2 and all(one.isascii() and one.isdecimal() for one in counts):
        size = places.Size(int(counts[0]), int(counts[-1]))
        if 1 <= size.least <= size.most:
            return size
    rule = "a whole number of at least 1, or MIN:MAX, MIN at most MAX"
    raise click.BadParameter(f"must be {rule}, got {text!r}")


def _schema() -> str:
    from replicate.app.config import schema

    return schema.text()


@line.command(
    f"replicate train {_DIGITS} --model-dir runs/digits --train.steps 2000",
    configs=1,
    section="train",
)
@_json("what it came to")
def train(request: "Request") -> None:
    """Train, from the last checkpoint if there is one."""
    with interrupts.at_once():
        from replicate.app.command import report
        from replicate.app.inspect import shortage
        from replicate.app.training import exports, runner
        from replicate.console import json_output

    settings, options = request.settings, request.options
    # A launcher shows what is in the log at once, and stdout, the result, in the end.
    is_apart = request.tell is not None and not options.json
    apart = json_output.alone() if is_apart else contextlib.nullcontext()
    with apart, shortage.explained(settings):
        done = runner.train(settings, request.display)
    if options.json:
        told = {"name": settings.name, "model_dir": settings.model_dir}
        request.print_json({**told, **done._asdict()})
    elif done.is_new:
        # On a terminal the line of the last evaluation is still there.
        is_seen = sys.stdout.isatty() and sys.stderr.isatty() and not options.quiet
        if done.metrics is not None and not is_seen:
            report.print_metrics([done.metrics], f"{settings.name} at step {done.step}")
        if done.path is not None:
            report.print_signatures(f"exported: {done.path}", exports.signatures(done.path))


@line.command(
    f"replicate launch {_DIGITS} --workers 2 --train.steps 200",
    "replicate launch --workers 2 -- python my_script.py     # which reads TF_CONFIG",
    configs=-1,
    section="train",
)
@line.option(
    "--workers",
    "N|MIN:MAX",
    "how many workers, the chief among them; with MIN:MAX it begins with MAX, goes on at once with "
    "those that are left, at least MIN, and takes lost ones in again later",
    _size,
    required=True,
)
@line.option("--ps", "M", "parameter servers, which keep the variables", _COUNT_OR_NONE)
@line.option(
    "--restarts",
    "R",
    "if a process is lost, start all again, from the last checkpoint, at most R times; else 0, or "
    f"{places.Size(1, 2).restarts} with MIN:MAX",
    _COUNT_OR_NONE,
)
@_json("what it came to")
def launch(request: "Request") -> None:
    """Train a config, or run a command, in several processes of this machine: a local cluster."""
    from replicate.app.cluster import launcher
    from replicate.app.config import sections

    options, size = request.options, request.options.workers
    servers = options.ps or 0
    restarts = size.restarts if options.restarts is None else options.restarts
    if servers and not size.is_fixed:
        raise errors.ConfigError(
            f"--workers: must be a number beside --ps, got {size.least}:{size.most}: with "
            "parameter servers each worker makes steps of its own, so what comes out depends on "
            f"how many there are. Write --workers {size.most}."
        )
    if options.script:
        grace = sections.Cluster().grace
        wanted = launcher.Wanted(size, servers, grace, False, restarts)
        words = options.script
        launcher.launch(wanted, lambda name: words, options.model_dir or "", request.display)
        return
    settings = request.settings
    settings.require_cluster(size.most, servers)
    wanted = launcher.Wanted(size, servers, settings.cluster.grace, restarts=restarts)
    words = _training(options)
    of_chief = [*words, "--json"] if options.json else words
    launcher.launch(
        wanted,
        lambda name: of_chief if name == launcher.CHIEF else words,
        settings.model_dir,
        request.display,
    )


def _training(options: types.SimpleNamespace) -> list[str]:
    """Returns the command line of a process that trains."""
    given = [part for text in options.set for part in ("--set", text.removeprefix("--"))]
    given += ["--model-dir", options.model_dir] if options.model_dir else []
    return [sys.executable, "-m", "replicate", "train", *options.configs, *given]


@line.command(f"replicate evaluate {_DIGITS} --json", configs=1, section="eval")
@_checkpoint
@line.flag("--all", "each checkpoint in model_dir, a row for each")
@_json("them")
def evaluate(request: "Request") -> None:
    """Print metrics as a table."""
    options, settings = request.options, request.settings
    if options.all and options.checkpoint:
        raise click.UsageError("--checkpoint must not come with --all. Leave out one.")
    with interrupts.at_once():
        from replicate.app.command import report
        from replicate.app.training import runner
        from replicate.console import json_output

    display = _of_run(request)
    found = runner.evaluate(settings, display, options.checkpoint, options.all)
    title = settings.name + ("" if options.all else f" at step {found[0][json_output.STEP]}")
    if options.json:
        found = [dict(sorted(metrics.items())) for metrics in found]
        request.print_json(found if options.all else found[0])
    else:
        report.print_metrics(found, title, options.all)


@line.command(f"replicate predict {_DIGITS} --output digits.csv", configs=1, section="predict")
@click.argument("data", metavar="[FILE]", required=False, shell_complete=completion.file)
@line.file(
    "--output",
    ".jsonl or .json (both JSON lines), .csv, .npz; else JSON lines on stdout",
    *catalog.OUTPUT_ENDINGS,
)
@_checkpoint
def predict(request: "Request") -> None:
    """Write predictions, for FILE or for predict.input.

    FILE is read as predict.input is, else as eval.input, else as train.input.
    """
    with interrupts.at_once():
        from replicate.app.training import predictions, runner

    options, display = request.options, _of_run(request)
    made = runner.predict(request.settings, display, options.checkpoint)
    with contextlib.closing(made) as rows:  # its bar goes ahead of what is said of a failure
        if options.output is None:
            predictions.write_lines(rows, sys.stdout)
            return
        count = predictions.write(rows, options.output)
    display.say(f"{count} predictions in {options.output}")


@line.command(f"replicate export {_DIGITS} --model-dir runs/digits", configs=1)
@_checkpoint
@_json("them")
def export(request: "Request") -> None:
    """Write a SavedModel, print its path and signatures."""
    with interrupts.at_once():
        from replicate.app.command import report
        from replicate.app.training import exports, runner

    _of_run(request)
    path = runner.export(request.settings, request.options.checkpoint)
    signatures = exports.signatures(path)
    if request.options.json:
        request.print_json({"path": path, "signatures": signatures})
    else:
        report.print_signatures(path, signatures)


@line.command(f"replicate average {_DIGITS} --last 3", configs=1)
@line.option("--last", "N", "how many of the newest in model_dir", _COUNT, required=True)
@_json("where it is")
def average(request: "Request") -> None:
    """Write the mean of checkpoints as another one, in the folder averaged of model_dir."""
    with interrupts.at_once():
        from replicate.app.training import runner

    display = request.display
    path, paths = runner.average(request.settings, request.options.last)
    display.say(f"the mean of {len(paths)} checkpoints: {', '.join(paths)}")
    if request.options.json:
        request.print_json({"path": path, "of": paths})
    else:
        print(path)


@line.command(
    "replicate verify configs/wide-and-deep.yaml --strategy mirrored", configs=1, section="train"
)
@_json("what was found")
def verify(request: "Request") -> int | None:
    """Compare the towers with one device."""
    with interrupts.at_once():
        from replicate.app.training import runner

    found = runner.verify(request.settings, request.display)
    if request.options.json:
        request.print_json(found.as_dict())
    else:
        print(found)
    return None if found.holds else _FAILED


@line.command(f"replicate describe {_DIGITS} --png towers.png", configs=1, section="train")
@_json("them")
@line.file("--png", "draw them as well", ".png")
def describe(request: "Request") -> None:
    """Print variables, devices and what is split."""
    with interrupts.at_once():
        from replicate.app.command import report
        from replicate.app.inspect import description

    options, display = request.options, request.display
    found = description.describe(request.settings)
    if options.json:
        request.print_json(found.as_dict())
    else:
        report.print_description(found)
    if options.png is not None:
        from replicate.app.inspect import drawing

        drawing.draw(found, options.png)
        display.say(f"picture: {options.png}")


@line.command("replicate plot runs/digits runs/digits-2 --png curves.png")
@click.argument("model_dirs", nargs=-1, required=True, shell_complete=completion.folder)
@line.file("--png", "the picture; curves.png in the first MODEL_DIR", ".png")
@line.quiet
def plot(request: "Request") -> None:
    """Draw learning curves of one or several runs."""
    options = request.options
    with interrupts.at_once():  # TensorFlow reads files
        from replicate.app.inspect import curves

        runs = curves.read(options.model_dirs)
    path = options.png or os.path.join(os.path.expanduser(runs[0].name), "curves.png")
    curves.plot(runs, path)
    request.display.say(f"picture: {path}")


@line.command("replicate check configs/*.yaml", configs=-1)
@_json("what was found")
@line.flag("--strict", "end with 1 where files, columns or functions are not there")
@line.printing("--schema", "print the JSON Schema of configs, and stop", _schema)
def check(request: "Request") -> int | None:
    """Validate configs, without importing TensorFlow."""
    from replicate.app.inspect import absences

    options, found = request.options, []
    for path in dict.fromkeys(options.configs):
        faults = request.faults.get(path, "")
        warnings = absences.warnings(request.configs[path]) if not faults else []
        told = {"config": path, "ok": not faults, "faults": faults.splitlines()}
        found.append({**told, "warnings": warnings})
    is_strict = options.strict and any(one["warnings"] for one in found)
    if options.json:
        request.print_json(found)
    for one in () if options.json else found:
        if not one["ok"]:
            _warn([request.faults[one["config"]]])
        if is_strict or not options.quiet:
            _warn(f"{one['config']}: {warning}" for warning in one["warnings"])
        if not options.quiet and one["ok"] and not (is_strict and one["warnings"]):
            print(f"{one['config']}: ok")
    return _BAD_USAGE if request.faults else _FAILED if is_strict else None


def _warn(texts: Iterable[str]) -> None:
    for text in texts:
        print(messages.for_stream(text, sys.stderr), file=sys.stderr)


@line.command("replicate init my_model:model_fn table.csv --label y --output mine.yaml")
@click.argument("model_fn")
@click.argument("data", shell_complete=completion.file)
@line.file("--output", "the config; else config.yaml", default="config.yaml")
@line.option("--label", "NAME", "the column, array or feature to learn")
@line.option("--optimizer", "NAME", "e.g. Adam; else model_fn has its own")
@line.flag("--force", "write over a config that is there")
def init(request: "Request") -> None:
    """Write a config from a model_fn and a data file.

    MODEL_FN is package.module:function. DATA is a file, or a pattern: CSV, npz, Parquet, TFRecord;
    or package.module:function.
    """
    with interrupts.at_once():
        from replicate.app.config import config
        from replicate.app.inspect import absences, samples, starter

    asked = request.options
    output = asked.output
    sample = samples.look(asked.data, asked.label)
    text = starter.text(asked.model_fn, sample, output, asked.optimizer)
    files = starter.write(output, text, is_new=not asked.force)
    _warn(f"{output}: {warning}" for warning in absences.warnings(config.load(output)))
    written = f"{' and '.join(files)} {'is' if len(files) == 1 else 'are'} written"
    for remark in starter.told(sample, asked.label):
        print(remark)
    print(f"{written}; look through {output}, then: replicate train {output}")


@line.command(
    'eval "$(replicate completion bash)"     # in ~/.bashrc',
    'eval "$(replicate completion zsh)"      # in ~/.zshrc, after compinit',
    "replicate completion fish | source      # in ~/.config/fish/config.fish",
)
@click.argument("shell", type=click.Choice(completion.SHELLS), metavar="SHELL")
def completion_command(request: "Request") -> None:
    """Print what lets a shell complete command lines: bash, zsh or fish."""
    print(completion.script(whole_line, request.options.shell), end="")


def _of_run(request: "Request") -> "progress.Display":
    """Returns where progress goes, once it says in what the model is not that of the run."""
    from replicate.app.config import config
    from replicate.app.runs import records

    display, settings = request.display, request.settings
    text = config.to_yaml(settings, settings.model_dir)
    changes = records.changes(settings.model_dir, text)
    differing = [f"config: {change}" for change in changes if change.startswith(_OF_MODEL)]
    if differing:
        own = f"replicate {request.options.command} {settings.model_dir}"
        display.say("\n".join([*differing, f"with the run's own config: {own}"]))
    return display
