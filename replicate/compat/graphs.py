"""What is in force where operations are made: with every graph of a thread, or with none.

TensorFlow keeps variable creators, devices and the mode of `tf.distribute` on a graph, so
that what was entered in one graph does not hold in the next. It keeps the stack of default
graphs for each thread, and the method of that stack which `tf.Graph.as_default` calls is
replaced for this thread alone. What stood there before is put back, also after an exception.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf

Value = TypeVar("Value")

# Given a graph that has become the default one, is entered until it no longer is.
Around = Callable[[tf.Graph], contextlib.AbstractContextManager[object]]

_NAME = "get_controller"
# What a graph adds to each operation of some types, whichever thread makes it.
_ADDED = ("_attr_scope_map", "_op_to_kernel_label_map", "_gradient_override_map")


@contextlib.contextmanager
def entered_with(around: Around) -> Iterator[None]:
    """Enters `around(graph)` in each graph that this thread enters inside.

    NOTE: each operation is made in its graph, entered once more. A graph that is the current one
    has entered all that it is to, but a function's: there scopes of names may have been left.
    """
    stack = tfc.ops._default_graph_stack
    own = getattr(stack, _NAME)
    before = vars(stack).get(_NAME)  # this thread's; None: the method of the class

    @contextlib.contextmanager
    def enter(graph: tf.Graph) -> Iterator[tf.Graph]:
        with own(graph) as entered, around(graph):
            yield entered

    def get_controller(graph: tf.Graph) -> contextlib.AbstractContextManager[tf.Graph]:
        is_entered = stack.stack and stack.stack[-1] is graph and not graph.building_function
        return own(graph) if is_entered else enter(graph)

    setattr(stack, _NAME, get_controller)
    try:
        yield
    finally:
        if before is None:
            delattr(stack, _NAME)
        else:
            setattr(stack, _NAME, before)


def added(graph: tf.Graph) -> dict[str, dict[str, Any]]:
    """Returns what a graph adds to each operation of some types, to be given to `set_added`."""
    return {name: getattr(graph, name) for name in _ADDED}


def set_added(graph: tf.Graph, held: Mapping[str, dict[str, Any]]) -> None:
    """Lets a graph add to operations what `held` says, and changes it where scopes begin or end."""
    for name, kept in held.items():
        setattr(graph, name, kept)


@contextlib.contextmanager
def alone(graph: tf.Graph) -> Iterator[None]:
    """Makes operations as they are written: beside none, after none, with nothing added."""
    before = added(graph)
    set_added(graph, {name: {} for name in before})
    try:
        with graph.control_dependencies(None), graph.colocate_with(None, ignore_existing=True):
            yield
    finally:
        set_added(graph, before)


class PerGraph(Generic[Value]):
    """A value for each graph, made when it is first asked for, and one for eager code.

    Args:
        make: Makes one, which must not keep its graph alive.
    """

    def __init__(self, make: Callable[[], Value]):
        self._make = make
        self._found: weakref.WeakKeyDictionary[tf.Graph, Value] = weakref.WeakKeyDictionary()
        self._eager: list[Value] = []

    def get(self) -> Value:
        """Returns that of the current graph; in a function, of the graph around it."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            self._eager = self._eager or [self._make()]
            return self._eager[0]
        with tf.init_scope():
            graph = tf.compat.v1.get_default_graph()
        if graph not in self._found:
            self._found[graph] = self._make()
        return self._found[graph]
