"""What each command does, once the line and the config are read.

Imports TensorFlow only in commands that run a model.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.app.command import completion
from replicate.app.console import interrupts, json_output

__all__ = ["BAD_USAGE", "FAILED", "RAN", "RUNS"]

RAN, FAILED, BAD_USAGE = 0, 1, 2
"""Exit codes."""


def _check(options: argparse.Namespace) -> int | None:
    """Warns of data and functions that are not there: they may come, or be elsewhere."""
    from replicate.app.config import absences

    if options.json:
        found = [
            {
                "config": path,
                "ok": path in options.settings,
                "faults": options.faults.get(path, "").splitlines(),
                "warnings": list(absences.warnings(options.settings.get(path))),
            }
            for path in dict.fromkeys(options.configs)
        ]
        json_output.write(found, options.out)
        return BAD_USAGE if options.faults else RAN
    for path, settings in {} if options.quiet else options.settings.items():
        for warning in absences.warnings(settings):
            print(f"{path}: {warning}", file=sys.stderr)
        print(f"{path}: ok")
    return None


def _train(options: argparse.Namespace) -> None:
    may_delete = _asks_before(options)
    runner, report, display = _with_tensorflow(options.quiet, options.launcher)
    (settings,) = options.settings.values()
    # A launcher shows what is in the log at once, and stdout, the result, in the end.
    is_apart = options.launcher is not None and not options.json
    with json_output.alone() if is_apart else contextlib.nullcontext():
        done = runner.train(settings, display, options.command_line, may_delete)
    if options.json:
        told = {"name": settings.name, "model_dir": settings.model_dir, **done._asdict()}
        report.print_json(told, options.out)
        return
    if not done.is_new:
        return
    if done.metrics is not None:
        report.print_metrics(done.metrics, f"{settings.name} at step {done.step}")
    if done.path is not None:
        _print_export(report, done.path)


def _asks_before(options: argparse.Namespace) -> Callable[[Sequence[str]], bool] | None:
    """Returns what asks whether --fresh may delete; None where nothing is to be deleted."""
    if not options.fresh:
        if options.yes:
            raise errors.ConfigError("--yes: must come with --fresh. Add it.")
        return None
    if options.yes:
        return lambda lines: True
    if not sys.stdin.isatty():
        raise errors.ConfigError(
            "--fresh: must be confirmed, and there is no terminal to ask on. Add --yes to delete "
            f"what runs wrote in {next(iter(options.settings.values())).model_dir}."
        )

    def ask(lines: Sequence[str]) -> bool:
        print(*lines, sep="\n", file=sys.stderr)
        print("Delete it and begin again? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def _launch(options: argparse.Namespace) -> None:
    from replicate.app.cluster import launched_cluster, launching
    from replicate.app.config import cluster_config
    from replicate.app.console import progress

    (settings,) = options.settings.values()
    servers = options.ps or 0
    fault = cluster_config.strategy_fault(settings.strategy, options.workers, servers)
    if fault is not None:
        raise errors.ConfigError(fault)
    if options.evaluator and settings.eval is None:
        raise errors.ConfigError("--evaluator: must come with an eval section. Add one.")
    evaluator = options.evaluator or settings.cluster.evaluator
    wanted = launched_cluster.Wanted(options.workers, servers, evaluator, settings.cluster.grace)
    display = progress.Display(options.quiet)
    found = launching.launch(wanted, _launched(options, evaluator), settings.model_dir, display)
    # An evaluator, if there is one, has done what follows from the chief's checkpoints.
    print(found[-1], end="", file=options.out)


def _launched(options: argparse.Namespace, evaluator: bool) -> Callable[[str], list[str]]:
    """Returns what gives the command line of each process."""
    (path,) = options.configs
    given = [part for text in options.assignments for part in ("--set", text.removeprefix("--"))]
    given += ["--set", "cluster.evaluator=true"] if evaluator else []
    given += ["--model-dir", options.model_dir] if options.model_dir else []
    line = [sys.executable, "-m", "replicate", "train", path, *given]
    return lambda name: [*line, "--json"] if options.json and _has_result(name) else line


def _has_result(name: str) -> bool:
    return name in ("chief", "evaluator")


def _evaluate(options: argparse.Namespace) -> None:
    runner, report, display = _with_tensorflow(options.quiet)
    (settings,) = options.settings.values()
    if options.all:
        found = runner.evaluate_all(settings, display)
        if options.json:
            report.print_json([dict(sorted(metrics.items())) for metrics in found], options.out)
        else:
            report.print_all_metrics(found, settings.name)
        return
    metrics = runner.evaluate(settings, display, options.checkpoint)
    if options.json:
        report.print_json(dict(sorted(metrics.items())), options.out)
    else:
        report.print_metrics(metrics, f"{settings.name} at step {metrics['global_step']}")


def _predict(options: argparse.Namespace) -> None:
    if options.signature is not None and options.saved_model is None:
        raise errors.ConfigError("--signature: must come with --saved-model. Add it.")
    if options.checkpoint is not None and options.saved_model is not None:
        raise errors.ConfigError(
            "--checkpoint: must be alone, got --saved-model as well. Keep one."
        )
    runner, _, display = _with_tensorflow(options.quiet)
    from replicate.app.training import exported, predictions

    source = None
    if options.saved_model is not None:
        source = exported.Source(options.saved_model, options.signature or "serving_default")
    (settings,) = options.settings.values()
    rows = runner.predict(settings, display, source, options.checkpoint)
    if options.output is None:
        predictions.write_lines(rows, sys.stdout)
        return
    count = predictions.write(rows, options.output)
    display.say(f"{count} predictions in {options.output}")


def _export(options: argparse.Namespace) -> None:
    runner, report, _ = _with_tensorflow(options.quiet)
    (settings,) = options.settings.values()
    path = runner.export(settings, options.checkpoint)
    if options.json:
        from replicate.app.training import serving

        report.print_json({"path": path, "signatures": serving.signatures(path)}, options.out)
    else:
        _print_export(report, path)


def _average(options: argparse.Namespace) -> None:
    runner, report, display = _with_tensorflow(options.quiet)
    (settings,) = options.settings.values()
    path, paths = runner.average(settings, options.last, options.checkpoints or (), options.output)
    display.say(f"the mean of {len(paths)} checkpoints: {', '.join(paths)}")
    if options.json:
        report.print_json({"path": path, "of": paths}, options.out)
    else:
        print(path)


def _verify(options: argparse.Namespace) -> int:
    """Returns 1 where something differs."""
    runner, report, display = _with_tensorflow(options.quiet)
    (settings,) = options.settings.values()
    found = runner.verify(settings, display)
    if options.json:
        report.print_json(found.as_dict(), options.out)
    else:
        report.print_verification(found)
    return RAN if found.holds else FAILED


def _describe(options: argparse.Namespace) -> None:
    _refuse_half_a_cluster(options)
    _, report, display = _with_tensorflow(options.quiet)
    from replicate.app.inspect import description

    (settings,) = options.settings.values()
    found = description.describe(settings, _cluster(options))
    if options.png is not None:
        from replicate.app.inspect import drawing

        drawing.draw(found, options.png)
    if options.json:
        report.print_json(found.as_dict(), options.out)
    else:
        report.print_description(found)
    if options.png is not None:
        display.say(f"picture: {options.png}")


def _refuse_half_a_cluster(options: argparse.Namespace) -> None:
    """Refuses what is said of a cluster where none is asked about."""
    for name in ("ps", "bandwidth", "latency", "compute"):
        if options.workers is None and getattr(options, name) is not None:
            raise errors.ConfigError(f"--{name}: must come with --workers. Add it.")


def _cluster(options: argparse.Namespace) -> Any:
    """Returns which cluster is asked about; None: none is."""
    from replicate.app.inspect import scaling

    if options.workers is None:
        return None
    given = {name: getattr(options, name) for name in ("bandwidth", "latency", "compute")}
    known = {name: value for name, value in given.items() if value is not None}
    return scaling.Wanted(options.workers, options.ps or 0, scaling.Assumed(**known))


def _plot(options: argparse.Namespace) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # large files are read by TensorFlow
    with interrupts.at_once(), _native_stderr_held():
        from replicate.app.inspect import curves, plotting

        runs = curves.read(options.model_dirs)
    plotting.plot(runs, options.png)
    if not options.quiet:
        print(f"picture: {options.png}", file=sys.stderr)


def _init(options: argparse.Namespace) -> None:
    with interrupts.at_once():
        from replicate.app.config import absences, config
        from replicate.app.inspect import starter

    written = starter.text(
        options.model_fn, options.data, options.output, options.label, options.optimizer
    )
    starter.write(options.output, written, is_new=not options.force)
    for warning in absences.warnings(config.load(options.output)):
        print(f"{options.output}: {warning}", file=sys.stderr)
    print(f"{options.output} is written; look through it, then: replicate train {options.output}")


def _completion(options: argparse.Namespace) -> None:
    print(completion.script(options.shell), end="")


def _print_export(report: Any, path: str) -> None:
    from replicate.app.training import serving

    report.print_signatures(path, serving.signatures(path))


def _with_tensorflow(quiet: bool, launcher: Any = None) -> tuple[Any, Any, Any]:
    """Imports the rooms that need TensorFlow, quietly; returns runner, report, a display."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with interrupts.at_once(), _native_stderr_held():
        from replicate.app.command import report
        from replicate.app.console import progress
        from replicate.app.training import runner, session_hooks
    session_hooks.calm_logging(quiet)
    tell = None if launcher is None else launcher.tell
    return runner, report, progress.Display(quiet, tell=tell)


@contextlib.contextmanager
def _native_stderr_held() -> Iterator[None]:
    """Holds back what libraries write to stderr while they load; shows it if that fails.

    Newer TensorFlows greet there before any setting of theirs can stop them.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(shown, held.read())
            raise
        finally:
            os.dup2(shown, 2)
            os.close(shown)


RUNS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "average": _average,
    "check": _check,
    "completion": _completion,
    "describe": _describe,
    "evaluate": _evaluate,
    "export": _export,
    "init": _init,
    "launch": _launch,
    "plot": _plot,
    "predict": _predict,
    "train": _train,
    "verify": _verify,
}
"""Takes the options; returns the exit code, None: all went well."""
