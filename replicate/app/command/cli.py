"""`replicate` on the command line: reads it, runs a command, turns failures into exit codes.

What reads configs is imported when there is a command to run, TensorFlow only for commands that
run a model.
"""

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.app.cluster import lifeline
from replicate.app.command import command_line
from replicate.console import failures, interrupts, messages, streams

_RAN, _FAILED, _BAD_USAGE = 0, 1, 2  # exit codes, with interrupts.INTERRUPTED
_LIGHT = ("check", "init", "launch", "plot")  # they import no TensorFlow


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: As after `replicate` on the command line; None: those of this process.

    Returns:
        The exit code: 0; 1 the run failed; 2 bad usage or config; 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    launcher = lifeline.attached()
    try:
        with interrupts.at_once():
            streams.spell_out(sys.stdout, sys.stderr)
            options = command_line.parse(given)
    except errors.ConfigError as e:
        return _fail(e, _BAD_USAGE)
    except SystemExit as e:
        return int(e.code or 0)
    try:
        with interrupts.terminable():
            code = _run(options, ["replicate", *given], launcher)
            sys.stdout.flush()
        return code
    except errors.ConfigError as e:
        return _fail(e, _BAD_USAGE)
    except KeyboardInterrupt as e:
        text = str(e) if isinstance(e, interrupts.Interrupted) else ""
        if launcher is not None:
            launcher.tell({"stopped": text})
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(messages.for_stream(text or interrupts.AT_ONCE, sys.stderr), file=sys.stderr)
        return interrupts.INTERRUPTED
    except BrokenPipeError:  # who reads stdout has seen enough, as `head` has
        streams.discard(1)
        return _RAN
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a text, not a traceback, nor silence
        is_lost = isinstance(e, errors.ClusterError) or not isinstance(e, errors.ReplicateError)
        if launcher is not None and not is_lost:
            launcher.tell(lifeline.REFUSED)
        return _fail(e, _FAILED)


def _fail(error: BaseException, code: int) -> int:
    if os.environ.get("REPLICATE_DEBUG") == "1":
        raise error
    print(messages.for_stream(failures.explain(error), sys.stderr), file=sys.stderr)
    return code


def _run(
    options: types.SimpleNamespace, line: Sequence[str], launcher: lifeline.Lifeline | None
) -> int:
    """Reads the configs, all of them before any fault is reported, and runs the command."""
    messages.show_progress(not getattr(options, "quiet", False))
    messages.show_news(False)  # commands say which devices they use
    with interrupts.at_once():
        from replicate.app.command import requests

    configs, faults = requests.read_configs(options)
    if faults and (options.command != "check" or options.print_config):
        raise errors.ConfigError("\n".join(faults.values()))
    if options.print_config:
        requests.print_configs(configs.values(), options.json)
        return _RAN
    with requests.surroundings(options, configs.values()) as out:
        request = requests.Request(options, line, launcher, configs, faults, out)
        with interrupts.at_once():
            requests.require_data(request)
        return _function(options.command)(request) or _RAN


def _function(command: str) -> Callable[[Any], int | None]:
    """Returns what runs a command."""
    module = "commands" if command in _LIGHT else "model_commands"
    with interrupts.at_once():
        return getattr(importlib.import_module(f"replicate.app.command.{module}"), command)
