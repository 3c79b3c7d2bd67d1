"""Regularization losses that count nothing, because another tower has counted them.

Where towers' losses are summed, a loss that depends on the weights alone would count
once per tower. The first tower's counts. A later tower's is found in the collection of
regularization losses, or by the name scope in which Keras layers compute it; whatever
reads it is given zero times it instead, so that gradients stay connected. What is in the
collection and depends on the batch, as a divergence of activations, is no such loss.
"""

import re
from collections.abc import Callable, Container, Sequence

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry

_COMPUTED = re.compile(r"/Regularizer(_\d+)?/")


class Silencer:
    """Silences the regularization losses of one tower.

    Args:
        graph: The tower's graph, whose collections are the tower's own.
        scope: The tower's name scope, with a slash at the end.
        made: Returns the operations that the tower has made so far.
        given: For each tower, the operations that make its rows.
    """

    def __init__(
        self,
        graph: tf.Graph,
        scope: str,
        made: Callable[[], Container[tf.Operation]],
        given: Sequence[Sequence[tf.Operation]],
    ):
        self._graph = graph
        self._scope = scope
        self._made = made
        self._given = given
        self._silent: dict[str, tf.Tensor] = {}
        self._zeros: set[tf.Operation] = set()

    def silence(self, loss: tf.Tensor | None = None) -> None:
        """Gives zero to the readers there are by now. To be called before gradients are made.

        A reader is an operation that reads something else as well. What is computed from
        regularization losses alone stays as it is, so that it can be reported.

        Args:
            loss: The tower's loss, to spare the readers that it does not depend on.
        """
        sources = self._penalties()
        if not sources:
            return
        made = self._made()
        reading = None if loss is None else ancestry.made_from([loss])
        alone: set[tf.Operation] = set()
        readers = []
        for operation in self._graph.get_operations():
            if operation in sources:
                alone.add(operation)
            elif operation in made and operation not in self._zeros:
                read = {tensor.op for tensor in operation.inputs}
                if not read & alone:
                    continue
                if all(op in alone or op.type == "Const" for op in read):
                    alone.add(operation)
                elif reading is None or operation in reading:
                    readers.append(operation)
        if loss is not None and loss.op in alone:
            alone = sources
            readers = [op for op in reading - alone if {t.op for t in op.inputs} & alone]
        for reader in readers:
            self._rewire(reader, alone)

    def _penalties(self) -> set[tf.Operation]:
        """Returns the operations that compute regularization losses of weights alone."""
        listed = self._graph.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        found = {item.op for item in listed if isinstance(item, tf.Tensor)}
        found.update(op for op in self._graph.get_operations() if _COMPUTED.search(op.name))
        return found - ancestry.varying(self._graph, *self._given) if found else found

    def _rewire(self, reader: tf.Operation, alone: set) -> None:
        for i, tensor in enumerate(reader.inputs):
            if tensor.op in alone and tensor.dtype.is_floating:
                reader._update_input(i, self._zero(tensor))

    def _zero(self, loss: tf.Tensor) -> tf.Tensor:
        if loss.name not in self._silent:
            with tf1.control_dependencies(None), tf1.name_scope(self._scope):
                with tf1.device(loss.device):
                    zero = tf.multiply(loss, tf.zeros([], loss.dtype), name="counted_once")
            self._silent[loss.name] = zero
            self._zeros.add(zero.op)
        return self._silent[loss.name]
