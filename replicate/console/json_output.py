"""Results as JSON (`--json`: one document on stdout, nothing else) and as numbers people read."""

import base64
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from replicate.console import streams

STEP = "global_step"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@contextlib.contextmanager
def alone() -> Iterator[TextIO]:
    """Yields stdout; while entered, what others write there goes to stderr.

    So neither a model_fn's prints nor native code get into a document that a machine reads.
    """
    try:
        is_own = sys.stdout.fileno() == 1
    except (OSError, ValueError):
        is_own = False
    if not is_own:
        shown = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield shown
        return
    encoding, unknown = sys.stdout.encoding, sys.stdout.errors
    with streams.redirected(1, 2) as number:
        with open(number, "w", encoding=encoding, errors=unknown, closefd=False) as shown:
            yield shown


def write(value: Json, file: TextIO) -> None:
    """Writes plain data as one line of JSON."""
    file.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")
    file.flush()


def plain(value: Any) -> Json:
    """Returns what JSON can hold: NaN and infinities become null, bytes text or base64."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value


def summary_line(metrics: Mapping[str, object]) -> str:
    """Returns metrics in one line of text, without the step."""
    names = [name for name in sorted(metrics) if name != STEP]
    return "  ".join(f"{name} {number(metrics[name])}" for name in names)


def number(value: Any) -> str:
    """Returns a number as people read it; nan and inf, which JSON lacks, by these names."""
    found = plain(value)
    if found is None and value is not None:
        return str(float(value))
    return f"{found:.6g}" if isinstance(found, float) else str(found)
