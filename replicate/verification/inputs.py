"""A person's input: its first batches, cut and reordered, and placeholders that look like them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows

_SPARSE = tf1.SparseTensorValue
_RAGGED = tf1.ragged.RaggedTensorValue

Leaf: TypeAlias = npt.NDArray[Any] | tf1.SparseTensorValue | tf1.ragged.RaggedTensorValue | None
"""What a session returns for a tensor of features or labels; None where there is none."""

Batch: TypeAlias = list[Leaf]
"""The leaves of a batch, features first, as `tf.nest` lists them."""


class Round(NamedTuple):
    """Batches that a model sees one after the other, from the same start.

    Attributes:
        label: What they are, for people, e.g. `cut to 5 rows`.
        batches: One or more.
    """

    label: str
    batches: list[Batch]


class Form(NamedTuple):
    """What all batches of an input have in common.

    Attributes:
        nest: Features and labels, with a number in place of each leaf.
        specs: For each leaf a `tf.TypeSpec`, or None where there is none.
    """

    nest: tuple[types.Nest, types.Nest]
    specs: tuple[tf.TypeSpec | None, ...]

    def has_labels(self) -> bool:
        """Whether there is more than features."""
        return any(self.specs[i] is not None for i in tf.nest.flatten(self.nest[1]))

    def is_static(self) -> bool:
        """Whether graphs know the number of rows before they run."""
        return any(spec is not None and rows.static_count(spec) is not None for spec in self.specs)


# Batches outside of a graph.


def row_count(batch: Batch) -> int:
    """Returns B, the number of rows of a batch.

    Raises:
        BatchError: If leaves disagree on it, or it is 0, or none has rows.
    """
    found = [_count(value) for value in batch if value is not None]
    counts = {count for count in found if count is not None}
    if len(counts) != 1 or 0 in counts:
        shown = " and ".join(map(str, sorted(counts))) or "no"
        raise errors.BatchError(
            "Features and labels need one and the same number of rows, 1 or more; got "
            f"{shown} rows. Check the input_fn."
        )
    return counts.pop()


def _count(value: Leaf) -> int | None:
    """Returns how many rows a leaf has, or None if it has no rows, as a scalar."""
    if isinstance(value, _SPARSE):
        return int(value.dense_shape[0])
    if isinstance(value, _RAGGED):
        return len(value.row_splits) - 1
    array = np.asarray(value)
    return len(array) if array.ndim else None


def take(value: Leaf, index: Sequence[int] | npt.NDArray[Any]) -> Leaf:
    """Returns the rows of a leaf that an index names, in its order; scalars and None stay."""
    numbers = np.asarray(index, np.int64)
    if value is None or _count(value) is None:
        return value
    if isinstance(value, _SPARSE):
        return _take_sparse(value, numbers)
    if isinstance(value, _RAGGED):
        return _take_ragged(value, numbers)
    return np.asarray(value)[numbers]


def _take_sparse(value: tf1.SparseTensorValue, index: npt.NDArray[Any]) -> tf1.SparseTensorValue:
    parts = [np.flatnonzero(value.indices[:, 0] == old) for old in index]
    entries = np.concatenate([np.zeros(0, np.int64), *parts])
    indices = value.indices[entries]
    indices[:, 0] = np.repeat(np.arange(len(index)), [len(part) for part in parts])
    shape = np.array([len(index), *value.dense_shape[1:]], np.int64)
    return _SPARSE(indices, value.values[entries], shape)


def _take_ragged(
    value: tf1.ragged.RaggedTensorValue, index: npt.NDArray[Any]
) -> tf1.ragged.RaggedTensorValue:
    begins, ends = value.row_splits[index], value.row_splits[index + 1]
    runs = [np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)]
    inner = take(value.values, np.concatenate([np.zeros(0, np.int64), *runs]))
    splits = np.concatenate([[0], np.cumsum(ends - begins)])
    return _RAGGED(inner, splits.astype(value.row_splits.dtype))


def rounds(batches: Sequence[Batch], num_towers: int, repeats: int) -> list[Round]:
    """Returns the batches as they come, then cut to the sizes at which splits go wrong.

    Args:
        batches: As they come.
        num_towers: K.
        repeats: How many batches a round of cut ones has.
    """
    made = [Round("as they come", list(batches))]
    for size in cut_sizes(min(map(row_count, batches)), num_towers):
        cut = [[take(leaf, range(size)) for leaf in batch] for batch in batches[:repeats]]
        made.append(Round(f"cut to {size} row{'' if size == 1 else 's'}", cut))
    return made


def cut_sizes(row_count: int, num_towers: int) -> list[int]:
    """Returns sizes below B: one that K does not divide, fewer than K, one row."""
    uneven = [size for size in range(1, row_count) if size % num_towers]
    wanted = [*uneven[-1:], num_towers - 1, 1]
    return sorted({size for size in wanted if 1 <= size < row_count}, reverse=True)


# Batches from an input_fn.


def read(
    input_fn: types.Function,
    offered: Mapping[str, Any],
    count: int,
    session_config: tf1.ConfigProto,
) -> tuple[Form, list[Batch]]:
    """Reads the first batches of an input_fn, in a graph and a session of their own.

    Args:
        input_fn: Returns a `tf.data.Dataset`, or features, or a pair with labels.
        offered: Arguments that it may name.
        count: How many batches at most.
        session_config: Of the session.

    Raises:
        BatchError: If there is no batch, or one has no rows, or leaves disagree on them.
    """
    with tf.Graph().as_default():
        element = input_fn(**_named(input_fn, offered))
        if isinstance(element, tf.data.Dataset):
            iterator = tf1.data.make_initializable_iterator(element)
            tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            element = iterator.get_next()
        is_pair = isinstance(element, (list, tuple)) and len(element) == 2
        nest = tuple(element) if is_pair else (element, None)
        leaves = [_as_tensor(leaf) for leaf in tf.nest.flatten(nest)]
        specs = tuple(None if leaf is None else tf.type_spec_from_value(leaf) for leaf in leaves)
        form = Form(tf.nest.pack_sequence_as(nest, list(range(len(leaves)))), specs)
        found = _run([leaf for leaf in leaves if leaf is not None], count, session_config)
    if not found:
        raise errors.BatchError(
            "verify needs one batch or more; the input_fn gave none. Check the input_fn."
        )
    given = map(iter, found)
    batches = [[None if spec is None else next(each) for spec in specs] for each in given]
    for batch in batches:
        row_count(batch)
    return form, batches


def _named(fn: types.Function, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the offered arguments that a function names, or takes by `**`."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin that hides its signature
        return {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    bound = getattr(fn, "keywords", {})  # of a functools.partial
    return {
        name: value
        for name, value in offered.items()
        if (takes_all or name in parameters) and name not in bound
    }


def _as_tensor(leaf: Any) -> types.Rows | None:
    return leaf if leaf is None or isinstance(leaf, rows.KINDS) else tf.convert_to_tensor(leaf)


def _run(leaves: list[types.Rows], count: int, session_config: tf1.ConfigProto) -> list[Batch]:
    """Runs leaves until there are `count` batches, or there is no more."""
    creator = tf1.train.ChiefSessionCreator(config=session_config)
    found: list[Batch] = []
    with tf1.train.MonitoredSession(creator) as session:  # starts an old input's queues, too
        while len(found) < count:
            try:
                found.append(session.run(leaves))
            except tf.errors.OutOfRangeError:
                break
    return found


# Batches into a graph.


class Placeholders(NamedTuple):
    """Placeholders for the batches of one form.

    Attributes:
        features: The nest that a model_fn gets.
        labels: Likewise, or None.
        leaves: All leaves, as `Form.specs` has them.
    """

    features: types.Nest
    labels: types.Nest
    leaves: list[types.Rows | None]

    def feed(self, batch: Batch) -> dict[types.Rows, Leaf]:
        """Returns the feed_dict of a batch."""
        pairs = zip(self.leaves, batch, strict=True)
        return {holder: value for holder, value in pairs if holder is not None}


def placeholders(form: Form, row_count: int) -> Placeholders:
    """Makes placeholders in the default graph.

    Args:
        form: Of the batches.
        row_count: B, for leaves whose shapes say how many rows there are.
    """
    leaves = [None if spec is None else _placeholder(spec, row_count) for spec in form.specs]
    features, labels = tf.nest.pack_sequence_as(form.nest, leaves)
    return Placeholders(features, labels, leaves)


def _placeholder(spec: tf.TypeSpec, row_count: int) -> types.Rows:
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    if shape and shape[0] is not None:
        shape[0] = row_count
    if isinstance(spec, tf.SparseTensorSpec):
        return tf1.sparse_placeholder(spec.dtype, shape)
    if isinstance(spec, tf.RaggedTensorSpec):
        return _ragged_placeholder(spec, shape)
    return tf1.placeholder(spec.dtype, shape)


def _ragged_placeholder(
    spec: tf.RaggedTensorSpec, shape: list[int | None] | None
) -> tf.RaggedTensor:
    inner = None if shape is None else [None, *shape[spec.ragged_rank + 1 :]]
    known = None if shape is None else shape[0]
    made = tf1.placeholder(spec.dtype, inner)
    for level in reversed(range(spec.ragged_rank)):
        count = known + 1 if level == 0 and known is not None else None
        splits = tf1.placeholder(spec.row_splits_dtype, [count])
        made = tf.RaggedTensor.from_row_splits(made, splits, validate=False)
    return made
