"""`replicate` on the command line; imports TensorFlow only for commands that run a model.

Help needs no config either: what reads one is imported when there is one to read.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from replicate import errors
from replicate.app import assignments, catalog, failures, interrupts, texts

__all__ = ["main"]

_RAN, _FAILED, _BAD_USAGE = 0, 1, 2
_WITHOUT_CONFIG = ("init",)  # whose options are not a config's keys


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: As after `replicate` on the command line; None: those of this process.

    Returns:
        The exit code: 0; 1 the run failed; 2 bad usage or config; 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with interrupts.at_once():  # it may import what knows the keys
            options = _parsed(given)
    except errors.ConfigError as e:
        return _fail(e, _BAD_USAGE)
    except SystemExit as e:
        return int(e.code or 0)
    options.command_line = ["replicate", *given]
    texts.spell_out(sys.stdout, sys.stderr)
    try:
        with interrupts.terminable():
            code = options.run(options)
            sys.stdout.flush()
        return code or _RAN
    except errors.ConfigError as e:
        return _fail(e, _BAD_USAGE)
    except KeyboardInterrupt as e:
        text = str(e) if isinstance(e, interrupts.Interrupted) else ""
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(text or "interrupted", file=sys.stderr)
        return interrupts.INTERRUPTED
    except BrokenPipeError:  # who reads stdout has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _RAN
    except Exception as e:  # noqa: BLE001 - the last door: a text, not a traceback
        return _fail(e, _FAILED)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    if arguments[:1] not in [[name] for name in _WITHOUT_CONFIG]:
        arguments = assignments.spelt_out(arguments, _keys)
    return _parser().parse_args(arguments)


def _keys() -> Sequence[str]:
    """Returns the keys of a config that are options by themselves."""
    from replicate.app import config

    return tuple(config.Config.model_fields)


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("REPLICATE_DEBUG") == "1":
        raise error
    print(failures.explain(error), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicate",
        description="Trains, evaluates and exports a TensorFlow Estimator model on many devices.",
        epilog="Exit codes: 0; 1 the run failed; 2 bad usage or config; 130 interrupted.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    training = _add(commands, "train", _train, "train, from the last checkpoint if there is one")
    training.add_argument(
        "--fresh",
        action="store_true",
        help="begin again: delete what runs wrote in model_dir; asks before",
    )
    training.add_argument("--yes", action="store_true", help="answer what --fresh asks with yes")
    evaluating = _add(commands, "evaluate", _evaluate, "print metrics as a table")
    which = evaluating.add_mutually_exclusive_group()
    _add_checkpoint(which)
    which.add_argument(
        "--all", action="store_true", help="each checkpoint in model_dir, a row for each"
    )
    evaluating.add_argument("--json", action="store_true", help="print them as JSON")
    predicting = _add(commands, "predict", _predict, "write predictions")
    predicting.add_argument(
        "--output",
        metavar="FILE",
        type=_output,
        help=".jsonl, .csv or .npz; else JSON lines on stdout",
    )
    predicting.add_argument(
        "--saved-model",
        metavar="DIR",
        help="predict with this SavedModel in place of the last checkpoint",
    )
    predicting.add_argument(
        "--signature",
        metavar="NAME",
        help="which signature of --saved-model; else serving_default",
    )
    _add_checkpoint(predicting)
    exporting = _add(
        commands, "export", _export, "write a SavedModel, print its path and signatures"
    )
    _add_checkpoint(exporting)
    averaging = _add(commands, "average", _average, "write the mean of checkpoints as another one")
    which = averaging.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--last", metavar="N", type=_count, help="how many of the newest in model_dir"
    )
    which.add_argument(
        "--checkpoints", metavar="A,B", type=_listed, help="these: steps, paths, best"
    )
    averaging.add_argument(
        "--output", metavar="DIR", help="where to write it; else averaged in model_dir"
    )
    verifying = _add(commands, "verify", _verify, "compare the towers with one device")
    verifying.add_argument("--json", action="store_true", help="print what was found as JSON")
    describing = _add(commands, "describe", _describe, "print variables, devices and transfers")
    describing.add_argument("--json", action="store_true", help="print them as JSON")
    describing.add_argument("--png", metavar="FILE", type=_picture, help="draw them as well")
    _add_plot(commands)
    checking = _add(
        commands, "check", _check, "validate configs, without importing TensorFlow", many=True
    )
    checking.add_argument(
        "--schema",
        action=_PrintSchema,
        nargs=0,
        help="print the JSON Schema of configs, and stop",
    )
    _add_init(commands)
    return parser


def _add_init(commands: Any) -> None:
    """Adds the command that takes no config, but writes one."""
    text = "write a config from a model_fn and a data file"
    parser = commands.add_parser("init", help=text, description=text.capitalize() + ".")
    parser.add_argument("model_fn", metavar="MODEL_FN", help="package.module:function")
    parser.add_argument(
        "data", metavar="DATA", help="a CSV, npz or TFRecord file, or package.module:function"
    )
    parser.add_argument(
        "--output", metavar="FILE", default="config.yaml", help="the config; else config.yaml"
    )
    parser.add_argument("--label", metavar="NAME", help="the column, array or feature to learn")
    parser.add_argument("--optimizer", metavar="NAME", help="e.g. Adam; else model_fn has its own")
    parser.add_argument("--force", action="store_true", help="write over a config that is there")
    parser.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> None:
    with interrupts.at_once():
        from replicate.app import starter

    written = starter.text(
        options.model_fn, options.data, options.output, options.label, options.optimizer
    )
    starter.write(options.output, written, is_new=not options.force)
    print(f"{options.output} is written; look through it, then: replicate train {options.output}")


class _PrintSchema(argparse.Action):
    """Prints the JSON Schema and ends, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """See base class."""
        from replicate.app import schema

        print(schema.text(), end="")
        parser.exit()


def _add(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    text: str,
    many: bool = False,
) -> argparse.ArgumentParser:
    """Adds a command with the options that all commands share."""
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.add_argument("configs", metavar="CONFIG", nargs="+" if many else 1, help="a YAML file")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="override a key, e.g. train.steps=1e3; may be repeated. --train.steps 1e3 is the same",
    )
    parser.add_argument("--model-dir", metavar="DIR", help="override the key model_dir")
    parser.add_argument(
        "--print-config", action="store_true", help="print the config with all defaults, and stop"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only results")
    parser.set_defaults(run=lambda options: _start(run, name, options))
    return parser


def _add_plot(commands: Any) -> None:
    text = "draw learning curves of one or several runs"
    parser = commands.add_parser("plot", help=text, description=text.capitalize() + ".")
    parser.add_argument("model_dirs", metavar="MODEL_DIR", nargs="+", help="of a run")
    parser.add_argument("--png", metavar="FILE", type=_picture, required=True, help="the picture")
    parser.add_argument("--quiet", action="store_true", help="do not name the picture")
    parser.set_defaults(run=_plot)


def _add_checkpoint(parser: Any) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="STEP|PATH|best",
        help="this one in place of the newest; averaged: what `replicate average` wrote",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"must be different checkpoints with commas between them, got {text!r}"
        )
    return names


def _output(path: str) -> str:
    if Path(path).suffix.lower() not in catalog.OUTPUT_ENDINGS:
        raise argparse.ArgumentTypeError(
            f"must end in one of {', '.join(catalog.OUTPUT_ENDINGS)}, got {path!r}"
        )
    return path


def _picture(path: str) -> str:
    if Path(path).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must end in .png, got {path!r}")
    return path


def _start(
    run: Callable[[argparse.Namespace], int | None], name: str, options: argparse.Namespace
) -> int | None:
    """Reads the configs, all of them before any fault is reported, and runs the command.

    Returns:
        The command's exit code; None: it ran.
    """
    with interrupts.at_once():
        from replicate.app import config, functions

    options.settings = []
    faults = []
    for path in options.configs:
        try:
            settings = config.load(path, options.assignments, options.model_dir)
            _need_section(settings, path, name, options.assignments)
            options.settings.append(settings)
        except errors.ConfigError as e:
            faults.append(str(e))
    if faults:
        raise errors.ConfigError("\n".join(faults))
    if options.print_config:
        print("---\n".join(_with_defaults(settings) for settings in options.settings), end="")
        return None
    with functions.importable(options.settings[0].folder):
        return run(options)


def _with_defaults(settings: Any) -> str:
    from replicate.app import config, schema

    return schema.line() + config.to_yaml(settings)


def _need_section(settings: Any, path: str, command: str, given: Sequence[str]) -> None:
    from replicate.app import documents

    needed = {"describe": "train", "train": "train", "verify": "train"}
    needed |= {"evaluate": "eval", "predict": "predict"}
    section = needed.get(command)
    if section is not None and getattr(settings, section) is None:
        keys = [text.removeprefix("--").partition("=")[0].strip() for text in given]
        took = [text for key, text in zip(keys, given, strict=True) if key == section]
        place = documents.source_of(took[-1]) if took else f"{path}:1"
        raise errors.ConfigError(
            f"{place}: {section}: this section is required for `replicate {command}`. Add it."
        )


def _check(options: argparse.Namespace) -> None:
    """Warns of data that is not there: it may come later, or be on another machine."""
    from replicate.app import files, input_config

    if options.quiet:
        return
    for path, settings in zip(options.configs, options.settings, strict=True):
        for section in ("train", "eval", "predict"):
            source = getattr(getattr(settings, section), "input", None)
            for name in files.absent(input_config.files_of(source)):
                warning = f"{section}.input.file: warning: there is no {name} yet"
                print(f"{path}: {warning}", file=sys.stderr)
        print(f"{path}: ok")


def _train(options: argparse.Namespace) -> None:
    may_delete = _asks_before(options)
    runner, report, display = _with_tensorflow(options.quiet)
    settings = options.settings[0]
    done = runner.train(settings, display, options.command_line, may_delete)
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
            f"what runs wrote in {options.settings[0].model_dir}."
        )

    def ask(lines: Sequence[str]) -> bool:
        print(*lines, sep="\n", file=sys.stderr)
        print("Delete it and begin again? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def _evaluate(options: argparse.Namespace) -> None:
    runner, report, display = _with_tensorflow(options.quiet)
    settings = options.settings[0]
    if options.all:
        found = runner.evaluate_all(settings, display)
        if options.json:
            report.print_all_metrics_json(found)
        else:
            report.print_all_metrics(found, settings.name)
        return
    metrics = runner.evaluate(settings, display, options.checkpoint)
    if options.json:
        report.print_metrics_json(metrics)
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
    from replicate.app import exported, predictions

    source = None
    if options.saved_model is not None:
        source = exported.Source(options.saved_model, options.signature or "serving_default")
    rows = runner.predict(options.settings[0], display, source, options.checkpoint)
    if options.output is None:
        predictions.write_lines(rows, sys.stdout)
        return
    count = predictions.write(rows, options.output)
    display.say(f"{count} predictions in {options.output}")


def _export(options: argparse.Namespace) -> None:
    runner, report, _ = _with_tensorflow(options.quiet)
    _print_export(report, runner.export(options.settings[0], options.checkpoint))


def _average(options: argparse.Namespace) -> None:
    runner, _, display = _with_tensorflow(options.quiet)
    path, paths = runner.average(
        options.settings[0], options.last, options.checkpoints or (), options.output
    )
    display.say(f"the mean of {len(paths)} checkpoints: {', '.join(paths)}")
    print(path)


def _verify(options: argparse.Namespace) -> int:
    """Returns 1 where something differs."""
    runner, report, display = _with_tensorflow(options.quiet)
    found = runner.verify(options.settings[0], display)
    if options.json:
        report.print_verification_json(found)
    else:
        report.print_verification(found)
    return _RAN if found.holds else _FAILED


def _describe(options: argparse.Namespace) -> None:
    _, report, display = _with_tensorflow(options.quiet)
    from replicate.app import description

    found = description.describe(options.settings[0])
    if options.png is not None:
        from replicate.app import drawing

        drawing.draw(found, options.png)
    if options.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        report.print_description(found)
    if options.png is not None:
        display.say(f"picture: {options.png}")


def _plot(options: argparse.Namespace) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # large files are read by TensorFlow
    with interrupts.at_once(), _native_stderr_held():
        from replicate.app import curves, plotting

        runs = curves.read(options.model_dirs)
    plotting.plot(runs, options.png)
    if not options.quiet:
        print(f"picture: {options.png}", file=sys.stderr)


def _print_export(report: Any, path: str) -> None:
    from replicate.app import serving

    report.print_signatures(path, serving.signatures(path))


def _with_tensorflow(quiet: bool) -> tuple[Any, Any, Any]:
    """Imports the rooms that need TensorFlow, quietly; returns runner, report, a display."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with interrupts.at_once(), _native_stderr_held():
        from replicate.app import progress, report, runner
    progress.calm_logging(quiet)
    return runner, report, progress.Display(quiet)


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
