"""What would make a training fit that has run out of memory, by what its graph takes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pydantic

from replicate.app.config import config, sections
from replicate.app.inspect import description
from replicate.console import failures
from replicate.strategy.towers import lockstep

_PARTS = 4  # times as many micro-batches
_SLICE_BYTES = pydantic.ByteSize(2**20)


@contextlib.contextmanager
def explained(settings: config.Config) -> Iterator[None]:
    """Adds to an error of a training that has run out of memory what would make it fit."""
    try:
        yield
    except Exception as error:
        if failures.is_without_memory(error):
            lockstep.add_note(error, _advice(settings))
        raise


def _advice(settings: config.Config) -> str:
    """Returns what the fullest device takes, and what it would take with each of two options.

    Args:
        settings: The config of the training.

    Returns:
        Some sentences; none where the graph cannot be built any more.
    """
    number = settings.micro_batches * _PARTS
    slices = sections.Slices(name="balanced", slice_bytes=_SLICE_BYTES)
    options: dict[str, dict[str, Any]] = {
        f"micro_batches: {number}": {"micro_batches": number},
        "strategy: {name: balanced, slice_bytes: 1MiB}": {"strategy": slices},
    }
    now = _fullest(settings)
    if now is None:
        return ""
    found = {name: _fullest(settings.model_copy(update=each)) for name, each in options.items()}
    totals = {name: _total(device) for name, device in found.items() if device is not None}
    taken = (
        f"By its graph {description.short(now.name)} takes {now.held:,} bytes for weights and "
        f"slots, and {now.step:,} for a step's tensors."
    )
    ways = sorted((name for name in totals if totals[name] < _total(now)), key=totals.__getitem__)
    if not ways:
        return f"{taken} Neither micro_batches nor slice_bytes makes that less: use more devices."
    told = "; ".join(f"with {name} it takes {totals[name]:,} in all" for name in ways)
    return f"{taken} Set the first of these: {told}."


def _fullest(settings: config.Config) -> description.Device | None:
    """Returns the device that takes most; None where the graph cannot be built any more.

    NOTE: whatever a model_fn raises here, it must not hide what the training failed with.
    """
    try:
        return max(description.describe(settings).devices, key=_total)
    except Exception:  # noqa: BLE001
        return None


def _total(device: description.Device) -> int:
    return device.held + device.step
