"""Finds, spells and compares the devices of this machine.

A canonical name is `/device:TYPE:INDEX`, with job, replica and task before it only
where they name another process.
"""

import logging
from collections.abc import Sequence

from replicate import errors
from replicate.compat.tensorflow import tf

_log = logging.getLogger("replicate")

_KNOWN_TYPES = ("CPU", "GPU", "TPU", "XLA_CPU", "XLA_GPU", "TPU_SYSTEM")


def canonicalize(device: str) -> str:
    """Returns the canonical spelling of a device.

    Args:
        device: Such as `/gpu:0`, `GPU:0`, `/device:GPU:0`, or with job, replica and task.

    Raises:
        DeviceError: If it is malformed, or of a type that TensorFlow does not know.
    """
    if not isinstance(device, str) or not device.strip():
        raise errors.DeviceError(
            f"A device is named by a string such as '/gpu:0'; got {device!r}. {_existing()}"
        )
    spelled = device.strip() if device.strip().startswith("/") else f"/{device.strip()}"
    try:
        spec = tf.DeviceSpec.from_string(spelled)
    except ValueError as reason:
        raise errors.DeviceError(
            f"A device is spelled like '/gpu:0' or '/device:GPU:0'; got {device!r}. {_existing()}"
        ) from reason
    kind, index = spec.device_type, spec.device_index
    if kind is None or index is None:
        raise errors.DeviceError(
            f"A device needs a type and a number, like '/gpu:0'; got {device!r}. {_existing()}"
        )
    if kind.upper() not in _types():
        raise errors.DeviceError(
            f"TensorFlow knows no device type {kind!r}; got {device!r}. Known types are "
            f"{', '.join(_types())}. {_existing()}"
        )
    spec = spec.replace(device_type=kind.upper())
    if spec.job in (None, "localhost") and spec.task in (None, 0):
        spec = spec.replace(job=None, replica=None, task=None)
    return spec.to_string()


def _types() -> tuple[str, ...]:
    found = {device.device_type for device in tf.config.list_physical_devices()}
    return (*_KNOWN_TYPES, *sorted(found - set(_KNOWN_TYPES)))


def local_devices(kind: str | None = None) -> tuple[str, ...]:
    """Returns the canonical names of this machine's devices, taking none of their memory.

    Args:
        kind: Such as `"GPU"`; None: every type.
    """
    names = []
    for device_type in [kind] if kind else ("CPU", *_other_types()):
        names += [f"/device:{device_type}:{i}" for i in range(_count(device_type))]
    return tuple(names)


def _other_types() -> list[str]:
    found = {device.device_type for device in tf.config.list_physical_devices()}
    return sorted(found - {"CPU", "XLA_CPU", "XLA_GPU"})


def _count(device_type: str) -> int:
    """Counts logical devices without starting the runtime, which would take GPU memory."""
    count = 0
    for device in tf.config.list_physical_devices(device_type):
        try:
            logical = tf.config.get_logical_device_configuration(device)
        except (ValueError, NotImplementedError):  # a pluggable type has no such configuration
            logical = None
        count += len(logical) if logical else 1
    return count


def _existing() -> str:
    return f"This machine has {', '.join(local_devices())}."


def resolve(devices: Sequence[str] | int | None) -> tuple[str, ...]:
    """Returns the canonical names of the devices that were asked for.

    Args:
        devices: A list of names; an int: that many GPUs, or CPUs where there is no GPU;
            None: all GPUs, or the CPU where there is none.

    Raises:
        DeviceError: If a name is malformed or repeated, if there are none, or if an int is
            below 1 or above what exists.
    """
    gpus = local_devices("GPU")
    if devices is None:
        return gpus or ("/device:CPU:0",)
    if isinstance(devices, bool) or isinstance(devices, str):
        raise errors.DeviceError(
            f"devices is a list of names, a number or None; got {devices!r}. Write "
            f"[{devices!r}]. {_existing()}"
        )
    if isinstance(devices, int):
        return _first(gpus or local_devices("CPU"), devices)
    names = tuple(canonicalize(device) for device in devices)
    if not names:
        raise errors.DeviceError(f"At least one device is needed; got none. {_existing()}")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise errors.DeviceError(
                f"Each device serves one tower; {devices[i]!r} is repeated in {list(devices)}. "
                f"{_existing()}"
            )
    missing = [name for name in names if is_missing(name)]
    if missing:
        _log.warning("This machine lacks %s; the graph is built for it. %s", missing, _existing())
    return names


def _first(available: Sequence[str], count: int) -> tuple[str, ...]:
    if not 1 <= count <= len(available):
        raise errors.DeviceError(
            f"The number of devices is between 1 and {len(available)} here; got {count}. "
            f"{_existing()}"
        )
    return tuple(available[:count])


def is_missing(device: str) -> bool:
    """Whether a canonical name is a device of this process that does not exist."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.job is None and device not in local_devices()


def parameter_device(worker_devices: Sequence[str]) -> str:
    """Returns where variables live: the GPU where there is exactly one, else the CPU."""
    gpus = [d for d in worker_devices if tf.DeviceSpec.from_string(d).device_type == "GPU"]
    if len(gpus) == 1 and len(worker_devices) == 1:
        return gpus[0]
    return "/device:CPU:0"


def is_same(first: str, second: str) -> bool:
    """Whether two spellings name one device."""
    return canonicalize(first) == canonicalize(second)


def make_logical_cpus(count: int) -> tuple[str, ...]:
    """Shows this machine's CPU to TensorFlow as several devices.

    Args:
        count: How many, 1 or more.

    Returns:
        Their canonical names.

    Raises:
        DeviceError: If TensorFlow has started with fewer.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise errors.DeviceError(f"The number of CPU devices is 1 or more; got {count!r}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    if _count("CPU") < count:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
        except RuntimeError as reason:
            raise errors.DeviceError(
                f"TensorFlow has started with {_count('CPU')} CPU device(s), and {count} are "
                "asked for. Make them before the first operation runs."
            ) from reason
    return tuple(f"/device:CPU:{i}" for i in range(count))
