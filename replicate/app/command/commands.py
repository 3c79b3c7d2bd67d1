"""The commands that run no model: a function each, by its name. They import no TensorFlow."""

import sys
from collections.abc import Callable

from replicate import errors
from replicate.app.cluster import launcher
from replicate.app.command import requests
from replicate.app.config import absences, config
from replicate.app.console import interrupts, progress, streams

_BAD_USAGE = 2  # the exit code


def check(request: requests.Request) -> int | None:
    """Warns of data and functions that are not there: they may come, or be elsewhere."""
    if request.options.json:
        request.print_json(
            [_checked(request, path) for path in dict.fromkeys(request.options.configs)]
        )
        return _BAD_USAGE if request.faults else None
    for path, settings in {} if request.options.quiet else request.configs.items():
        _print_warnings(path, settings)
        print(f"{path}: ok")
    return None


def _checked(request: requests.Request, path: str) -> dict[str, object]:
    settings = request.configs.get(path)
    return {
        "config": path,
        "ok": settings is not None,
        "faults": request.faults.get(path, "").splitlines(),
        "warnings": [] if settings is None else list(absences.warnings(settings)),
    }


def _print_warnings(path: str, settings: config.Config) -> None:
    for warning in absences.warnings(settings):
        print(f"{path}: {warning}", file=sys.stderr)


def launch(request: requests.Request) -> None:
    """Trains in several processes."""
    options, settings = request.options, request.settings
    servers = options.ps or 0
    settings.require_cluster(options.workers, servers)
    if options.evaluator and settings.eval is None:
        raise errors.ConfigError("--evaluator: must come with an eval section. Add one.")
    evaluator = options.evaluator or settings.cluster.evaluator
    wanted = launcher.Wanted(options.workers, servers, evaluator, settings.cluster.grace)
    display = progress.Display(options.quiet)
    found = launcher.launch(wanted, _launched(request, evaluator), settings.model_dir, display)
    # An evaluator, if there is one, has done what follows from the chief's checkpoints.
    print(found[-1], end="", file=request.out)


def _launched(request: requests.Request, evaluator: bool) -> Callable[[str], list[str]]:
    """Returns what gives the command line of the process of a name."""
    options = request.options
    given = [part for text in options.assignments for part in ("--set", text.removeprefix("--"))]
    given += ["--set", "cluster.evaluator=true"] if evaluator else []
    given += ["--model-dir", options.model_dir] if options.model_dir else []
    line = [sys.executable, "-m", "replicate", "train", *options.configs, *given]
    with_result = ("chief", "evaluator") if options.json else ()
    return lambda name: [*line, "--json"] if name in with_result else line


def plot(request: requests.Request) -> None:
    """Draws learning curves."""
    options = request.options
    with interrupts.at_once(), streams.stderr_held():  # TensorFlow reads large files
        from replicate.app.inspect import curves

        runs = curves.read(options.model_dirs)
    curves.plot(runs, options.png)
    if not options.quiet:
        print(f"picture: {options.png}", file=sys.stderr)


def init(request: requests.Request) -> None:
    """Writes a config."""
    with interrupts.at_once():
        from replicate.app.inspect import starter

    asked = request.options
    output = asked.output
    text = starter.text(asked.model_fn, asked.data, output, asked.label, asked.optimizer)
    starter.write(output, text, is_new=not asked.force)
    _print_warnings(output, config.load(output))
    print(f"{output} is written; look through it, then: replicate train {output}")
