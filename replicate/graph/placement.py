"""Device functions: variables go to parameter devices, all else to the tower's device.

A device function sees each operation as it is made. What the user's code names with
`tf.device` is merged with its answer, and never overruled.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from replicate.compat.tensorflow import tf
from replicate.graph import operations

VARIABLE_TYPES = frozenset(
    """AutoReloadVariable BoostedTreesEnsembleResourceHandleOp
    BoostedTreesQuantileStreamResourceHandleOp MutableDenseHashTable MutableDenseHashTableV2
    MutableHashTable MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
    ResourceConditionalAccumulator VarHandleOp Variable VariableV2""".split()
)
_CPU = "/device:CPU:0"
_ASSUMED_DIMENSION = 1024  # bytes of a variable whose shape is not known yet are a guess


Chooser: TypeAlias = Callable[[tf.TensorShape | None, tf.DType | None], str]
"""Returns the canonical device of the next variable, which has a shape and a dtype."""


def round_robin(devices: Sequence[str]) -> Chooser:
    """Puts variables on one device after the other."""
    turns = itertools.cycle(devices)
    return lambda shape, dtype: next(turns)


def balanced_by_bytes(devices: Sequence[str]) -> Chooser:
    """Puts each variable on the device that holds the fewest bytes so far, or the first of them."""
    held = dict.fromkeys(devices, 0)

    def choose(shape: tf.TensorShape | None, dtype: tf.DType | None) -> str:
        chosen = min(held, key=held.__getitem__)
        held[chosen] += size_in_bytes(shape, dtype)
        return chosen

    return choose


PLACEMENTS: Mapping[str, Callable[[Sequence[str]], Chooser]] = {
    "single": round_robin,
    "round_robin": round_robin,
    "balanced": balanced_by_bytes,
}


def size_in_bytes(shape: tf.TensorShape | None, dtype: tf.DType | None) -> int:
    """Returns a variable's size; unknown dimensions and dtypes are taken as middling."""
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        dimensions = [_ASSUMED_DIMENSION]
    else:
        dimensions = [_ASSUMED_DIMENSION if size is None else size for size in shape.as_list()]
    item = 4 if dtype is None else max(tf.as_dtype(dtype).base_dtype.size or 4, 1)
    return math.prod(dimensions) * item


def device_function(
    chooser: Chooser, worker_device: str, unnamed: set[str] | None = None
) -> Callable[[tf.Operation], str]:
    """Returns what `tf.device` takes in a graph.

    Args:
        chooser: Decides where variables live.
        worker_device: Canonical device of every other operation, but for those that read or
            write a variable by its handle.
        unnamed: Gets the names of operations of which the user's code names no device.
    """
    unnamed = set() if unnamed is None else unnamed
    is_of_cluster = tf.DeviceSpec.from_string(worker_device).job is not None

    def choose(op: tf.Operation) -> str:
        if not op.device:
            unnamed.add(op.name)
        if op.type in VARIABLE_TYPES:
            named = tf.DeviceSpec.from_string(op.device or "")
            if is_of_cluster:
                return _of_cluster(op, named, chooser)
            is_placed = named.device_type is not None
            default = worker_device if is_placed else chooser(*_shape_and_dtype(op))
        else:
            variable = operations.variable_of(op)
            default = (variable and variable.device) or worker_device
        return merged(default, op.device)

    return choose


def _of_cluster(op: tf.Operation, named: tf.DeviceSpec, chooser: Chooser) -> str:
    """Returns where a variable of a cluster is: on the task that is named, or chosen.

    NOTE: whoever names a type of device, as `/cpu:0`, means the device of whichever task it is.
    """
    if named.job is not None and (named.task is not None or named.job != "ps"):
        return merged(_CPU, op.device)
    return merged(chooser(*_shape_and_dtype(op)), op.device)


def keep_beside_variables(graph: tf.Graph) -> None:
    """Lets operations on variables be where these are, and no operation beside what is elsewhere.

    NOTE: the gradient of a loop asks for the shapes of the variables that the loop reads, and
    keeps what it has read of them, and puts that beside the loop, beside the read, or beside both.
    A device function is asked before, and has no say.
    """
    made = {op.name: op for op in graph.get_operations()}  # a function may name outer ones
    for op in made.values():
        beside = operations.colocated_with(op)
        if not beside:
            continue
        variable = operations.variable_of(op)
        if variable is not None and variable.device:
            if set(beside) - {variable.name}:
                op._clear_attr("_class")
                op._set_device(variable.device)
        elif any(_device(other) != op.device for other in map(made.get, beside) if other):
            op._clear_attr("_class")


def _device(op: tf.Operation) -> str:
    """Returns an operation's device, which is its variable's if it uses one or passes one on."""
    handles = [tensor for tensor in op.outputs[:1] if tensor.dtype == tf.resource]
    variable = operations.made_by(handles[0]) if handles else operations.variable_of(op)
    return op.device if variable is None else variable.device


def _shape_and_dtype(op: tf.Operation) -> tuple[tf.TensorShape | None, tf.DType | None]:
    attributes = op.node_def.attr
    shape = tf.TensorShape(attributes["shape"].shape) if "shape" in attributes else None
    dtype = tf.as_dtype(attributes["dtype"].type) if "dtype" in attributes else None
    return shape, dtype


def host_of(device: str) -> str:
    """Returns the CPU of the machine that a device is in."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()


@functools.lru_cache(maxsize=4096)  # asked for each operation, of few devices
def merged(default: str, named: str | None) -> str:
    """Merges a device with what the user named, whose parts win."""
    if not named:
        return default
    return (
        tf.DeviceSpec.from_string(default)
        .make_merged_spec(tf.DeviceSpec.from_string(named))
        .to_string()
    )
