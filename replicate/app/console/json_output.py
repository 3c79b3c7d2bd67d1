"""Results as JSON (`--json`: one document on stdout, nothing else) and as numbers people read."""

import base64
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import numpy as np

__all__ = ["STEP", "alone", "number", "plain", "summary_line", "write"]

STEP = "global_step"


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


def plain(value: Any) -> Any:
    """Returns what JSON can hold: NaN and infinities become null, bytes text or base64."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(one) for one in value] if np.ndim(value) else plain(value[()])
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value


def summary_line(metrics: Mapping[str, Any]) -> str:
    """Returns metrics in one line of text, without the step."""
    names = [name for name in sorted(metrics) if name != STEP]
    return "  ".join(f"{name} {number(metrics[name])}" for name in names)


def number(value: Any) -> str:
    """Returns a number as people read it; what JSON has no number for is nan or inf here."""
    found = plain(value)
    if found is None and value is not None:
        return str(float(value))
    return f"{found:.6g}" if isinstance(found, float) else str(found)
