"""The functions that operations call: branches, bodies of loops, `tf.function`s."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf

_BODIES = {
    "Case": ("branches", 1),
    "If": ("then_branch else_branch", 1),
    "PartitionedCall": ("f", 0),
    "StatefulPartitionedCall": ("f", 0),
    "StatelessCase": ("branches", 1),
    "StatelessIf": ("then_branch else_branch", 1),
    "StatelessWhile": ("body", 0),
    "While": ("body", 0),
}


class Body(NamedTuple):
    """A function as an operation calls it.

    Attributes:
        arguments: The operation's inputs that go in, one for each of `inputs`.
        inputs: The function's own tensors for them.
        outputs: The function's tensors, one for each of the operation's outputs.
    """

    arguments: tuple[tf.Tensor, ...]
    inputs: tuple[tf.Tensor, ...]
    outputs: tuple[tf.Tensor, ...]


def is_call(op: tf.Operation) -> bool:
    """Whether an operation calls functions that may be looked into."""
    return op.type in _BODIES


def bodies(op: tf.Operation) -> Sequence[Body] | None:
    """Returns the functions that an operation calls; None: they cannot be looked into."""
    if not is_call(op):
        return None
    names, first = _BODIES[op.type]
    called: list[Any] = []
    for name in names.split():
        value = op.get_attr(name)
        called.extend(value if isinstance(value, list) else [value])
    found = [_body(op, function.name, op.inputs[first:]) for function in called]
    return None if None in found else found


def _body(op: tf.Operation, name: str, arguments: Sequence[tf.Tensor]) -> Body | None:
    function = op.graph._get_function(name)
    graph = getattr(function, "graph", None)
    if graph is None or len(graph.inputs) != len(arguments):
        return None
    if len(graph.outputs) != len(op.outputs):
        return None
    return Body(tuple(arguments), tuple(graph.inputs), tuple(graph.outputs))
