"""The addends of which a loss or a gradient is made.

Towers' losses and gradients are added up. What depends on the weights alone, such as a
penalty written by hand, would count once per tower; where it is an addend of its own,
all towers but the first can leave it out.
"""

import functools
from collections.abc import Callable, Container, Hashable
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import reductions

_SAME = ("Identity", "CheckNumerics", "EnsureShape", "Print")
# What moves, repeats or adds up entries, and treats all addends alike.
_RESHAPES = {
    "Reshape": lambda tensor, op: tf.reshape(tensor, op.inputs[1]),
    "ExpandDims": lambda tensor, op: tf.expand_dims(tensor, op.inputs[1]),
    "Squeeze": lambda tensor, op: tf.squeeze(tensor, op.get_attr("squeeze_dims") or None),
    "Transpose": lambda tensor, op: tf.transpose(tensor, op.inputs[1]),
    "Sum": lambda tensor, op: tf.reduce_sum(tensor, op.inputs[1], op.get_attr("keep_dims")),
}


class _Addend(NamedTuple):
    """A tensor, and what the value that it is an addend of makes of it.

    Attributes:
        tensor: The tensor.
        steps: From the innermost on, as nested pairs of a linear function and the steps
            that follow; None at the end.
    """

    tensor: tf.Tensor
    steps: tuple | None = None

    def behind(self, tensor: tf.Tensor, function: Callable | None = None) -> "_Addend":
        """Returns the addend `tensor`, from which `function` makes this one's tensor."""
        return _Addend(tensor, self.steps if function is None else (function, self.steps))

    def made(self) -> tf.Tensor:
        """Returns what is added."""
        made, steps = self.tensor, self.steps
        while steps is not None:
            function, steps = steps
            made = function(made)
        return made


def split(
    value: Any,
    label_of: Callable[[tf.Operation], Hashable],
    whole: Container[tf.Operation] = (),
    seen: dict | None = None,
) -> dict:
    """Takes a value apart into addends of different origin.

    Sums are looked through, and what is linear above them: identities, signs, casts, new
    shapes, and factors that have a label. IndexedSlices are the sum of their slices.

    Args:
        value: A floating tensor or IndexedSlices of a graph.
        label_of: Returns the label of what an operation makes; None: its addends have
            labels of their own, if it is a sum.
        whole: Operations without a label that are not looked into.
        seen: What earlier calls have found of `label_of` and `whole`, and where this one
            adds what it finds: gradients of one model have most of their past in common.

    Returns:
        For each label the sum of its addends, of the shape of `value` and on its device;
        under None what is left. A value of one label is given back as it is.
    """
    if isinstance(value, tf.IndexedSlices):
        return _split_slices(value, label_of)
    seen = {} if seen is None else seen
    found: dict = {}
    waiting = [_Addend(value)]
    while waiting:
        addend = waiting.pop()
        label = label_of(addend.tensor.op)
        if label is None and _holds_label(addend.tensor, label_of, whole, seen):
            waiting.extend(_within(addend, label_of))
        else:
            found.setdefault(label, []).append(addend)
    if len(found) == 1:
        return dict.fromkeys(found, value)
    with reductions.on(value.device):
        return {label: _sum(addends) for label, addends in found.items()}


def _holds_label(value: tf.Tensor, label_of: Callable, whole: Container, seen: dict) -> bool:
    """Whether one of a tensor's addends has a label.

    NOTE: each operation is asked once. The ways from a gradient back through a model with
    shortcuts are as many as 2 to the power of their number.
    """
    waiting = [value]
    while waiting:
        tensor = waiting[-1]
        if tensor.op in seen:
            waiting.pop()
            continue
        inner = []
        if label_of(tensor.op) is None and tensor.op not in whole:
            inner = [addend.tensor for addend in _within(_Addend(tensor), label_of)]
        unknown = [part for part in inner if part.op not in seen]
        if unknown:
            waiting.extend(unknown)
            continue
        has_label = label_of(tensor.op) is not None
        seen[tensor.op] = has_label or any(seen[part.op] for part in inner)
        waiting.pop()
    return seen[value.op]


def _sum(addends: list[_Addend]) -> tf.Tensor:
    made = [addend.made() for addend in addends]
    return made[0] if len(made) == 1 else tf.add_n(made)


def _within(addend: _Addend, label_of: Callable) -> list[_Addend]:
    """Returns the addends of which one is the sum; none where it is no sum."""
    op = addend.tensor.op
    inputs = list(op.inputs)
    if op.type in ("AddN", "AddV2", "Add", "Sub"):
        if not all(_has_shape(tensor, addend.tensor.shape) for tensor in inputs):
            return []  # one is repeated for each entry of the other
        found = [addend.behind(tensor) for tensor in inputs]
        if op.type == "Sub":
            found[1] = addend.behind(inputs[1], tf.negative)
        return found
    if op.type in _SAME:
        return [addend.behind(inputs[0])]
    if op.type == "Sum" and inputs[0].op.type == "Pack" and addend.tensor.shape.rank == 0:
        packed = list(inputs[0].op.inputs)
        return [addend.behind(tensor) for tensor in packed] if packed[0].shape.rank == 0 else []
    if op.type == "Neg":
        return [addend.behind(inputs[0], tf.negative)]
    if op.type == "Cast" and inputs[0].dtype.is_floating:
        dtype = addend.tensor.dtype
        return [addend.behind(inputs[0], lambda tensor: tf.cast(tensor, dtype))]
    if op.type in _RESHAPES:
        arrange = _RESHAPES[op.type]
        return [addend.behind(inputs[0], lambda tensor: arrange(tensor, op))]
    for at, rebuild in _PRODUCTS.get(op.type, ()):
        if label_of(inputs[1 - at].op) is not None:
            return [addend.behind(inputs[at], functools.partial(rebuild, op, inputs[1 - at]))]
    return []


def _matmul(op: tf.Operation, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.matmul(left, right, op.get_attr("transpose_a"), op.get_attr("transpose_b"))


# For each operation of two inputs, those in which it is linear, and how to make it anew from
# the other input and what replaces this one.
_PRODUCTS: dict = {
    "Mul": (
        (0, lambda op, other, tensor: tensor * other),
        (1, lambda op, other, tensor: other * tensor),
    ),
    "RealDiv": ((0, lambda op, other, tensor: tensor / other),),
    "DivNoNan": ((0, lambda op, other, tensor: tf.math.divide_no_nan(tensor, other)),),
    "MatMul": (
        (0, lambda op, other, tensor: _matmul(op, tensor, other)),
        (1, lambda op, other, tensor: _matmul(op, other, tensor)),
    ),
    "SigmoidGrad": ((1, lambda op, other, tensor: tf.raw_ops.SigmoidGrad(y=other, dy=tensor)),),
    "TanhGrad": ((1, lambda op, other, tensor: tf.raw_ops.TanhGrad(y=other, dy=tensor)),),
    "ReluGrad": (
        (0, lambda op, other, tensor: tf.raw_ops.ReluGrad(gradients=tensor, features=other)),
    ),
}


def _has_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> bool:
    """Whether a tensor has a shape without being repeated along a dimension."""
    if tensor.shape.rank is None or tensor.shape.rank != shape.rank:
        return False
    pairs = zip(tensor.shape.as_list(), shape.as_list(), strict=True)
    return all(here != 1 or there == 1 for here, there in pairs)


def _split_slices(value: tf.IndexedSlices, label_of: Callable) -> dict:
    label = label_of(value.values.op)
    runs, places = _concatenated(value.values.op), _concatenated(value.indices.op)
    if label is not None or not runs or len(runs) != len(places):
        return {label: value}
    found: dict = {}
    for run, place in zip(runs, places, strict=True):
        found.setdefault(label_of(run.op), []).append((run, place))
    if len(found) == 1:
        return dict.fromkeys(found, value)
    with reductions.on(value.values.device):
        return {label: _slices(pairs, value) for label, pairs in found.items()}


def _concatenated(op: tf.Operation) -> list[tf.Tensor]:
    """Returns what an operation puts one after the other; the last input is the axis, 0."""
    return list(op.inputs)[:-1] if op.type == "ConcatV2" else []


def _slices(pairs: list[tuple], value: tf.IndexedSlices) -> tf.IndexedSlices:
    runs, places = zip(*pairs, strict=True)
    return tf.IndexedSlices(tf.concat(runs, 0), tf.concat(places, 0), value.dense_shape)
