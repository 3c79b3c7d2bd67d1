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


class Accumulation:
    """Adds up the gradients of successive batches; the code runs across towers.

    Args:
        strategy: The strategy.
        steps: How many batches make one update, 2 or more.
        is_mean: Whether an update takes the mean of the batches' gradients, or their sum.
    """

    def __init__(self, strategy: context.Strategy, steps: int, is_mean: bool):
        self._strategy = strategy
        self._steps = steps
        self._divisor = steps if is_mean else 1

    def add(
        self,
        pairs: context.Pairs,
        update: Update,
        global_step: tf.Variable | None,
    ) -> tf.Operation:
        """Adds gradients to what is gathered, and updates with every `steps`-th batch.

        Of other batches the global step is advanced, if updates do so: it counts batches.

        Args:
            pairs: N pairs of a reduced gradient, a tensor, IndexedSlices or copies of these, and
                its variable.
            update: Takes the N gathered gradients and the global step.
            global_step: Given to updates.

        Returns:
            One operation to run with every batch.
        """
        scope = tf1.get_default_graph().get_name_scope()
        with tf1.name_scope("accumulate"):
            counter = _local(self._strategy, [self._strategy.home], "batches", [], tf.int64)
            gathered = [_Gathered(self._strategy, *pair) for pair in pairs]
            added = [
                item.add(gradient) for item, (gradient, _) in zip(gathered, pairs, strict=True)
            ]
            with tf1.control_dependencies([*added, self._advanced(counter)]):
                is_full = tf.equal(operations.copies_of(counter)[0].read_value(), self._steps)
                before = writers(global_step)

                def apply() -> tf.Operation:
                    means = [item.value(self._divisor) for item in gathered]
                    with tf1.name_scope(f"{scope}/" if scope else None):  # one device's names
                        updated = update(means, global_step)
                    return self._restarted(gathered, counter, updated)

                def count() -> tf.Operation:
                    is_counted = writers(global_step) > before
                    return self._advanced(global_step) if is_counted else tf1.no_op()

                with legacy_cond(), _train_ops_kept():
                    done = tf1.cond(is_full, apply, count)
        return tf1.group(done, name="accumulated")

    def _advanced(self, counter: tf.Variable) -> tf.Operation:
        updated = self._strategy.update(counter, lambda copy: copy.assign_add(1, read_value=False))
        return self._strategy.group(updated)

    def _restarted(
        self, gathered: Sequence["_Gathered"], counter: tf.Variable, updated: types.Nest
    ) -> tf.Operation:
        """Begins anew once the update is made."""
        with tf1.control_dependencies([tf1.group(updated)]):
            emptied = [item.empty() for item in gathered]
            restarted = self._strategy.group(self._strategy.update(counter, _clear))
            return tf1.group(*emptied, restarted)


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

    Dense ones are added up; of sparse ones each touched row is kept once.
    """

    def __init__(self, strategy: context.Strategy, gradient: types.Nest, variable: tf.Variable):
        self._strategy = strategy
        self._shape = variable.shape
        example = values.first_of(gradient)
        self._is_sparse = isinstance(example, tf.IndexedSlices)
        name, places = variable.name.split(":")[0], strategy.sum_places(variable)
        if self._is_sparse:
            shape = [None, *variable.shape[1:].as_list()]
            self._sum = _local(strategy, places, f"{name}/rows", shape, example.dtype)
            self._indices = _local(strategy, places, f"{name}/indices", [None], tf.int64)
        else:
            shape = variable.shape.as_list()
            self._sum = _local(strategy, places, f"{name}/gradient", shape, example.dtype)

    def add(self, gradient: types.Nest) -> tf.Operation:
        """Adds one batch's reduced gradient to each copy."""
        if not self._is_sparse:
            return self._everywhere(
                self._sum, lambda copy, g: copy.assign_add(g, read_value=False), gradient
            )

        def append(rows: tf.Variable, g: tf.IndexedSlices) -> tf.Operation:
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

    def value(self, count: int) -> types.Nest:
        """Returns what is gathered, divided by `count`, copy by copy."""
        found = [
            reductions.divide_onto(copy.read_value(), count, copy.device)
            for copy in operations.copies_of(self._sum)
        ]
        if self._is_sparse:
            copies = operations.copies_of(self._indices)
            shape = tf.constant(self._shape.as_list(), tf.int64)
            pairs = zip(found, copies, strict=True)
            found = [tf.IndexedSlices(rows, i.read_value(), shape) for rows, i in pairs]
        return found[0] if len(found) == 1 else values.Mirrored(found, self._sum.devices)

    def empty(self) -> tf.Operation:
        """Forgets what is gathered."""
        owned = [self._sum, self._indices] if self._is_sparse else [self._sum]
        return tf1.group(*[self._everywhere(variable, _clear) for variable in owned])

    def _everywhere(
        self, variable: tf.Variable, fn: types.Function, *args: types.Nest
    ) -> tf.Operation:
        return self._strategy.group(self._strategy.update(variable, fn, *args))


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
