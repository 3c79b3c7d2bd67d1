"""The model's graph on the whole batch, where the batch is static.

TensorFlow and Python fold the number of a tower's rows into constants. One more call of the
model_fn, in a graph of its own and on as many rows as the batch has, gives the graph that one
device would build. The first tower has the names of one device, so that the operation of the
same name there is its partner.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import copied_state
from replicate.strategy import bridge, context, conversion
from replicate.strategy import tower as towers
from replicate.training import outside

_log = logging.getLogger("replicate")


@conversion.unconverted
class _OneOfMany(towers.TowerContext):
    """The tower of the whole batch, for a model that asks how many there are."""

    def __init__(self, strategy: Any, num_towers: int):
        super().__init__(strategy, 0)
        self._num_towers = num_towers

    @property
    def num_towers(self) -> int:
        """See base class."""
        return self._num_towers

    @property
    def is_of_one_batch(self) -> bool:
        """See base class."""
        return True


class WholeBatch:
    """Calls the model on the whole batch, and finds the partners of the first tower's tensors.

    The call comes before those of the towers; what the model_fn keeps outside of itself is put
    back, and is the towers' alone.

    Args:
        call: The model_fn with all its arguments but features and labels.
        features: The batch's features.
        labels: The batch's labels.
        strategy: Makes a strategy of one tower.
        num_towers: K, over all workers.
        total: How many rows the batch has.
        names: The names that were in use when the first tower began.
        first: The first tower's features and labels.
    """

    def __init__(
        self,
        call: Callable,
        features: Any,
        labels: Any,
        strategy: Callable,
        num_towers: int,
        total: int,
        names: dict,
        first: tuple,
    ):
        self._call = call
        self._model_fn = getattr(call, "model_fn", call)
        self._given = (features, labels)
        self._strategy = strategy
        self._num_towers = num_towers
        self._total = total
        self._names = dict(names)
        self._outer = tf1.get_default_graph()
        scope = self._outer.get_name_scope()
        self._scope = f"{scope}/" if scope else None
        self._graph = tf.Graph()
        self._first = tf.nest.flatten(first, expand_composites=True)
        self._partners: dict = {}
        thread = threading.Thread(target=self._build, name="whole_batch")
        thread.start()  # a thread of its own, whose scopes are nobody's
        thread.join()

    def __call__(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor that one device has in place of the first tower's; or None."""
        if tensor.ref() in self._partners:
            return self._partners[tensor.ref()]
        try:
            found = self._graph.get_tensor_by_name(tensor.name)
        except (KeyError, ValueError):
            return None
        is_same = found.op.type == tensor.op.type and found.dtype == tensor.dtype
        return found if is_same else None

    def _build(self) -> None:
        strategy = self._strategy()
        strategy.warns_of_partitioners = False  # the towers' strategy says so
        tower = _OneOfMany(strategy, self._num_towers)
        try:
            with self._graph.as_default(), strategy.scope():
                features, labels = self._start()
                mode = context.Mode(strategy, tower)
                with tf1.name_scope(self._scope), bridge.in_tower(mode):
                    with outside.untouched(self._model_fn):
                        self._call(features, labels)
        except Exception as reason:  # noqa: BLE001 - whatever a user's code raises
            self._graph, self._partners = tf.Graph(), {}
            _log.info("The model cannot be built on the whole batch: %s", reason)

    def _start(self) -> tuple:
        """Makes what is there before the model: seed, names, global step, the batch."""
        graph, outer = self._graph, self._outer
        graph.seed = outer.seed
        copied_state.count_alike(graph, outer)
        if tf1.train.get_global_step(outer) is not None:
            tf1.train.create_global_step(graph)
        graph._names_in_use = dict(self._names)
        with tf1.name_scope("replicate_split/"):
            made = tf.nest.map_structure(self._placeholder, self._given)
        parts = zip(self._first, tf.nest.flatten(made, expand_composites=True), strict=True)
        self._partners = {own.ref(): part for own, part in parts if tf.is_tensor(own)}
        return made

    def _placeholder(self, value: Any) -> Any:
        """Returns a placeholder for all rows of features or labels."""
        if value is None:
            return None
        if isinstance(value, tf.RaggedTensor):
            inner = value.shape[value.ragged_rank + 1 :]
            return tf1.ragged.placeholder(value.dtype, value.ragged_rank, inner)
        value = value if tf.is_tensor(value) else tf.convert_to_tensor(value)
        shape = value.shape
        if shape.rank:
            shape = [self._total, *shape.as_list()[1:]]
        if isinstance(value, tf.SparseTensor):
            return tf1.sparse_placeholder(value.dtype, shape if value.shape.rank else None)
        return tf1.placeholder(value.dtype, shape)
