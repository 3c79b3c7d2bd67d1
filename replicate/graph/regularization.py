"""Regularization losses that count nothing, because another tower has counted them.

Where towers' losses are summed, a loss that depends on the weights alone would count
once per tower. The first tower's counts. A later tower's is found in the collection of
regularization losses, or by the name scope in which Keras layers compute it; whatever
reads it is given zero times it instead, so that gradients stay connected.
"""

import re
from collections.abc import Callable

from replicate.compat.tensorflow import tf, tf1

_COMPUTED = re.compile(r"/Regularizer(_\d+)?/")


class Silencer:
    """Silences the regularization losses of one tower.

    Args:
        graph: The tower's graph, whose collections are the tower's own.
        scope: The tower's name scope, with a slash at the end.
    """

    def __init__(self, graph: tf.Graph, scope: str):
        self._graph = graph
        self._scope = scope
        self._silent: dict[str, tf.Tensor] = {}
        self._zeros: set[tf.Operation] = set()

    def silence(self, reads: Callable[[tf.Operation], bool] = lambda op: True) -> None:
        """Gives zero to the readers there are by now. To be called before gradients are made.

        Args:
            reads: Which readers; the others keep what they have.
        """
        listed = self._graph.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        listed = {loss.name for loss in listed if isinstance(loss, tf.Tensor)}
        for reader in self._graph.get_operations():
            if reader.name.startswith(self._scope) and not _COMPUTED.search(reader.name):
                for i, tensor in enumerate(reader.inputs):
                    is_loss = tensor.name in listed or _COMPUTED.search(tensor.name)
                    if is_loss and reader not in self._zeros and reads(reader):
                        reader._update_input(i, self._zero(tensor))

    def _zero(self, loss: tf.Tensor) -> tf.Tensor:
        if loss.name not in self._silent:
            with tf1.control_dependencies(None), tf1.name_scope(self._scope):
                with tf1.device(loss.device):
                    zero = tf.multiply(loss, tf.zeros([], loss.dtype), name="counted_once")
            self._silent[loss.name] = zero
            self._zeros.add(zero.op)
        return self._silent[loss.name]


def ancestors(tensor: tf.Tensor) -> set[tf.Operation]:
    """Returns the operations that a tensor is computed from, its own included."""
    waiting, found = [tensor.op], set()
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting.extend(item.op for item in operation.inputs)
    return found
