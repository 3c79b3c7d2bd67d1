"""What went wrong, as text for the person who ran the command."""

import math
import os
import re
import traceback

from replicate import errors
from replicate.console import messages

_LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__) + os.sep)
_NO_MEMORY = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)")
_BITS = {"float": 32, "double": 64, "half": 16, "bool": 8}  # others have the number in their names


def explain(error: BaseException) -> str:
    """Returns the text for an exception: ours as it is, others with where they arose."""
    if isinstance(error, errors.ReplicateError):
        return str(error)
    hints = list(filter(None, [messages.without_estimators(error)]))
    notes = getattr(error, "__notes__", [])
    hints += _without_memory(str(error), bool(notes))
    operation = getattr(error, "op", None)  # of TensorFlow's errors
    hints += [f"The operation is {operation.name}."] if operation is not None else []
    hints += notes
    told = dict.fromkeys([located(error), *hints])
    return "\n".join([*told, "Set REPLICATE_DEBUG=1 to see the traceback."])


def is_without_memory(error: BaseException) -> bool:
    """Tells whether an error says that a device has no memory left."""
    return _NO_MEMORY.search(str(error)) is not None


def _without_memory(message: str, is_advised: bool) -> list[str]:
    """Returns what did not fit and, if nobody has said it, what to do, where memory is full."""
    found = _NO_MEMORY.search(message)
    if found is None:
        return []
    digits = re.search(r"\d+", found[2])
    bits = _BITS.get(found[2]) or int(digits[0] if digits else 0)
    count = math.prod(int(length) for length in found[1].split(",") if length)
    size = f": {count * bits // 8:,} bytes do not fit" if bits else ""
    if is_advised:
        return [f"This device's memory is full{size}."]
    return [
        f"This device's memory is full{size}. Set micro_batches: 2, 4 or 8, which changes "
        "no number; use more devices; or keep variables on several, with strategy: balanced, or "
        "with {name: balanced, slice_bytes: 1MiB} where one is large."
    ]


def located(error: BaseException) -> str:
    """Returns an exception's type and message, after the user's line that it arose in."""
    return f"{_users_line(error)}{type(error).__name__}: {messages.first_lines(error)}"


def _users_line(error: BaseException) -> str:
    """Returns `file:line: ` of the innermost line that is neither ours nor a library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_ours(frame.filename) and not any(one in frame.filename for one in _LIBRARIES):
            return f"{frame.filename}:{frame.lineno}: "
    return ""


def is_ours(file: str) -> bool:
    """Tells whether a file is this package's; its examples are as a user's."""
    here = os.path.dirname(os.path.dirname(__file__)) + os.sep
    return file.startswith(here) and not file.startswith(f"{here}examples")
