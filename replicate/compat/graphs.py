"""What is entered with every graph that a thread makes its default one.

TensorFlow keeps variable creators, devices and the mode of `tf.distribute` on a graph, so
that what was entered in one graph does not hold in the next. It keeps the stack of default
graphs for each thread, and the method of that stack which `tf.Graph.as_default` calls is
replaced for this thread alone. What stood there before is put back, also after an exception.
"""

import contextlib
from collections.abc import Callable, Iterator

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf

# Given a graph that has become the default one, is entered until it no longer is.
Around = Callable[[tf.Graph], contextlib.AbstractContextManager]

_NAME = "get_controller"


@contextlib.contextmanager
def entered_with(around: Around) -> Iterator[None]:
    """Enters `around(graph)` in each graph that this thread enters inside."""
    stack = tfc.ops._default_graph_stack
    own = getattr(stack, _NAME)
    before = vars(stack).get(_NAME)  # this thread's; None: the method of the class

    @contextlib.contextmanager
    def get_controller(graph):
        with own(graph) as entered, around(graph):
            yield entered

    setattr(stack, _NAME, get_controller)
    try:
        yield
    finally:
        if before is None:
            delattr(stack, _NAME)
        else:
            setattr(stack, _NAME, before)
