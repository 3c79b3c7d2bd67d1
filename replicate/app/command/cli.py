"""`replicate` on the command line: runs a command, turns failures into exit codes.

What reads configs is imported when there is a command to run, TensorFlow only for commands that
run a model.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from replicate import errors
from replicate.app.cluster import lifeline
from replicate.app.command import commands
from replicate.console import failures, interrupts, messages, streams

_RAN, _FAILED, _BAD_USAGE = 0, 1, 2  # exit codes, with interrupts.INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: As after `replicate` on the command line; None: those of this process.

    Returns:
        The exit code: 0; 1 the run failed; 2 bad usage or config; 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    tell = lifeline.attached()
    streams.spell_out(sys.stdout, sys.stderr)
    try:
        with interrupts.at_once():
            try:
                asked = commands.whole_line.main(given, "replicate", standalone_mode=False)
            except SystemExit as e:  # a shell has its answer
                return int(e.code or _RAN)
            if not isinstance(asked, tuple):
                return int(asked or _RAN)
            from replicate.app.command import requests
        with interrupts.terminable():
            command, options = asked
            code = requests.carry_out(command, options, tell)
            sys.stdout.flush()
        return code
    except click.UsageError as e:
        e.show()
        return _BAD_USAGE
    except errors.ConfigError as e:
        return _fail(e, _BAD_USAGE)
    except KeyboardInterrupt as e:
        text = str(e) if isinstance(e, interrupts.Interrupted) else ""
        if tell is not None:
            tell({"stopped": text})
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(messages.for_stream(text or interrupts.AT_ONCE, sys.stderr), file=sys.stderr)
        return interrupts.INTERRUPTED
    except BrokenPipeError:  # who reads stdout has seen enough, as `head` has
        streams.discard(1)
        return _RAN
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a text, not a traceback, nor silence
        is_lost = isinstance(e, errors.ClusterError) or not isinstance(e, errors.ReplicateError)
        if tell is not None and not is_lost:
            tell(lifeline.REFUSED)
        return _fail(e, _FAILED)


def _fail(error: BaseException, code: int) -> int:
    if os.environ.get("REPLICATE_DEBUG") == "1":
        raise error
    print(messages.for_stream(failures.explain(error), sys.stderr), file=sys.stderr)
    return code
