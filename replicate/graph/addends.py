"""The addends of which a loss or a gradient is made.

Towers' losses and gradients are added up. What depends on the weights alone, such as a
penalty written by hand, would count once per tower; where it is an addend of its own,
all towers but the first can leave it out.
"""

from collections.abc import Callable, Container
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import reductions


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
    is_apart: Callable[[tf.Operation], bool],
    whole: Container[tf.Operation] = (),
) -> tuple[Any, Any]:
    """Takes a value apart into two addends.

    Sums are looked through, and what is linear above them: identities, signs, casts, and
    factors that are apart themselves. IndexedSlices are the sum of their slices.

    Args:
        value: A floating tensor or IndexedSlices of a graph.
        is_apart: Which operations make what is to be taken out.
        whole: Operations that are not looked into.

    Returns:
        What stays, and what was taken out, each of the shape of `value` and on its
        device; None for either where there is nothing of it.
    """
    if isinstance(value, tf.IndexedSlices):
        return _split_slices(value, is_apart)
    stays: list = []
    apart: list = []
    waiting = [_Addend(value)]
    while waiting:
        addend = waiting.pop()
        if is_apart(addend.tensor.op):
            apart.append(addend)
            continue
        inner = [] if addend.tensor.op in whole else _within(addend, is_apart)
        waiting.extend(inner)
        if not inner:
            stays.append(addend)
    if not apart:
        return value, None
    if not stays:
        return None, value
    with reductions.on(value.device):
        return _sum(stays), _sum(apart)


def _sum(addends: list[_Addend]) -> tf.Tensor:
    made = [addend.made() for addend in addends]
    return made[0] if len(made) == 1 else tf.add_n(made)


def _within(addend: _Addend, is_apart: Callable) -> list[_Addend]:
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
    if op.type == "Identity":
        return [addend.behind(inputs[0])]
    if op.type == "Neg":
        return [addend.behind(inputs[0], tf.negative)]
    if op.type == "Cast" and inputs[0].dtype.is_floating:
        dtype = addend.tensor.dtype
        return [addend.behind(inputs[0], lambda tensor: tf.cast(tensor, dtype))]
    if op.type in ("Mul", "RealDiv") and is_apart(inputs[1].op):
        scale = tf.multiply if op.type == "Mul" else tf.divide
        return [addend.behind(inputs[0], lambda tensor: scale(tensor, inputs[1]))]
    if op.type == "Mul" and is_apart(inputs[0].op):
        return [addend.behind(inputs[1], lambda tensor: inputs[0] * tensor)]
    return []


def _has_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> bool:
    """Whether a tensor has a shape without being repeated along a dimension."""
    if tensor.shape.rank is None or tensor.shape.rank != shape.rank:
        return False
    pairs = zip(tensor.shape.as_list(), shape.as_list(), strict=True)
    return all(here != 1 or there == 1 for here, there in pairs)


def _split_slices(value: tf.IndexedSlices, is_apart: Callable) -> tuple[Any, Any]:
    if is_apart(value.values.op):
        return None, value
    runs = _concatenated(value.values.op)
    pairs = list(zip(runs, _concatenated(value.indices.op), strict=False))
    stays = [pair for pair in pairs if not is_apart(pair[0].op)]
    if len(pairs) != len(runs) or len(stays) == len(pairs):
        return value, None
    apart = [pair for pair in pairs if is_apart(pair[0].op)]
    with reductions.on(value.values.device):
        return _slices(stays, value), _slices(apart, value)


def _concatenated(op: tf.Operation) -> list[tf.Tensor]:
    """Returns what an operation puts one after the other; the last input is the axis, 0."""
    return list(op.inputs)[:-1] if op.type == "ConcatV2" else []


def _slices(pairs: list[tuple], value: tf.IndexedSlices) -> tf.IndexedSlices:
    runs, places = zip(*pairs, strict=True)
    return tf.IndexedSlices(tf.concat(runs, 0), tf.concat(places, 0), value.dense_shape)
