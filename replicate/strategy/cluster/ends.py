"""Input that ends in one worker before it ends in another.

A worker whose input has ended goes on with a row of zeros on loan, which counts for nothing,
until no worker has rows any more: then all end together. Where the size of a batch is static
all end with the first of them, as an incomplete batch is dropped.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import batches, collectives, operations, reductions, rows

_NEXT = "IteratorGetNext"
_UNEVEN = (
    "Workers' input ended at different times, and batches of a static size cannot be evened out: "
    "batches of the others are left. "
)
LEAVING = (0, 0, 1)  # instead of what a worker brings to the end: it leaves


class EndSignal(NamedTuple):
    """How a worker that ends before its input does tells the others.

    Attributes:
        brought: What the worker brings to where workers learn of the end in a step: all end
            in a step that is fed `LEAVING` in its place.
        ended: What ends the input. NOTE: it fails in all workers or in none: TensorFlow counts
            the steps that succeed, and workers that have counted otherwise never meet again.
    """

    brought: tf.Tensor
    ended: tf.Operation


class Input(NamedTuple):
    """What a worker's towers are given, and what it has together with others.

    Attributes:
        features: The features, which do not end before all workers' do.
        labels: The labels, likewise.
        workers: The workers whose input ends together.
        numbers: How many rows there are; None: whoever splits the batch may count them.
        checks: What must have run before the values are used.
        end: How to end alone; None: that cannot be told.
        compared: What workers must have alike, beside what is in their graphs.
    """

    features: types.Nest = None
    labels: types.Nest = None
    workers: collectives.Workers = collectives.ALONE
    numbers: batches.Numbers | None = None
    checks: tuple[tf.Operation, ...] = ()
    end: EndSignal | None = None
    compared: Mapping[str, str] = MappingProxyType({})


def joined(
    features: types.Nest, labels: types.Nest, workers: collectives.Workers, is_complete: bool
) -> Input:
    """Lets all workers' input end together.

    Args:
        features: The worker's features, as an Estimator gets them of a dataset.
        labels: The worker's labels, likewise.
        workers: The workers.
        is_complete: Whether every row must count, as in an evaluation: batches that are left
            over then fail the step.

    Returns:
        The input; that of no dataset, or of a worker that is alone, as it is.
    """
    given = Input(features, labels, workers)
    if not isinstance(workers, collectives.CollectiveWorkers):
        return given
    source = _source((features, labels))
    if source is None:
        messages.warn(
            "Input that is no tf.data.Dataset ends in each worker by itself, and the others wait "
            "for one that has ended. Return a Dataset from the input_fn.",
            "machines.md#what-workers-share",
        )
        return given
    leaves = [leaf for leaf in tf.nest.flatten((features, labels)) if rows.is_batched(leaf)]
    static = [count for leaf in leaves if (count := rows.static_count(leaf)) is not None]
    with reductions.alone_on("/device:CPU:0", collectives.SCOPE):
        values, has_next, has_rows = _next(*source)
        if leaves and not static:
            values = _widened(values, has_rows, workers)
        features, labels = _reading(source[0].outputs, values, (features, labels))
        if leaves and not static:
            batched = filter(rows.is_batched, tf.nest.flatten((features, labels)))
            own = tf.where(has_rows, rows.count(next(batched)), 0)
            end, whole = _of_dynamic(has_next, own, workers)
            numbers = batches.Numbers(own, whole)
            return Input(features, labels, workers, numbers, (end.ended,), end)
        end = _of_static(has_next, workers, is_complete)
        return Input(features, labels, workers, None, (end.ended,), end)


def _of_dynamic(
    has_next: tf.Tensor, own: tf.Tensor, workers: collectives.CollectiveWorkers
) -> tuple[EndSignal, tf.Tensor]:
    """Lets the input end where it has ended in all workers; returns all workers' rows, too."""
    brought = tf.stack([tf.cast(has_next, tf.int32), own, 0])
    ready, counts, leaving = tf.unstack(workers.table(brought), axis=1)
    workers.note_counts(counts)
    leaving = tf.reduce_sum(leaving)
    return _ended(brought, tf.reduce_any(ready > 0), leaving, workers), tf.reduce_sum(counts)


def _of_static(
    has_next: tf.Tensor, workers: collectives.CollectiveWorkers, is_complete: bool
) -> EndSignal:
    """Lets the input end where it has ended in one worker."""
    brought = tf.stack([tf.cast(has_next, tf.int32), 0, 0])
    ready, _, leaving = tf.unstack(workers.sum([brought])[0])
    is_uneven = (ready > 0) & (ready < workers.size) & tf.equal(leaving, 0)

    def uneven() -> tf.Operation:
        if not is_complete:
            advice = "Let every worker have as many batches as the others."
            return tf1.group(tf.print(_UNEVEN + advice))
        text = (
            f"{_UNEVEN}An evaluation counts every row: batch without drop_remainder=True, or let "
            "every worker have as many batches as the others."
        )
        return tf1.group(tf.debugging.Assert(tf.constant(False), [text]))

    with tf1.control_dependencies([tf.cond(is_uneven, uneven, tf.no_op)]):
        return _ended(brought, ready >= workers.size, leaving, workers)


def _ended(
    brought: tf.Tensor,
    goes_on: tf.Tensor,
    leaving: tf.Tensor,
    workers: collectives.CollectiveWorkers,
) -> EndSignal:
    """Lets the input end unless it goes on, and if a worker leaves."""

    def end() -> tf.Operation:
        others = tf.where(tf.equal(brought[2], 0), leaving, 0)  # who leaves, too, does not mind
        with tf1.control_dependencies([tf.numpy_function(workers.note_left, [others], [])]):
            # To ask an empty dataset for more is how a session learns of the end.
            empty = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(0))
            return tf1.group(empty.get_next())

    ended = tf.cond(tf.logical_and(goes_on, tf.equal(leaving, 0)), tf.no_op, end)
    workers.wait_for(ended)
    return EndSignal(brought, ended)


_Makers: TypeAlias = Sequence[Callable[[], tf.Tensor]]
"""Of each output of an operation, what makes what stands for it: a row of zeros."""


def _source(nest: types.Nest) -> tuple[tf.Operation, _Makers] | None:
    """Returns what gives a nest; None: it is no dataset's alone, or cannot be lent."""
    leaves = [leaf for leaf in tf.nest.flatten(nest, expand_composites=True) if leaf is not None]
    if not leaves or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return None
    found = [op for op in operations.made_from(leaves) if op.type == _NEXT]
    if len(found) != 1:
        return None
    reached = operations.reached_from(found)
    makers = [make for tensor in found[0].outputs if (make := _lent(tensor, nest)) is not None]
    is_seen = all(leaf.op in reached or leaf.shape.rank == 0 for leaf in leaves)
    return (found[0], makers) if is_seen and len(makers) == len(found[0].outputs) else None


def _next(op: tf.Operation, makers: _Makers) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Returns what an operation gives, or what is lent for it; whether it gave it, and had rows."""
    known = {name: op.get_attr(name) for name in ("output_types", "output_shapes")}
    variant = tf.raw_ops.IteratorGetNextAsOptional(iterator=op.inputs[0], **known)
    has_next = tf.raw_ops.OptionalHasValue(optional=variant)

    def get() -> list[tf.Tensor]:
        return list(tf.raw_ops.OptionalGetValue(optional=variant, **known))

    has_rows = has_next
    dense = [n for n, t in enumerate(op.outputs) if t.dtype != tf.variant and t.shape.rank]
    if dense:  # it may be other workers' alone
        count = tf.cond(has_next, lambda: tf.shape(get()[dense[0]])[0], lambda: 0)
        has_rows = count > 0
    values = tf.cond(has_rows, get, lambda: [make() for make in makers])
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    for value, before in zip(values, op.outputs, strict=True):
        value.set_shape(before.shape)
    return values, has_next, has_rows


def _widened(
    values: Sequence[tf.Tensor], has_rows: tf.Tensor, workers: collectives.CollectiveWorkers
) -> list[tf.Tensor]:
    """Returns what is lent as wide as the others' rows are, where widths are not known."""
    widened = list(values)
    inner = {n: t.shape[1:] for n, t in enumerate(values) if t.shape.rank and t.dtype != tf.variant}
    unknown = [n for n, shape in inner.items() if not shape.is_fully_defined()]
    if not unknown:
        return widened
    own = tf.concat([tf.shape(values[n])[1:] for n in unknown], 0)
    (widths,) = workers.max([tf.where(has_rows, own, 0)])
    split = tf.split(widths, [inner[n].rank for n in unknown])
    for n, width in zip(unknown, split, strict=True):
        lengths, zero = tf.concat([[1], width], 0), tf.zeros([], values[n].dtype)
        widened[n] = tf.cond(
            has_rows,
            lambda n=n: tf.identity(values[n]),
            lambda lengths=lengths, zero=zero: tf.fill(lengths, zero),
        )
        widened[n].set_shape(values[n].shape)
    return widened


def _reading(
    outputs: Sequence[tf.Tensor], values: Sequence[tf.Tensor], nest: types.Nest
) -> types.Nest:
    """Lets all that reads some tensors read others in their place; returns the nest with these."""
    instead = {before.ref(): value for before, value in zip(outputs, values, strict=True)}
    for before, value in zip(outputs, values, strict=True):
        for reader in before.consumers():
            for n, tensor in enumerate(reader.inputs):
                if tensor is before:
                    reader._update_input(n, value)

    def read(leaf: tf.Tensor | None) -> tf.Tensor | None:
        return None if leaf is None else instead.get(leaf.ref(), leaf)

    return tf.nest.map_structure(read, nest, expand_composites=True)


def _lent(tensor: tf.Tensor, nest: types.Nest) -> Callable[[], tf.Tensor] | None:
    """Returns a factory of a row of zeros in place of a tensor; None: its layout is unknown."""
    if tensor.dtype != tf.variant:
        is_known = tensor.shape.rank is not None
        return (lambda: _zeros(tensor.shape, tensor.dtype)) if is_known else None
    for leaf in tf.nest.flatten(nest):
        parts = tf.nest.flatten(leaf, expand_composites=True)
        makers = {part.op for part in parts if isinstance(part, tf.Tensor)}
        if any(tensor is given for op in makers for given in op.inputs):
            if isinstance(leaf, tf.SparseTensor) and leaf.shape.rank is not None:
                return functools.partial(_sparse, leaf)
            if isinstance(leaf, tf.RaggedTensor):
                return functools.partial(_ragged, leaf)
    return None


def _zeros(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Returns a row of zeros, or of empty text; what is not known is one long."""
    return tf.fill(_lengths(shape), tf.zeros([], dtype))


def _lengths(shape: tf.TensorShape) -> list[int]:
    return [1 if length is None else length for length in shape.as_list()]


def _sparse(leaf: tf.SparseTensor) -> tf.Tensor:
    """Returns a sparse row that holds one zero, as datasets hold it."""
    return tf.raw_ops.SerializeSparse(
        sparse_indices=tf.zeros([1, leaf.shape.rank], tf.int64),
        sparse_values=tf.zeros([1], leaf.dtype),
        sparse_shape=tf.constant(_lengths(leaf.shape), tf.int64),
        out_type=tf.variant,
    )


def _ragged(leaf: tf.RaggedTensor) -> tf.Tensor:
    """Returns a ragged row that holds one zero, as datasets hold it."""
    return tf.raw_ops.RaggedTensorToVariant(
        rt_nested_splits=[tf.constant([0, 1], leaf.row_splits.dtype)] * leaf.ragged_rank,
        rt_dense_values=_zeros(tf.TensorShape([1, *leaf.flat_values.shape[1:]]), leaf.dtype),
        batched_input=False,
    )
