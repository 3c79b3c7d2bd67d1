"""Operations in place of others of a graph: how they are made, and who reads them from then on."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from replicate.compat import graphs
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import nodes

Moved: TypeAlias = dict[Any, Any]
"""Tensors by the `ref()` of those that they replace, and operations by those that they replace."""


class Context:
    """The loop or the branches that operations belong to, as TensorFlow asks for them.

    NOTE: it must be in no collection, since contexts in collections are exported with a graph.

    Args:
        outer_context: What the loop or the branches are in, if in anything.
        parallel_iterations: How many turns of a loop may run at a time; None for branches.

    Attributes:
        made: What was made while this was the graph's context.
    """

    def __init__(self, outer_context: Any, parallel_iterations: int | None):
        self.outer_context = outer_context
        self.parallel_iterations = parallel_iterations
        self.made: list[tf.Operation] = []

    def IsWhileContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether this is a loop."""
        return self.parallel_iterations is not None

    def IsCondContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether these are branches."""
        return self.parallel_iterations is None

    def AddOp(self, op: tf.Operation) -> None:  # noqa: N802  TensorFlow's name
        """Notes an operation that is made inside."""
        self.made.append(op)

    def IsXLAContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether XLA compiles what is inside: no."""
        return False


@contextlib.contextmanager
def written(
    name: str,
    graph: tf.Graph,
    device: str,
    context: Any = None,
    controls: Sequence[tf.Operation] = (),
) -> Iterator[None]:
    """Makes operations that stand for others, in the graph.

    Args:
        name: Of their scope.
        graph: The graph.
        device: Where they are.
        context: The loop or branch that they are in. Operations without inputs are in it if they
            wait for something that is: see `tf.control_dependencies`.
        controls: What they wait for.
    """
    inside = Context(context, None)
    with graph.as_default(), graphs.alone(graph), graph.device(None), graph.device(device):
        graph._set_control_flow_context(inside)
        with graph.name_scope(None), graph.name_scope(name):
            yield
    for op in inside.made:
        is_inside = bool(op.inputs or op.control_inputs)  # other constants need not be in a branch
        op._set_control_flow_context(context if is_inside else None)
        op._add_control_inputs(list(controls) if is_inside else [])


def create(
    type: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], attributes: nodes.Attributes
) -> Sequence[tf.Tensor]:
    """Adds an operation to the current graph; returns its outputs, of dtypes."""
    made = {key: nodes.attribute(value) for key, value in attributes.items()}
    graph = tf1.get_default_graph()
    return graph.create_op(type, list(inputs), list(dtypes), attrs=made).outputs


def replace(op: tf.Operation, outputs: Sequence[tf.Tensor]) -> Moved:
    """Lets whatever reads an operation, or waits for it, read or wait for new ones.

    Returns:
        The new tensors, by the `ref()` of those that they stand for.
    """
    pairs = list(zip(op.outputs, outputs, strict=False))
    for old, new in pairs:
        read_instead(old.consumers(), old, new)
    wait_instead(op._control_outputs, op, [new.op for new in outputs])
    return {old.ref(): new for old, new in pairs}


def read_instead(users: Iterable[tf.Operation], old: tf.Tensor, new: tf.Tensor) -> None:
    """Lets operations of the graph read a tensor in place of another one."""
    for user in list(users):
        for n, tensor in enumerate(user.inputs):
            if tensor is old:
                user._update_input(n, new)


def wait_instead(
    users: Iterable[tf.Operation], old: tf.Operation, new: Sequence[tf.Operation]
) -> None:
    """Lets operations of the graph wait for others in place of one."""
    for user in list(users):
        waits = [waited for waited in user.control_inputs if waited is not old]
        user._remove_all_control_inputs()
        user._add_control_inputs([*waits, *new])


def moved_to(moved: Moved, fetch: Any) -> Any:
    """Returns what stands for a tensor or an operation, or what is given where nothing does."""
    while (key := fetch.ref() if isinstance(fetch, tf.Tensor) else fetch) in moved:
        fetch = moved[key]
    return fetch


def operation(key: Any) -> tf.Operation:
    """Returns the operation that something stands for, given its key in `Moved`."""
    return key if isinstance(key, tf.Operation) else key.deref().op


def fetch_moved(graph: tf.Graph, moved: Moved) -> None:
    """Lets sessions fetch and feed what stands for something, be they given that or its name."""
    if not moved:
        return
    find = graph.as_graph_element

    def found(obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Any:
        return moved_to(moved, find(obj, allow_tensor, allow_operation))

    graph.as_graph_element = found
