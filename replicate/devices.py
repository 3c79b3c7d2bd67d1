"""Finds, spells and compares the devices of this machine.

A canonical name is `/device:TYPE:INDEX`, with job, replica and task before it only
where they name another process.
"""

import functools
import numbers
import re
import weakref
from collections.abc import Iterable, Sequence

from replicate import errors
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_KNOWN_TYPES = ("CPU", "GPU", "TPU")
_SPELLING = re.compile(
    r"(/job:(?P<job>[A-Za-z]\w*))?(/replica:(?P<replica>\d+))?(/task:(?P<task>\d+))?"
    r"/(device:)?(?P<type>[A-Za-z]\w*):(?P<index>\d+)",
    re.IGNORECASE,
)

_CANONICAL = re.compile(rf"/device:({'|'.join(_KNOWN_TYPES)}):(0|[1-9]\d*)")

# The devices that sessions of a graph show, and those that servers of this process do.
_SHOWN: weakref.WeakKeyDictionary[tf.Graph, frozenset[str]] = weakref.WeakKeyDictionary()
_SERVED: set[str] = set()

_made_cpus = 1  # as how many devices `make_logical_cpus` has shown the CPU


def canonicalize(device: str) -> str:
    """Returns the canonical spelling of a device.

    Args:
        device: Such as `/gpu:0`, `GPU:0`, `/device:GPU:0`, or with job, replica and task.

    Raises:
        DeviceError: If it is malformed, or of a type that TensorFlow does not know.
    """
    if not isinstance(device, str):
        raise errors.DeviceError(
            f"A device is named by a string such as '/gpu:0'; got {device!r}. {_existing()}"
        )
    spelled = device.strip()
    found = _SPELLING.fullmatch(spelled if spelled.startswith("/") else f"/{spelled}")
    if found is None:
        raise errors.DeviceError(
            "A device is spelled with its type and number, like '/gpu:0' or '/device:GPU:0'; "
            f"got {device!r}. {_existing()}"
        )
    kind = found["type"].upper()
    if kind not in _types():
        raise errors.DeviceError(
            f"A device is of a type that TensorFlow knows, {', '.join(_types())}; got "
            f"{device!r}. {_existing()}"
        )
    return f"{_process(found)}/device:{kind}:{int(found['index'])}"


def canonical_or_same(device: str | None) -> str:
    """Returns the canonical name of a device; what names no single one as it is."""
    if not device or _CANONICAL.fullmatch(device):
        return device or ""
    try:
        return canonicalize(device)
    except errors.DeviceError:
        return device


def _process(found: re.Match[str]) -> str:
    """Returns job, replica and task, or nothing where they name this process."""
    is_zero = not any(int(found[part] or 0) for part in ("replica", "task"))
    if is_zero and found["job"] in (None, "localhost"):
        return ""
    parts = [(part, found[part]) for part in ("job", "replica", "task")]
    return "".join(f"/{part}:{value}" for part, value in parts if value is not None)


def _types() -> tuple[str, ...]:
    """Returns the types of devices, those that plug-ins have registered included."""
    found = {device.device_type for device in tf.config.list_physical_devices()}
    return (*_KNOWN_TYPES, *sorted(found - set(_KNOWN_TYPES)))


def local_devices(kind: str | None = None) -> tuple[str, ...]:
    """Returns the canonical names of this machine's devices, taking none of their memory.

    Args:
        kind: Such as `"GPU"`, in place of every type.
    """
    names: list[str] = []
    for device_type in [kind.upper()] if kind else _types():
        names += [f"/device:{device_type}:{i}" for i in range(_count(device_type))]
    return tuple(names)


def _count(device_type: str) -> int:
    """Counts logical devices without starting the runtime, which would take GPU memory."""
    count = 0
    for device in tf.config.get_visible_devices(device_type):
        try:
            logical = tf.config.get_logical_device_configuration(device)
        except (ValueError, NotImplementedError):  # a pluggable type has no such configuration
            logical = None
        count += len(logical) if logical else 1
    return count


def _existing() -> str:
    return f"This machine has {', '.join(local_devices())}."


def resolve(
    devices: Sequence[str] | int | None, *, warn_of_missing: bool = True
) -> tuple[str, ...]:
    """Returns the canonical names of the devices that were asked for.

    Args:
        devices: A list of names; an int: that many GPUs, or CPUs where there is no GPU;
            None: all GPUs, or, where there is none, all CPUs that `make_logical_cpus` made.
        warn_of_missing: Whether to warn, once, of names that this machine lacks; not of CPUs,
            of which sessions make as many as are named.

    Returns:
        One or more names. A name that this machine lacks is kept, since a graph may be
        built for another machine.

    Raises:
        DeviceError: If a name is malformed or repeated, if there are none, or if an int is
            below 1 or above what exists.
    """
    settle_sessions()
    gpus = local_devices("GPU")
    if devices is None:
        return gpus or local_devices("CPU")[:_made_cpus]
    if isinstance(devices, numbers.Integral) and not isinstance(devices, bool):
        return _first(gpus or local_devices("CPU"), int(devices))
    given = _listed(devices)
    names = [canonicalize(device) for device in given]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise errors.DeviceError(
                f"A device serves one tower; {given[i]!r} and {given[names.index(name)]!r} are "
                f"both {name}. Name each device once. {_existing()}"
            )
    missing = [name for name in names if is_missing(name) and "/device:CPU:" not in name]
    if missing and warn_of_missing:
        messages.warn(
            f"This machine lacks {', '.join(sorted(missing))}; the graph is built for them all the "
            f"same. {_existing()}",
            "api.md#devices",
        )
    _SERVED.update(names)
    return tuple(names)


def described(
    workers: Sequence[str], keepers: Sequence[str], are_named: bool, micro_batches: int = 1
) -> str:
    """Returns in one line which devices a model uses.

    Args:
        workers: The canonical names of those that compute.
        keepers: Those of the variables.
        are_named: Whether somebody asked for these.
        micro_batches: In how many parts each computes its rows.
    """
    number = "1 device" if len(workers) == 1 else f"{len(workers)} devices"
    computing, keeping = (", ".join(map(_short, names)) for names in (workers, keepers))
    reason = "" if are_named or local_devices("GPU") else "; TensorFlow sees no GPU"
    parts = f", {micro_batches} micro-batches each" if micro_batches > 1 else ""
    return f"{number}: {computing}{parts}; variables on {keeping}{reason}"


def _short(device: str) -> str:
    return re.sub("/device:([A-Za-z]+):", lambda found: f"/{found[1].lower()}:", device)


def settle_sessions() -> None:
    """Has sessions and servers of this process show, from now on, the devices that are named."""
    sessions.settle_each(_settled, _require_all)


def require(devices: Iterable[str]) -> None:
    """Refuses to run on fewer devices than are named; those of other processes apart.

    Where code runs eagerly they must exist. In a graph it is its sessions that must show them: one
    that is told no number of CPU devices shows as many as are named or were made.

    Args:
        devices: Canonical names.

    Raises:
        DeviceError: If one is missing; of a graph, once a session is made.
    """
    named = frozenset(device for device in devices if device.startswith("/device:"))
    if tf1.executing_eagerly_outside_functions():
        _require_existing(named)
        return
    graph = tf1.get_default_graph()
    while graph.building_function:
        graph = graph.outer_graph
    _SHOWN[graph] = _SHOWN.get(graph, frozenset()) | named
    settle_sessions()


@functools.cache
def _require_existing(named: frozenset[str]) -> None:
    if missing := sorted(filter(is_missing, named)):
        raise errors.DeviceError(
            f"Towers run on devices that exist; this machine lacks {', '.join(missing)}. Name "
            "others; for CPU devices call replicate.devices.make_logical_cpus(n) before "
            f"TensorFlow starts. {_existing()}"
        )


def _settled(graph: tf.Graph | None, config: tf1.ConfigProto | None) -> tf1.ConfigProto | None:
    """Returns the settings of a session of a graph, or a server's; None: TensorFlow's own."""
    shown = _SERVED if graph is None else _SHOWN.get(graph, ())
    number = max(_count("CPU"), number_of_cpus(shown))
    is_told = isinstance(config, tf1.ConfigProto) and "CPU" in config.device_count
    if is_told or number == 1 or not isinstance(config, tf1.ConfigProto | None):
        return config
    settled = tf1.ConfigProto()
    settled.CopyFrom(sessions.default_config() if config is None else config)
    settled.device_count["CPU"] = number
    return settled


def _require_all(session: tf1.Session) -> None:
    """Refuses a session that lacks a device of its graph."""
    named = _SHOWN.get(session.graph, frozenset())
    shown = {canonical_or_same(device.name) for device in session.list_devices()} if named else ()
    hidden = [device for device in sorted(named) if device not in shown]
    if not hidden:
        return
    advice = "Name devices that exist."
    if (number := number_of_cpus(hidden)) > 1:
        advice = (
            f"Leave device_count out of session_config, or give device_count={{'CPU': {number}}}."
        )
    raise errors.DeviceError(
        f"A session must show the devices of all towers; it lacks {', '.join(hidden)}. {advice} "
        f"{_existing()}"
    )


def _listed(devices: Sequence[str] | int) -> list[str]:
    """Returns the items of a list of devices; refuses what is none, and an empty one."""
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        hint = f"Write devices=[{devices!r}]. " if isinstance(devices, str) else ""
        raise errors.DeviceError(
            f"devices is a list of names, a number, or None; got {devices!r}. {hint}{_existing()}"
        )
    given = list(devices)
    if not given:
        raise errors.DeviceError(
            "At least one device is needed; got an empty list. Name one, or leave devices out. "
            f"{_existing()}"
        )
    return given


def _first(available: Sequence[str], count: int) -> tuple[str, ...]:
    if not 1 <= count <= len(available):
        raise errors.DeviceError(
            f"The number of devices is between 1 and {len(available)} here; got {count}. Ask for "
            "fewer, or name devices: CPU devices that are named are made, a number counts those "
            f"that exist. {_existing()}"
        )
    return tuple(available[:count])


def is_missing(device: str) -> bool:
    """Whether a canonical name is a device of this process that does not exist."""
    return device.startswith("/device:") and device not in local_devices()


def parameter_device(worker_devices: Sequence[str]) -> str:
    """Returns where variables live: the GPU where there is exactly one, else the CPU."""
    gpus = [d for d in worker_devices if tf.DeviceSpec.from_string(d).device_type == "GPU"]
    return gpus[0] if len(gpus) == 1 else "/device:CPU:0"


def number_of_cpus(devices: Iterable[str]) -> int:
    """Returns as how many devices a server must show its CPU for these; at least one."""
    specs = [tf.DeviceSpec.from_string(name) for name in devices]
    return max([spec.device_index + 1 for spec in specs if spec.device_type == "CPU"], default=1)


def make_logical_cpus(count: int) -> tuple[str, ...]:
    """Shows this machine's CPU to TensorFlow as several devices.

    Args:
        count: How many, 1 or more.

    Returns:
        Their canonical names.

    Raises:
        DeviceError: If TensorFlow has started with fewer.
    """
    global _made_cpus
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise errors.DeviceError(
            f"The number of CPU devices is 1 or more; got {count!r}. {_existing()}"
        )
    cpu = tf.config.list_physical_devices("CPU")[0]
    if _count("CPU") < count:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
        except RuntimeError as reason:
            raise errors.DeviceError(
                f"CPU devices are made before TensorFlow starts; {count} are asked for, and it "
                f"has started with {_count('CPU')}. Make them before the first operation runs."
            ) from reason
    settle_sessions()
    _made_cpus = max(_made_cpus, count)
    return tuple(f"/device:CPU:{i}" for i in range(count))
