"""The part of a config that says where a model runs: devices, and the session's settings."""

import re
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from replicate.app.config import checks

__all__ = ["Devices", "Run"]

_DEVICE = re.compile(
    r"(/job:(?P<job>\w+))?(/replica:(?P<replica>\d{1,9}))?(/task:(?P<task>\d{1,9}))?"
    r"(/device:|/?)(?P<kind>[A-Za-z]+):(?P<index>\d{1,9})",
    re.ASCII,
)
_DEVICE_TYPES = ("CPU", "GPU", "TPU")
_MAX_THREADS = 2**12  # per kind; with some ten thousand TensorFlow does not come to its first step


def _device_id(value: Any) -> tuple[str, int, int, str, int] | None:
    """Returns what is the same for all spellings of a device; None where it is none."""
    match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["kind"].upper() not in _DEVICE_TYPES:
        return None
    replica, task, index = (int(match[part] or 0) for part in ("replica", "task", "index"))
    return match["job"] or "localhost", replica, task, match["kind"].upper(), index


def _different(names: Any) -> Any:
    """Takes devices in any usual spelling, each once; whether they exist is known in use."""
    known = [_device_id(name) for name in names]
    broken = []
    for index, (name, one) in enumerate(zip(names, known, strict=True)):
        if one is None:
            error = checks.expected("a device such as /gpu:0, GPU:0 or /device:CPU:1")
        elif one in known[:index]:
            error = checks.expected("a device that is not listed yet")
        else:
            continue
        broken.append(((index,), name, error))
    if broken:
        checks.refuse(*broken)
    return names


def _form_of(value: Any) -> str | None:
    """Tells in which form devices are given."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("gpu", "cpu"):
        return "mapping"
    if value == "auto":
        return "auto"
    return "list" if isinstance(value, list | tuple) else None


Devices = checks.choice(
    _form_of,
    {
        "auto": Literal["auto"],
        "number": checks.whole(1),
        "list": Annotated[checks.listing(str, 1), pydantic.BeforeValidator(_different)],
        "mapping": dict[Literal["gpu", "cpu"], checks.whole(1)],
    },
    "auto, a list of devices, how many, {gpu: n} or {cpu: n}",
)


class Run(checks.Section):
    """Settings of the TensorFlow session, by the names they have in its ConfigProto."""

    allow_soft_placement: checks.Boolean = Field(
        True, description="Whether an operation may run elsewhere when its device cannot."
    )
    log_device_placement: checks.Boolean = Field(
        False, description="Whether to log where each operation is placed."
    )
    gpu_allow_growth: checks.Boolean = Field(
        False, description="Whether to take GPU memory as needed."
    )
    per_process_gpu_memory_fraction: checks.number(above=0) | None = Field(
        None, description="Share of each GPU's memory to take; null: TensorFlow chooses."
    )
    intra_op_parallelism_threads: checks.whole(1, _MAX_THREADS) | None = Field(
        None, description="Threads within one operation; null: TensorFlow chooses."
    )
    inter_op_parallelism_threads: checks.whole(1, _MAX_THREADS) | None = Field(
        None, description="Operations at a time; null: TensorFlow chooses."
    )
