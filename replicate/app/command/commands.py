"""The commands that run no model: a function each, by its name. They import no TensorFlow."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence

from replicate import errors
from replicate.app.cluster import launcher, places
from replicate.app.command import requests
from replicate.app.config import config, sections
from replicate.app.inspect import absences
from replicate.console import interrupts, messages, progress

_FAILED, _BAD_USAGE = 1, 2  # exit codes


def check(request: requests.Request) -> int | None:
    """Tells all faults, and warns of data and functions that are not there: they may come."""
    options = request.options
    warnings = {path: absences.warnings(one) for path, one in request.configs.items()}
    is_strict = options.strict and any(warnings.values())
    paths = dict.fromkeys(options.configs)
    if options.json:
        request.print_json([_checked(request, path, warnings.get(path, ())) for path in paths])
    for path in () if options.json else paths:
        faults, found = request.faults.get(path), warnings.get(path, ())
        if faults:
            print(messages.for_stream(faults, sys.stderr), file=sys.stderr)
        if is_strict or not options.quiet:
            _print_warnings(path, found)
        if not (options.quiet or faults or (is_strict and found)):
            print(f"{path}: ok")
    return _BAD_USAGE if request.faults else _FAILED if is_strict else None


def _checked(request: requests.Request, path: str, warnings: Sequence[str]) -> dict[str, object]:
    return {
        "config": path,
        "ok": path not in request.faults,
        "faults": request.faults.get(path, "").splitlines(),
        "warnings": warnings,
    }


def _print_warnings(path: str, warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(messages.for_stream(f"{path}: {warning}", sys.stderr), file=sys.stderr)


def launch(request: requests.Request) -> None:
    """Trains in several processes."""
    options, servers = request.options, request.options.ps or 0
    display = progress.Display(options.quiet)
    size: places.Size = options.workers
    restarts = size.restarts if options.restarts is None else options.restarts
    if servers and not size.is_fixed:
        raise errors.ConfigError(
            f"--workers: must be a number beside --ps, got {size.least}:{size.most}: with "
            "parameter servers each worker makes steps of its own, so what comes out depends on "
            f"how many there are. Write --workers {size.most}."
        )
    if options.script:
        grace = sections.Cluster().grace
        wanted = launcher.Wanted(size, servers, options.evaluator, grace, False, restarts)
        launcher.launch(wanted, lambda name: options.script, options.model_dir or "", display)
        return
    settings = request.settings
    settings.require_cluster(size.most, servers)
    if options.evaluator and settings.eval is None:
        raise errors.ConfigError("--evaluator: must come with an eval section. Add one.")
    evaluator = options.evaluator or settings.cluster.evaluator
    wanted = launcher.Wanted(size, servers, evaluator, settings.cluster.grace, restarts=restarts)
    launcher.launch(wanted, _launched(request, wanted), settings.model_dir, display)


def _launched(request: requests.Request, wanted: launcher.Wanted) -> Callable[[str], list[str]]:
    """Returns what gives the command line of the process of a name."""
    options = request.options
    given = [part for text in options.assignments for part in ("--set", text.removeprefix("--"))]
    given += ["--set", "cluster.evaluator=true"] if wanted.evaluator else []
    given += ["--model-dir", options.model_dir] if options.model_dir else []
    line = [sys.executable, "-m", "replicate", "train", *options.configs, *given]
    return lambda name: [*line, "--json"] if options.json and name == wanted.teller else line


def plot(request: requests.Request) -> None:
    """Draws learning curves."""
    options = request.options
    with interrupts.at_once():  # TensorFlow reads files
        from replicate.app.inspect import curves

        runs = curves.read(options.model_dirs)
    path = options.png or os.path.join(runs[0].name, "curves.png")
    curves.plot(runs, path)
    progress.Display(options.quiet).say(f"picture: {path}")


def init(request: requests.Request) -> None:
    """Writes a config."""
    with interrupts.at_once():
        from replicate.app.inspect import starter

    asked = request.options
    output = asked.output
    sample = starter.look(asked.data, asked.label)
    text = starter.text(asked.model_fn, sample, output, asked.optimizer)
    files = starter.write(output, text, is_new=not asked.force)
    _print_warnings(output, absences.warnings(config.load(output)))
    written = f"{' and '.join(files)} {'is' if len(files) == 1 else 'are'} written"
    for remark in starter.told(sample, asked.label):
        print(remark)
    print(f"{written}; look through {output}, then: replicate train {output}")
