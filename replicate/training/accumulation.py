"""Gradients of several batches become one update.

What is gathered, and how many batches it holds, are local variables: they are not in
the checkpoint, and a restored run starts with them empty.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, reductions
from replicate.strategy.variables import values


def accumulate(
    strategy: Any,
    gradients: Sequence[Any],
    trained: Sequence[Any],
    steps: int,
    update: Callable,
    global_step: Any,
    is_mean: bool,
) -> tf.Operation:
    """Adds gradients to what is gathered, and updates with every `steps`-th batch.

    Args:
        strategy: The `DistributionStrategy`; the code runs across towers.
        gradients: N reduced gradients: tensors, IndexedSlices, or copies of these.
        trained: Their N variables.
        steps: How many batches make one update, 2 or more.
        update: Takes the N gathered gradients and None; returns the update's operation.
        global_step: Advanced with every batch; None: there is none.
        is_mean: Whether an update takes the mean of the batches' gradients, or their sum.

    Returns:
        One operation to run with every batch.
    """
    with tf1.name_scope("accumulate"):
        counter = _local(strategy, lambda: tf.constant(0, tf.int64), "batches", None)
        gathered = [
            _Gathered(strategy, gradient, variable)
            for gradient, variable in zip(gradients, trained, strict=True)
        ]
        added = [item.add(gradient) for item, gradient in zip(gathered, gradients, strict=True)]
        counted = strategy.group(
            strategy.update(counter, lambda copy: copy.assign_add(1, read_value=False))
        )
        with tf1.control_dependencies([*added, counted]):
            is_full = tf.equal(_first(counter).read_value(), steps)

            def apply_and_empty():
                updated = update([item.value(steps if is_mean else 1) for item in gathered], None)
                with tf1.control_dependencies([updated]):
                    emptied = [item.empty() for item in gathered]
                    restarted = strategy.update(
                        counter, lambda copy: copy.assign(tf.zeros([], tf.int64), read_value=False)
                    )
                    return tf1.group(*emptied, strategy.group(restarted))

            with legacy_cond(), _train_ops_kept():
                applied = tf1.cond(is_full, apply_and_empty, tf1.no_op)
    if global_step is None:
        return tf1.group(applied)
    with tf1.control_dependencies([applied.op if isinstance(applied, tf.Tensor) else applied]):
        advanced = strategy.update(global_step, lambda copy: copy.assign_add(1, read_value=False))
    return strategy.group(advanced, name="accumulated")


@contextlib.contextmanager
def legacy_cond():
    """Conditional operations stay in the graph: optimizers look their variables up by it."""
    was_new = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        yield
    finally:
        if was_new:
            tf1.enable_control_flow_v2()


@contextlib.contextmanager
def _train_ops_kept():
    """Keeps an update that cannot be run by itself out of the collection TRAIN_OP."""
    listed = tf1.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    before = list(listed)
    yield
    listed[:] = before


class _Gathered:
    """The gradients of one variable that wait for an update.

    Dense ones are added up; of sparse ones each touched row is kept once.
    """

    def __init__(self, strategy: Any, gradient: Any, variable: Any):
        self._strategy = strategy
        example = _first(gradient)
        name = variable.name.split(":")[0]
        self._is_sparse = isinstance(example, tf.IndexedSlices)
        if not self._is_sparse:
            dense = lambda: tf.zeros(variable.shape, example.dtype)  # noqa: E731 - made late
            self._sum = _local(strategy, dense, f"{name}/gradient", variable)
            return
        self._shape = variable.shape
        rows, row = example.values, variable.shape[1:].as_list()
        shape = [None, *row]
        some = lambda: _nothing(shape, rows.dtype)  # noqa: E731 - made late
        self._sum = _local(strategy, some, f"{name}/rows", variable, shape)
        none = lambda: _nothing([None], tf.int64)  # noqa: E731 - made late
        self._indices = _local(strategy, none, f"{name}/indices", variable, [None])

    def add(self, gradient: Any) -> tf.Operation:
        """Adds one batch's reduced gradient to each copy."""
        if not self._is_sparse:
            return self._everywhere(
                self._sum, lambda copy, g: copy.assign_add(g, read_value=False), gradient
            )

        def append(rows, g):
            indices = _member_like(self._indices, rows)
            joined = reductions.deduplicate(
                tf.IndexedSlices(
                    tf.concat([rows.read_value(), g.values], 0),
                    tf.concat([indices.read_value(), tf.cast(g.indices, tf.int64)], 0),
                )
            )
            return tf1.group(
                rows.assign(joined.values, read_value=False),
                indices.assign(joined.indices, read_value=False),
            )

        return self._everywhere(self._sum, append, gradient)

    def value(self, count: int) -> Any:
        """Returns what is gathered, divided by `count`, copy by copy."""
        divide = functools.partial(_divided, count)
        if not self._is_sparse:
            return _map_copies(divide, self._sum)
        pairs = zip(_copies(self._sum), _copies(self._indices), strict=True)
        shape = tf.constant(self._shape.as_list(), tf.int64)
        slices = [tf.IndexedSlices(divide(r), i.read_value(), shape) for r, i in pairs]
        return slices[0] if len(slices) == 1 else values.Mirrored(slices, self._sum.devices)

    def empty(self) -> tf.Operation:
        """Forgets what is gathered."""
        owned = [self._sum, self._indices] if self._is_sparse else [self._sum]
        return tf1.group(*[self._everywhere(variable, _clear) for variable in owned])

    def _everywhere(self, variable: Any, fn: Callable, *args) -> tf.Operation:
        return self._strategy.group(self._strategy.update(variable, fn, *args))


def _clear(copy: Any) -> tf.Operation:
    return copy.assign(_nothing(copy.shape, copy.dtype), read_value=False)


def _nothing(shape: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns zeros; of a dimension that is None, none."""
    # NOTE: TensorFlow must not know that the dimension is 0. Its graph optimizer takes the
    # shape that a variable is given once for the one it always has, and folds what counts it.
    dynamic = [tf1.placeholder_with_default(0, []) if size is None else size for size in shape]
    return tf.zeros(dynamic, dtype)


def _local(strategy: Any, start: Callable, name: str, beside: Any, shape: Any = None) -> Any:
    """Makes a local variable, with a copy wherever sums for `beside` are made."""
    places = [strategy.home] if beside is None else strategy.sum_places(beside)
    with strategy.colocate_vars_with(places):
        made = tf1.Variable(
            start,
            trainable=False,
            collections=[],
            name=name,
            use_resource=True,
            validate_shape=shape is None,
            shape=shape,
        )
    isolation.add_once(tf1.get_default_graph(), tf1.GraphKeys.LOCAL_VARIABLES, [made])
    return made


def _copies(variable: Any) -> Sequence[Any]:
    return getattr(variable, "members", (variable,))


def _first(value: Any) -> Any:
    if isinstance(value, values.DistributedValues):
        return value.values[0]
    return _copies(value)[0] if isinstance(value, tf.Variable) else value


def _member_like(variable: Any, sibling: Any) -> Any:
    """Returns the copy of `variable` on the device of another variable's copy."""
    copies = _copies(variable)
    same = [copy for copy in copies if copy.device == sibling.device]
    return (same or copies)[0]


def _divided(count: int, copy: Any) -> tf.Tensor:
    return reductions.divide_onto(copy.read_value(), count, copy.device)


def _map_copies(fn: Callable, variable: Any) -> Any:
    tensors = [fn(copy) for copy in _copies(variable)]
    return tensors[0] if len(tensors) == 1 else values.Mirrored(tensors, variable.devices)
