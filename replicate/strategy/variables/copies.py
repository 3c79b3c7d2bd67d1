"""What a copy of a variable needs, or a single one that towers read, so that TensorFlow serves it.

`tf.custom_gradient`, and `tf.recompute_grad` with it, walk back from a result to the
operations that hold variables, and look for the variable of each by the operation's
name. Collections hold a distributed variable once, under its first copy's name, so the
operation of a later copy goes by that name as well.

An operation that reads a variable belongs beside it, and TensorFlow puts it there, in a graph.
In a function, such as a branch or the body of a loop, a read without a device is given the
caller's device where the function is inlined, and what passes it on to a further condition
cannot be placed: the caller, a tower, is elsewhere than the variable. There it needs a device.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations


class CopyName(str):
    """The name of a later copy's operation, which also equals the first copy's.

    Its hash is its own name's: in sets and dicts it is a name like any other.

    Args:
        name: The operation's own name.
        first: The name of the first copy's operation.
    """

    first: str

    def __new__(cls, name: str, first: str) -> "CopyName":
        """See base class."""
        copy_name = super().__new__(cls, name)
        copy_name.first = first
        return copy_name

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or self.first == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type["CopyName"], tuple[str, str]]:
        return CopyName, (str(self), self.first)


class CopyOperation(tf.Operation):
    """The operation that holds a later copy."""

    @property
    def name(self) -> CopyName:
        """The operation's name, which also equals the first copy's."""
        return CopyName(super().name, self.name_of_first)


def name_after_first(members: Sequence[tf.Variable]) -> None:
    """Lets the variable be found by the operations of all its copies.

    Args:
        members: The K copies of a variable; nothing happens to those of no graph.
    """
    for member in members[1:]:
        if member._in_graph_mode:
            # NOTE: TensorFlow's variable makes the operation; this one alone gets another class.
            member.handle.op.__class__ = CopyOperation
            member.handle.op.name_of_first = members[0].handle.op.name


def start_of(first: tf.Variable, place: str) -> Callable[[], tf.Tensor]:
    """Returns the initial value of a later copy on its device: the first copy's."""

    def initial_value() -> tf.Tensor:
        with tf.device(place):
            if tf1.executing_eagerly_outside_functions():
                return tf.identity(first.value())
            return tf.identity(first.initial_value)

    return initial_value


def take_from_collections(members: Sequence[tf.Variable]) -> None:
    """Takes copies out of the collections of their graph: the variable is listed for all.

    NOTE: TensorFlow lists a trainable variable as such even in no collection, and what
    `tf.Variable` makes as a global one whatever the collections.
    """
    if not tf1.executing_eagerly_outside_functions():
        for key in (tf1.GraphKeys.TRAINABLE_VARIABLES, tf1.GraphKeys.GLOBAL_VARIABLES):
            isolation.remove(tf1.get_default_graph(), key, members)


def is_of_function(variable: tf.Variable) -> bool:
    """Whether a variable was made in a `tf.function`, and not lifted out of it at once.

    In a graph TensorFlow lists these as global alone, also where they are trainable.
    """
    first = operations.copies_of(variable)[0]
    return isinstance(first, tfc.resource_variable_ops.UninitializedVariable)


@contextlib.contextmanager
def lifted(kwargs: types.Arguments, is_alike: bool) -> Iterator[None]:
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
    with tf.init_scope():
        yield


def keep_reads_beside(variable: tf.Variable) -> tf.Variable:
    """Makes a variable of a graph read itself on its device in functions.

    It stays TensorFlow's own, which all of its code knows; this one object reads otherwise.

    Args:
        variable: What was just made; what is no resource variable of TensorFlow's own, or of no
            graph, is left as it is.

    Returns:
        The variable.
    """
    is_own = isinstance(variable, tfc.resource_variable_ops.BaseResourceVariable)
    if not is_own or not variable._in_graph_mode:
        return variable
    read = variable._read_variable_op

    def read_on_device(*args: bool, **kwargs: bool) -> tf.Tensor:
        graph = tf1.get_default_graph()
        if variable._cached_value is not None or not getattr(graph, "building_function", False):
            return read(*args, **kwargs)
        with graph.colocate_with(None, ignore_existing=True), tf.device(variable.handle.device):
            return read(*args, **kwargs)

    variable._read_variable_op = read_on_device
    return variable


@contextlib.contextmanager
def outermost() -> Iterator[None]:
    """Leaves the scopes, and the function, in which a variable happens to be used."""
    in_graph = not tf1.executing_eagerly_outside_functions()
    lifted = tf.init_scope() if in_graph else contextlib.nullcontext()
    with lifted, tf1.control_dependencies(None), tf1.name_scope(None), tf1.device(None):
        yield
