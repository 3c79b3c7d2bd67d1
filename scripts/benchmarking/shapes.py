"""Shapes of graphs over batches of dynamic size, once it is known how many rows these have."""

from collections.abc import Mapping

from replicate.compat.tensorflow import tf, tf1

OPTIONAL = "IteratorGetNextAsOptional"  # a batch, or that there is none
_NEXT = ("IteratorGetNext", OPTIONAL)
_BRANCHES = ("If", "StatelessIf")


def row_counts(graph: tf.Graph, batch_size: int) -> dict[str, int]:
    """Returns the operations that make a batch, by name, and how many rows they make.

    Args:
        graph: The training graph.
        batch_size: How many rows the batch has.
    """
    found: dict[str, int] = {}
    for op in graph.get_operations():
        if op.type in _NEXT:
            makers = [op]
            if op.type == OPTIONAL:  # a batch, or a borrowed row where the input has ended
                makers = [user for user in op.outputs[0].consumers() if user.type in _BRANCHES]
            found.update((maker.name, batch_size) for maker in makers)
    return found


class Shapes:
    """What a graph with a dynamic batch does not know of its shapes.

    TensorFlow infers it in a copy of the graph that is given a batch of known size.

    Args:
        row_counts: See there.
    """

    def __init__(self, row_counts: Mapping[str, int]):
        self._row_counts = row_counts
        self._copy: tf.Graph | None = None

    def of(self, tensor: tf.Tensor) -> tf.TensorShape | None:
        """Returns a tensor's shape, as far as it can be known; None: it is told two of them."""
        if self._copy is None:
            self._copy = self._copied(tensor.graph)
        try:
            inferred = self._copy.get_tensor_by_name(tensor.name).shape
            return tensor.shape.merge_with(inferred)
        except (KeyError, ValueError):  # it is not there, or of another shape
            return None

    def _copied(self, graph: tf.Graph) -> tf.Graph:
        """Returns a graph with the same names and a batch of known size; else an empty one."""
        makers = [op for op in graph.get_operations() if op.name in self._row_counts]
        with tf.Graph().as_default() as copy:
            # NOTE: what nobody reads cannot be replaced.
            read = [tensor for op in makers for tensor in op.outputs if tensor.consumers()]
            known = {tensor.name: self._known(tensor) for tensor in read}
            try:
                tf1.import_graph_def(graph.as_graph_def(), known, name="")
            except (ValueError, tf.errors.OpError):  # a batch of another size, as it turns out
                return tf.Graph()
        return copy

    def _known(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the same kind with as many rows as the batch."""
        shape = tensor.shape
        if shape.rank and shape.as_list()[0] is None:
            shape = tf.TensorShape([self._row_counts[tensor.op.name]]).concatenate(shape[1:])
        return tf1.placeholder(tensor.dtype, shape, name="replicate_known_rows")
