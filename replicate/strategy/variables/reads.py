"""Where a variable is read, and where what is made of it once and for all stands.

An operation that reads a variable belongs beside it, and TensorFlow puts it there, in a graph.
In a function, such as a branch or the body of a loop, a read without a device is given the
caller's device where the function is inlined, and what passes it on to a further condition
cannot be placed: the caller, a tower, is elsewhere than the variable. There it needs a device.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def is_in_function(variable: Any) -> bool:
    """Whether a function is being built that reads the variable anew.

    Args:
        variable: A resource variable of TensorFlow's own.
    """
    is_read = variable._in_graph_mode and variable._cached_value is None
    return is_read and getattr(tf1.get_default_graph(), "building_function", False)


def beside(variable: Any) -> tf.Tensor:
    """Reads a variable on its device, which the operation then names.

    Args:
        variable: A resource variable of TensorFlow's own.
    """
    with _on_device_of(variable):
        return variable._read_variable_op()


def keep_beside(variable: Any) -> Any:
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

    def read_on_device(*args, **kwargs):
        with _on_device_of(variable) if is_in_function(variable) else contextlib.nullcontext():
            return read(*args, **kwargs)

    variable._read_variable_op = read_on_device
    return variable


@contextlib.contextmanager
def _on_device_of(variable: Any) -> Iterator[None]:
    graph = tf1.get_default_graph()
    with graph.colocate_with(None, ignore_existing=True), tf.device(variable.handle.device):
        yield


@contextlib.contextmanager
def outermost() -> Iterator[None]:
    """Leaves the scopes, and the function, in which a variable happens to be used."""
    in_graph = not tf1.executing_eagerly_outside_functions()
    lifted = tfc.ops.init_scope() if in_graph else contextlib.nullcontext()
    with lifted, tf1.control_dependencies(None), tf1.name_scope(None), tf1.device(None):
        yield
