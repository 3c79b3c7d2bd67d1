"""`replicate` on the command line; imports TensorFlow only for commands that run a model.

What reads a config is imported when there is one to read.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.app.cluster import lifeline, tf_config
from replicate.app.command import assignments, command_line, commands, completion
from replicate.app.console import failures, interrupts, json_output, texts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: As after `replicate` on the command line; None: those of this process.

    Returns:
        The exit code: 0; 1 the run failed; 2 bad usage or config; 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    launcher = lifeline.attached()
    parser, by_name = command_line.parser()
    if completion.is_asked():
        completion.answer(parser, by_name)
    takes_keys = not given or given[0] not in command_line.WITHOUT_KEYS
    try:
        with interrupts.at_once():  # to know the keys is to import what reads a config
            spelt_out = assignments.spelt_out(given, _keys) if takes_keys else given
        options = parser.parse_args(spelt_out)
    except errors.ConfigError as e:
        return _fail(e, commands.BAD_USAGE)
    except SystemExit as e:
        return int(e.code or 0)
    options.command_line = ["replicate", *given]
    options.launcher = launcher
    texts.spell_out(sys.stdout, sys.stderr)
    try:
        with interrupts.terminable():
            run = commands.RUNS[options.command]
            takes_config = options.command not in command_line.WITHOUT_KEYS
            code = _start(run, options) if takes_config else run(options)
            sys.stdout.flush()
        return code or commands.RAN
    except errors.ConfigError as e:
        return _fail(e, commands.BAD_USAGE)
    except KeyboardInterrupt as e:
        text = str(e) if isinstance(e, interrupts.Interrupted) else ""
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(text or "interrupted", file=sys.stderr)
        return interrupts.INTERRUPTED
    except BrokenPipeError:  # who reads stdout has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return commands.RAN
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a text, not a traceback, nor silence
        return _fail(e, commands.FAILED)


def _keys() -> Sequence[str]:
    """Returns the keys of a config that are options by themselves."""
    from replicate.app.config import config

    return tuple(config.Config.model_fields)


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("REPLICATE_DEBUG") == "1":
        raise error
    print(failures.explain(error), file=sys.stderr)
    return code


def _start(
    run: Callable[[argparse.Namespace], int | None], options: argparse.Namespace
) -> int | None:
    """Reads the configs, all of them before any fault is reported, and runs the command.

    Returns:
        The command's exit code; None: it ran.
    """
    with interrupts.at_once():
        from replicate.app.config import functions

    options.settings, options.faults = _loaded(options)
    wants_json = getattr(options, "json", False)
    is_told = wants_json and options.command == "check" and not options.print_config
    if options.faults and not is_told:
        raise errors.ConfigError("\n".join(options.faults.values()))
    if options.print_config:
        _print_configs(list(options.settings.values()), wants_json)
        return None
    folders = [settings.folder for settings in options.settings.values()]
    with contextlib.ExitStack() as leave:
        if folders:
            leave.enter_context(functions.importable(folders[0]))
        options.out = leave.enter_context(json_output.alone()) if wants_json else sys.stdout
        if options.command != "train":  # else this process is alone, whatever cluster it is in
            leave.enter_context(tf_config.said(None))
        return run(options)


def _loaded(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the configs that can be read, and the faults of the others, by path."""
    with interrupts.at_once():
        from replicate.app.config import config

    found, faults = {}, {}
    for path in options.configs:
        try:
            settings = config.load(path, options.assignments, options.model_dir)
            _need_section(settings, path, options.command, options.assignments)
            found[path] = settings
        except errors.ConfigError as e:
            faults[path] = str(e)
    return found, faults


def _print_configs(found: Sequence[Any], wants_json: bool) -> None:
    """Prints configs with all defaults; as JSON one by itself, several as a list."""
    if not wants_json:
        print("---\n".join(map(_with_defaults, found)), end="")
        return
    from replicate.app.config import config, documents

    plain = [documents.parse(config.to_yaml(one), "config").data for one in found]
    json_output.write(plain[0] if len(plain) == 1 else plain, sys.stdout)


def _with_defaults(settings: Any) -> str:
    from replicate.app.config import config, schema

    return schema.line() + config.to_yaml(settings)


def _need_section(settings: Any, path: str, command: str, given: Sequence[str]) -> None:
    from replicate.app.config import documents

    needed = dict.fromkeys(("describe", "launch", "train", "verify"), "train")
    needed |= {"evaluate": "eval", "predict": "predict"}
    section = needed.get(command)
    if section is not None and getattr(settings, section) is None:
        keys = [text.removeprefix("--").partition("=")[0].strip() for text in given]
        took = [text for key, text in zip(keys, given, strict=True) if key == section]
        place = documents.source_of(took[-1]) if took else f"{path}:1"
        raise errors.ConfigError(
            f"{place}: {section}: this section is required for `replicate {command}`. Add it."
        )
