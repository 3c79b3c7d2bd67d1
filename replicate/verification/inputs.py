"""A person's input: its first batches, cut and reordered, and placeholders that look like them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.training import optimizer as optimizers


class Batch(NamedTuple):
    """A batch outside of a graph.

    Attributes:
        arrays: What features and labels are made of, as `tf.nest` lists the parts of sparse and
            ragged ones.
        row_count: B.
    """

    arrays: list[npt.NDArray[Any]]
    row_count: int


class Round(NamedTuple):
    """Batches that a model sees one after the other, from the same start.

    Attributes:
        label: What they are, for people, e.g. `cut to 5 rows`.
        batches: One or more.
        reordered: Yields the same with their rows in other orders, and these orders.
    """

    label: str
    batches: list[Batch]
    reordered: Callable[[], Iterator[tuple[list[Batch], list[npt.NDArray[Any]]]]]


class Form(NamedTuple):
    """Nests with a tensor for each leaf, or with the `tf.TypeSpec` of all batches' tensors.

    Attributes:
        features: The features.
        labels: The labels. A leaf that is None stays None.
    """

    features: types.Nest
    labels: types.Nest

    def has_labels(self) -> bool:
        """Whether there is more than features."""
        return any(leaf is not None for leaf in tf.nest.flatten(self.labels))

    def is_static(self) -> bool:
        """Whether graphs know the number of rows before they run."""
        return any(map(_static_count, tf.nest.flatten(self)))

    def parts(self) -> list[Any]:
        """Returns what the leaves are made of, as `Batch.arrays` has it."""
        parts = tf.nest.flatten(self, expand_composites=True)
        return [part for part in parts if part is not None]


def _static_count(leaf: Any) -> int | None:
    return None if leaf is None else rows.static_count(leaf)


def placeholders(form: Form, row_count: int | None) -> Form:
    """Makes placeholders for batches in the default graph.

    Args:
        form: Of the batches.
        row_count: B, for leaves whose shapes say how many rows there are; None: nobody knows.
    """

    def of_rows(spec: Any) -> Any:
        if _static_count(spec) is None:
            return spec
        shape = [row_count, *spec.shape.as_list()[1:]]
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
        return type(spec)(shape, spec.dtype)

    specs = tf.nest.map_structure(of_rows, form)
    parts = tf.nest.flatten(specs, expand_composites=True)
    made = [part and tf1.placeholder(part.dtype, part.shape) for part in parts]
    return tf.nest.pack_sequence_as(specs, made, expand_composites=True)


def feed(holders: Form, batch: Batch) -> dict[tf.Tensor, npt.NDArray[Any]]:
    """Returns the feed_dict that gives placeholders a batch."""
    return dict(zip(holders.parts(), batch.arrays, strict=True))


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
        element = input_fn(**optimizers.arguments(input_fn, offered))
        if isinstance(element, tf.data.Dataset):
            iterator = tf1.data.make_initializable_iterator(element)
            tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            element = iterator.get_next()
        is_pair = isinstance(element, (list, tuple)) and len(element) == 2
        form = Form(*(element if is_pair else (element, None)))
        form = tf.nest.map_structure(_as_tensor, form)
        batches = _read(form, count, session_config)
        specs = tf.nest.map_structure(_spec, form)
    if not batches:
        raise errors.BatchError(
            "verify needs one batch or more; the input_fn gave none. Check the input_fn."
        )
    return specs, batches


def _as_tensor(leaf: Any) -> types.Rows | None:
    return leaf if leaf is None or isinstance(leaf, rows.KINDS) else tf.convert_to_tensor(leaf)


def _spec(leaf: types.Rows | None) -> tf.TypeSpec | None:
    return None if leaf is None else tf.type_spec_from_value(leaf)


def _read(form: Form, count: int, session_config: tf1.ConfigProto) -> list[Batch]:
    """Runs the tensors of a form until there are `count` batches, or there is no more."""
    parts = form.parts()  # NOTE: those of ragged tensors may be made here
    counts = [rows.count(leaf) for leaf in tf.nest.flatten(form) if rows.is_batched(leaf)]
    creator = tf1.train.ChiefSessionCreator(config=session_config)
    batches: list[Batch] = []
    with tf1.train.MonitoredSession(creator) as session:  # starts an old input's queues, too
        while len(batches) < count:
            try:
                arrays, found = session.run((parts, counts))
            except tf.errors.OutOfRangeError:
                break
            batches.append(Batch(arrays, _agreed({int(number) for number in found})))
    return batches


def _agreed(counts: set[int]) -> int:
    """Returns B, the number of rows of all leaves that have rows."""
    if len(counts) != 1 or 0 in counts:
        shown = " and ".join(map(str, sorted(counts))) or "no"
        raise errors.BatchError(
            "Features and labels need one and the same number of rows, 1 or more; got "
            f"{shown} rows. Check the input_fn."
        )
    return counts.pop()


def rounds(
    form: Form,
    batches: Sequence[Batch],
    num_towers: int,
    repeats: int,
    session_config: tf1.ConfigProto,
) -> list[Round]:
    """Returns the batches as they come, then cut to the sizes at which splits go wrong.

    Args:
        form: Of the batches.
        batches: As they come.
        num_towers: K.
        repeats: How many batches a round of cut ones has.
        session_config: Of the session.
    """
    graph = tf.Graph()
    with graph.as_default():
        holders, index = placeholders(form, None), tf1.placeholder(tf.int64, [None])
        taken = tf.nest.map_structure(lambda leaf: _taken(leaf, index), holders).parts()

    def take(batches: Sequence[Batch], indices: Sequence[npt.NDArray[Any]]) -> list[Batch]:
        taken_rows = []
        with tf1.Session(graph=graph, config=session_config) as session:
            for batch, numbers in zip(batches, indices, strict=True):
                feeds = {**feed(holders, batch), index: numbers}
                taken_rows.append(Batch(session.run(taken, feeds), len(numbers)))
        return taken_rows

    def round_of(label: str, batches: list[Batch]) -> Round:
        def reordered() -> Iterator[tuple[list[Batch], list[npt.NDArray[Any]]]]:
            drawn = np.random.RandomState(0)
            counts = [batch.row_count for batch in batches]
            for orders in (
                [np.arange(count)[::-1] for count in counts],
                [drawn.permutation(count) for count in counts],
            ):
                yield take(batches, orders), orders

        return Round(label, batches, reordered)

    made = [round_of("as they come", list(batches))]
    for size in cut_sizes(min(batch.row_count for batch in batches), num_towers):
        label = f"cut to {size} row{'' if size == 1 else 's'}"
        some = batches[:repeats]
        made.append(round_of(label, take(some, [np.arange(size)] * len(some))))
    return made


def cut_sizes(row_count: int, num_towers: int) -> list[int]:
    """Returns sizes below B: one that K does not divide, fewer than K, one row."""
    uneven = [size for size in range(1, row_count) if size % num_towers]
    wanted = [*uneven[-1:], num_towers - 1, 1]
    return sorted({size for size in wanted if 1 <= size < row_count}, reverse=True)


def _taken(leaf: types.Rows | None, index: tf.Tensor) -> types.Rows | None:
    """Returns the rows of a leaf that an index names once each; scalars and None stay."""
    if not rows.is_batched(leaf):
        return leaf
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, index)
    count = tf.size(index, tf.int64)
    numbers = tf.scatter_nd(index[:, None], tf.range(count) + 1, leaf.dense_shape[:1]) - 1
    number = tf.gather(numbers, leaf.indices[:, 0])  # -1 where a row is left out
    kept = tf.sparse.retain(leaf, number >= 0)
    indices = tf.concat([number[number >= 0][:, None], kept.indices[:, 1:]], 1)
    shape = tf.concat([[count], leaf.dense_shape[1:]], 0)
    return tf.sparse.reorder(tf.SparseTensor(indices, kept.values, shape))
