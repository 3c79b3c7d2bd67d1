"""Gradients of several batches become one update.

What is gathered, and how many batches it holds, are local variables: they are not in
the checkpoint, and a restored run starts with them empty.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation, operations, reductions
from replicate.strategy import context
from replicate.strategy.variables import values

Update: TypeAlias = Callable[[list[types.Nest], tf.Variable | None], types.Nest]
"""Updates by N gradients; advances the global step, if given, or leaves it to others."""


def accumulated(
    strategy: context.Strategy,
    steps: int,
    is_mean: bool,
    pairs: context.Pairs,
    update: Update,
    global_step: tf.Variable | None,
) -> tf.Operation:
    """Adds gradients to what is gathered, and updates with every `steps`-th batch.

    Of other batches the global step is advanced, if updates do so: it counts batches.

    Args:
        strategy: The strategy; the code runs across towers.
        steps: How many batches make one update, 2 or more.
        is_mean: Whether an update takes the mean of the batches' gradients, or their sum.
        pairs: N pairs of a reduced gradient, a tensor, IndexedSlices or copies of these, and
            its variable.
        update: Takes the N gathered gradients and the global step.
        global_step: Given to updates.

    Returns:
        One operation to run with every batch.
    """
    scope = tf1.get_default_graph().get_name_scope()
    with tf1.name_scope("accumulate"):
        counter = _local(strategy, [strategy.home], "batches", [], tf.int64)
        gathered = [_Gathered(strategy, *pair) for pair in pairs]
        added = [item.add(pair[0]) for item, pair in zip(gathered, pairs, strict=True)]
        with tf1.control_dependencies([*added, _everywhere(strategy, counter, _advance)]):
            is_full = tf.equal(operations.copies_of(counter)[0].read_value(), steps)
            before = writers(global_step)

            def apply() -> tf.Operation:
                means = [item.value(steps if is_mean else 1) for item in gathered]
                with tf1.name_scope(f"{scope}/" if scope else None):  # one device's names
                    updated = update(means, global_step)
                with tf1.control_dependencies([tf1.group(updated)]):  # begins anew
                    filled = [counter, *(variable for item in gathered for variable in item.kept)]
                    return tf1.group(*[_everywhere(strategy, each, _clear) for each in filled])

            def count() -> tf.Operation:
                is_counted = writers(global_step) > before
                return _everywhere(strategy, global_step, _advance) if is_counted else tf1.no_op()

            with legacy_cond(), _train_ops_kept():
                done = tf1.cond(is_full, apply, count)
    return tf1.group(done, name="accumulated")


def _everywhere(
    strategy: context.Strategy, variable: tf.Variable, fn: types.Function, *args: types.Nest
) -> tf.Operation:
    """Runs a function on each copy of a variable."""
    return strategy.group(strategy.update(variable, fn, *args))


def _advance(copy: tf.Variable) -> tf.Operation:
    return copy.assign_add(1, read_value=False)


@contextlib.contextmanager
def legacy_cond() -> Iterator[None]:
    """Conditional operations stay in the graph: optimizers look their variables up by it."""
    was_new = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        yield
    finally:
        if was_new:
            tf1.enable_control_flow_v2()


@contextlib.contextmanager
def _train_ops_kept() -> Iterator[None]:
    """Keeps an update that cannot be run by itself out of the collection TRAIN_OP."""
    listed = tf1.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    before = list(listed)
    yield
    listed[:] = before


class _Gathered:
    """The gradients of one variable that wait for an update.

    Dense ones are added up; of sparse ones each touched row is kept once, beside its index.
    """

    def __init__(self, strategy: context.Strategy, gradient: types.Nest, variable: tf.Variable):
        self._strategy = strategy
        self._shape = variable.shape
        dtype = values.first_of(gradient).dtype
        self._is_sparse = isinstance(values.first_of(gradient), tf.IndexedSlices)
        name, places = variable.name.split(":")[0], strategy.sum_places(variable)
        kept = [("gradient", variable.shape.as_list(), dtype)]
        if self._is_sparse:
            rows = [None, *variable.shape[1:].as_list()]
            kept = [("rows", rows, dtype), ("indices", [None], tf.int64)]
        self.kept = [_local(strategy, places, f"{name}/{own}", *kind) for own, *kind in kept]

    def add(self, gradient: types.Nest) -> tf.Operation:
        """Adds one batch's reduced gradient to each copy."""

        def add(copy: tf.Variable, g: tf.Tensor) -> tf.Operation:
            return copy.assign_add(g, read_value=False)

        def append(rows: tf.Variable, g: tf.IndexedSlices) -> tf.Operation:
            indices = _member_like(self.kept[1], rows)
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

        fn = append if self._is_sparse else add
        return _everywhere(self._strategy, self.kept[0], fn, gradient)

    def value(self, count: int) -> types.Nest:
        """Returns what is gathered, divided by `count`, copy by copy."""
        found = [
            reductions.divide_onto(copy.read_value(), count, copy.device)
            for copy in operations.copies_of(self.kept[0])
        ]
        if self._is_sparse:
            copies = operations.copies_of(self.kept[1])
            shape = tf.constant(self._shape.as_list(), tf.int64)
            pairs = zip(found, copies, strict=True)
            found = [tf.IndexedSlices(rows, i.read_value(), shape) for rows, i in pairs]
        return found[0] if len(found) == 1 else values.Mirrored(found, self.kept[0].devices)


def writers(variable: tf.Variable | None) -> frozenset[tf.Operation]:
    """Returns what writes a variable, or its first copy."""
    if variable is None:
        return frozenset()
    return frozenset(inner for _, inner in operations.writers(operations.copies_of(variable)[0]))


def _clear(copy: tf.Variable) -> tf.Operation:
    return copy.assign(_nothing(copy.shape.as_list(), copy.dtype), read_value=False)


def _nothing(shape: Sequence[int | None], dtype: tf.DType) -> tf.Tensor:
    """Returns zeros; of a dimension that is None, none."""
    # NOTE: TensorFlow must not know that the dimension is 0. Its graph optimizer takes the
    # shape that a variable is given once for the one it always has, and folds what counts it.
    dynamic = [tf1.placeholder_with_default(0, []) if size is None else size for size in shape]
    return tf.zeros(dynamic, dtype)


def _local(
    strategy: context.Strategy,
    places: Sequence[str],
    name: str,
    shape: Sequence[int | None],
    dtype: tf.DType,
) -> tf.Variable:
    """Makes a local variable of zeros, or of no rows, with a copy on each of some devices."""
    with strategy.colocate_vars_with(places):
        made = tf1.Variable(
            lambda: _nothing(shape, dtype),
            trainable=False,
            collections=[],
            name=name,
            use_resource=True,
            validate_shape=None not in shape,
            shape=shape,
        )
    isolation.add_once(tf1.get_default_graph(), tf1.GraphKeys.LOCAL_VARIABLES, [made])
    return made


def _member_like(variable: tf.Variable, sibling: tf.Variable) -> tf.Variable:
    """Returns the copy of `variable` on the device of another variable's copy."""
    copies = operations.copies_of(variable)
    same = [copy for copy in copies if copy.device == sibling.device]
    return (same or copies)[0]
