"""What a later copy needs so that TensorFlow takes it for the variable.

`tf.custom_gradient`, and `tf.recompute_grad` with it, walk back from a result to the
operations that hold variables, and look for the variable of each by the operation's
name. Collections hold a distributed variable once, under its first copy's name, so the
operation of a later copy goes by that name as well.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


class CopyName(str):
    """The name of a later copy's operation, which also equals the first copy's.

    Its hash is its own name's: in sets and dicts it is a name like any other.

    Args:
        name: The operation's own name.
        first: The name of the first copy's operation.
    """

    def __new__(cls, name: str, first: str):
        """See base class."""
        made = super().__new__(cls, name)
        made.first = first
        return made

    def __eq__(self, other: Any) -> bool:
        return str.__eq__(self, other) is True or self.first == other

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.first


class CopyOperation(tf.Operation):
    """The operation that holds a later copy."""

    @property
    def name(self) -> CopyName:
        """The operation's name, which also equals the first copy's."""
        return CopyName(super().name, self.name_of_first)


def name_after_first(members: Sequence) -> None:
    """Lets the variable be found by the operations of all its copies.

    Args:
        members: The K copies of a variable; nothing happens to those of no graph.
    """
    for member in members[1:]:
        if member._in_graph_mode:
            # NOTE: TensorFlow's variable makes the operation; this one alone gets another class.
            member.handle.op.__class__ = CopyOperation
            member.handle.op.name_of_first = members[0].handle.op.name


def is_of_function(variable: Any) -> bool:
    """Whether a variable was made in a `tf.function`, and not lifted out of it at once.

    In a graph TensorFlow lists these as global alone, also where they are trainable.
    """
    first = getattr(variable, "members", (variable,))[0]
    return isinstance(first, tfc.resource_variable_ops.UninitializedVariable)


@contextlib.contextmanager
def lifted(kwargs: dict, is_alike: bool) -> Iterator[None]:
    """Leaves a function that a graph will call, to make a copy that starts as the first.

    The start of the first copy has been lifted into the graph. To the function it is an
    argument, from which TensorFlow could lift nothing.

    Args:
        kwargs: What the creator of the copy is given; changed where the function is left.
        is_alike: Whether it is a later copy, with the start of the first.
    """
    in_graph = not tf1.executing_eagerly_outside_functions()
    if not (is_alike and in_graph and tf1.get_default_graph().building_function):
        yield
        return
    kwargs["experimental_enable_variable_lifting"] = False  # or the function's creator makes it
    with tfc.ops.init_scope():
        yield
