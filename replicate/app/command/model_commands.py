"""The commands that run a model: a function each, by its name. They import TensorFlow."""

import contextlib
import sys
from collections.abc import Callable, Sequence

from replicate import errors
from replicate.app.command import report, requests
from replicate.app.config import config, sections
from replicate.app.inspect import description
from replicate.app.runs import records
from replicate.app.training import exports, hooks, predictions, runner, trials
from replicate.console import json_output, progress

_DIFFERS = 1  # the exit code
_OF_MODEL = ("model_fn:", "params.", "params:")  # keys that a checkpoint must fit


def train(request: requests.Request) -> None:
    """Trains, from the last checkpoint if there is one."""
    settings, is_told = request.settings, request.options.json
    may_delete = _asks_before(request)
    # A launcher shows what is in the log at once, and stdout, the result, in the end.
    is_apart = request.launcher is not None and not is_told
    apart = json_output.alone() if is_apart else contextlib.nullcontext()
    with apart:
        if request.options.fast_dev_run:
            done = trials.run(settings, _display(request), request.line)
        else:
            done = runner.train(settings, _display(request), request.line, may_delete)
    if is_told:
        told = {"name": settings.name, "model_dir": settings.model_dir}
        request.print_json({**told, **done._asdict()})
    elif done.is_new:
        # On a terminal the line of the last evaluation is still there.
        is_seen = sys.stdout.isatty() and sys.stderr.isatty() and not request.options.quiet
        if done.metrics is not None and not is_seen:
            report.print_metrics(done.metrics, f"{settings.name} at step {done.step}")
        if done.path is not None:
            report.print_signatures(f"exported: {done.path}", exports.signatures(done.path))


def _asks_before(request: requests.Request) -> Callable[[Sequence[str]], bool] | None:
    """Returns what asks whether --fresh may delete; None where nothing is to be deleted."""
    if not request.options.fresh:
        return None
    if request.options.yes:
        return lambda lines: True
    if not sys.stdin.isatty():
        raise errors.ConfigError(
            "--fresh: must be confirmed, and there is no terminal to ask on. Add --yes to delete "
            f"what runs wrote in {request.settings.model_dir}."
        )

    def ask(lines: Sequence[str]) -> bool:
        print(*lines, sep="\n", file=sys.stderr)
        print("Delete it and begin again? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def evaluate(request: requests.Request) -> None:
    """Prints metrics."""
    options, settings, display = request.options, request.settings, _of_run(request)
    if options.all:
        found = runner.evaluate_all(settings, display)
    else:
        found = [runner.evaluate(settings, display, options.checkpoint)]
    if options.json:
        found = [dict(sorted(metrics.items())) for metrics in found]
        request.print_json(found if options.all else found[0])
    elif options.all:
        report.print_all_metrics(found, settings.name)
    else:
        report.print_metrics(found[0], f"{settings.name} at step {found[0][json_output.STEP]}")


def predict(request: requests.Request) -> None:
    """Writes predictions."""
    options, source = request.options, None
    display = _of_run(request) if options.saved_model is None else _display(request)
    if options.saved_model is not None:
        called = request.settings.section(sections.Predict).input.called("predict")
        signature = options.signature or "serving_default"
        source = predictions.Source(options.saved_model, signature, called)
    made = runner.predict(request.settings, display, source, options.checkpoint)
    with contextlib.closing(made) as rows:  # its bar goes ahead of what is said of a failure
        if options.output is None:
            predictions.write_lines(rows, sys.stdout)
            return
        count = predictions.write(rows, options.output)
    display.say(f"{count} predictions in {options.output}")


def export(request: requests.Request) -> None:
    """Writes a SavedModel."""
    _of_run(request)
    path = runner.export(request.settings, request.options.checkpoint)
    signatures = exports.signatures(path)
    if request.options.json:
        request.print_json({"path": path, "signatures": signatures})
    else:
        report.print_signatures(path, signatures)


def average(request: requests.Request) -> None:
    """Writes the mean of checkpoints."""
    options, display = request.options, _display(request)
    path, paths = runner.average(
        request.settings, options.last, options.checkpoints, options.output
    )
    display.say(f"the mean of {len(paths)} checkpoints: {', '.join(paths)}")
    if options.json:
        request.print_json({"path": path, "of": paths})
    else:
        print(path)


def verify(request: requests.Request) -> int | None:
    """Compares the towers with one device."""
    found = runner.verify(request.settings, _display(request))
    if request.options.json:
        request.print_json(found.as_dict())
    else:
        print(found)
    return None if found.holds else _DIFFERS


def describe(request: requests.Request) -> None:
    """Prints variables, devices and what travels."""
    options, display = request.options, _display(request)
    found = description.describe(request.settings)
    if options.png is not None:
        from replicate.app.inspect import drawing

        drawing.draw(found, options.png)
    if options.json:
        request.print_json(found.as_dict())
    else:
        report.print_description(found)
    if options.png is not None:
        display.say(f"picture: {options.png}")


def _of_run(request: requests.Request) -> progress.Display:
    """Returns where progress goes, once it says in what the model is not that of the run."""
    display, settings = _display(request), request.settings
    kept = records.Records(settings.model_dir, display.say)
    changes = kept.changes(config.to_yaml(settings, settings.model_dir))
    differing = [f"config: {change}" for change in changes if change.startswith(_OF_MODEL)]
    if differing:
        own = f"replicate {request.options.command} {settings.model_dir}"
        display.say("\n".join([*differing, f"with the run's own config: {own}"]))
    return display


def _display(request: requests.Request) -> progress.Display:
    """Returns where progress goes; makes TensorFlow's loggers as quiet as is asked for."""
    hooks.calm_logging(request.options.quiet)
    if request.launcher is None:
        return progress.Display(request.options.quiet)
    return progress.Display(request.options.quiet, tell=request.launcher.tell)
