"""One JSON document on stdout, and nothing else there: `--json`."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ["alone", "write"]


@contextlib.contextmanager
def alone() -> Iterator[TextIO]:
    """Yields stdout; while entered, what others write there goes to stderr.

    A model_fn that prints, native code that writes to file descriptor 1: neither is to stand
    beside a document that a machine reads.
    """
    sys.stdout.flush()
    with contextlib.ExitStack() as leave:
        if not _is_own(sys.stdout):
            shown = sys.stdout
            leave.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield shown
            return
        look = {"encoding": sys.stdout.encoding, "errors": sys.stdout.errors}
        shown = leave.enter_context(open(os.dup(1), "w", **look))
        leave.callback(os.dup2, shown.fileno(), 1)
        leave.callback(sys.stdout.flush)
        os.dup2(2, 1)
        yield shown


def _is_own(stream: TextIO) -> bool:
    """Whether a stream is this process's own stdout."""
    try:
        return stream.fileno() == 1
    except (AttributeError, OSError, ValueError):
        return False


def write(value: Any, file: TextIO) -> None:
    """Writes plain data as one line of JSON."""
    file.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")
    file.flush()
