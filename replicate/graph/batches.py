"""Nests of features and labels become K shards and their row counts.

Rows stay in order: tower i gets the i-th run of n_i rows, and shards differ by at most
one row, the longer ones first. Where there are fewer rows than towers, a tower without
rows gets the batch's first row on loan, and n_i = 0.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, rows

UNLIKE = "The numbers of rows differ between"
EMPTY = "A batch has one row or more;"
CHECK = "Check the input_fn."
ALIKE = (
    "All of a batch's tensors need the same first dimension; a scalar goes whole. For "
    "others see docs/gpus.md#data-without-rows in replicate's repository."
)


class Parts(NamedTuple):
    """What part of a batch each of K towers holds.

    Attributes:
        weights: K parts n_i / B, which sum to 1; floats, or float64 tensors of shape [].
        has_rows: K truths n_i > 0; bools, or bool tensors of shape []. A tower without rows
            computes on a borrowed one, and counts for nothing. The first one has rows, if there
            are no other workers.
    """

    weights: tuple[float | tf.Tensor, ...]
    has_rows: tuple[bool | tf.Tensor, ...]


WHOLE = Parts((1.0,), (True,))


class Numbers(NamedTuple):
    """How many rows there are, where some may be on loan.

    Attributes:
        own: How many rows of the batch are the worker's own: int32, shape [].
        whole: How many all workers have together, likewise.
    """

    own: tf.Tensor
    whole: tf.Tensor


class Batch(NamedTuple):
    """A batch, split.

    Attributes:
        features: K nests of features.
        labels: K nests of labels.
        total: B, the number of all rows: an int, or an int32 tensor of shape []. None with one
            tower, since counting would add operations.
        parts: What part of the rows each tower holds.
    """

    features: list[types.Nest]
    labels: list[types.Nest]
    total: int | tf.Tensor | None
    parts: Parts


class Leaf(NamedTuple):
    """A tensor of features or labels.

    Attributes:
        path: How the user would write it, e.g. `features["image"]`.
        value: A tensor, or None.
    """

    path: str
    value: types.Rows | None

    def count_text(self, number: int) -> str:
        """Returns e.g. `labels have 9 rows`."""
        verb = "have" if self.path in ("features", "labels") else "has"
        return f"{self.path} {verb} {number} row{'' if number == 1 else 's'}"


def split_batch(
    features: types.Nest,
    labels: types.Nest,
    num_towers: int,
    workers: collectives.Workers = collectives.ALONE,
    numbers: Numbers | None = None,
    checks: Sequence[types.Fetch] = (),
) -> Batch:
    """Splits features and labels for K towers.

    Args:
        features: Nest of dense, sparse and ragged tensors of shape [B, ...]. Scalars and
            None go to every tower whole; a tensor of unknown rank counts as batched.
        labels: Likewise, or None.
        num_towers: K >= 1. One tower gets what came, and no operation is added.
        workers: The workers of whose rows weights are parts.
        numbers: How many rows there are; None: they are counted here.
        checks: What must have run before the rows are used.

    Returns:
        K shards. Leaves that disagree on B, or have no rows, only when run end in an
        `InvalidArgumentError` there.

    Raises:
        BatchError: If leaves disagree on B (names both), or none has rows.
    """
    if num_towers * workers.size == 1:
        return Batch([features], [labels], None, WHOLE)
    leaves, total = checked_leaves(features, labels, checks)
    if isinstance(total, int):
        bounds, parts = _static_runs(total, num_towers, total * workers.size)
    else:
        if numbers is None:
            numbers = Numbers(total, workers.total(total))
        total = numbers.own
        bounds, parts = _runs(total, num_towers, None if workers.is_alone else numbers.whole)
    shards = [
        [rows.cut(value, begin, end) if rows.is_batched(value) else value for value in leaves]
        for begin, end in bounds
    ]
    cut = len(tf.nest.flatten(features))
    return Batch(
        [tf.nest.pack_sequence_as(features, shard[:cut]) for shard in shards],
        [tf.nest.pack_sequence_as(labels, shard[cut:]) for shard in shards],
        total,
        parts,
    )


def checked_leaves(
    features: types.Nest, labels: types.Nest, checks: Sequence[types.Fetch] = ()
) -> tuple[list[types.Rows | None], int | tf.Tensor]:
    """Returns all leaves of features and labels, as tensors of one number of rows, and that.

    Args:
        features: See `split_batch`.
        labels: See `split_batch`.
        checks: What must have run before the rows are used.

    Raises:
        BatchError: If leaves disagree on B (names both), or none has rows.
    """
    named = [_as_tensor(leaf) for leaf in leaves_of(features, labels)]
    batched = [leaf for leaf in named if rows.is_batched(leaf.value)]
    if not batched:
        raise errors.BatchError(
            "A batch is split along the first dimension of its tensors; got "
            f"{_listed(named)}. Give features or labels a batch dimension, for example with "
            "dataset.batch(...) in the input_fn."
        )
    total = _agreed_rows(batched)
    total, own_checks = _checked_total(total, batched)
    return [_gated(leaf.value, total, [*own_checks, *checks]) for leaf in named], total


def leaves_of(features: types.Nest, *labels: types.Nest) -> list[Leaf]:
    """Lists the leaves in TensorFlow's order, each with its path."""
    leaves = []
    for root, nest in (("features", features), *(("labels", nest) for nest in labels)):
        values, paths = tf.nest.flatten(nest), _paths(root, nest)
        if len(paths) != len(values):  # a container that only TensorFlow looks into
            paths = [f"{root} (part {i})" for i in range(len(values))]
        leaves += [Leaf(path, value) for path, value in zip(paths, values, strict=True)]
    return leaves


def _paths(path: str, nest: types.Nest) -> list[str]:
    if isinstance(nest, Mapping):
        keys = [(f'"{key}"' if isinstance(key, str) else repr(key), key) for key in sorted(nest)]
        parts = [(f"[{shown}]", nest[key]) for shown, key in keys]
    elif isinstance(nest, tuple) and hasattr(nest, "_fields"):
        parts = [(f".{field}", value) for field, value in zip(nest._fields, nest, strict=True)]
    elif isinstance(nest, (list, tuple)):
        parts = [(f"[{i}]", value) for i, value in enumerate(nest)]
    else:
        return [path]
    return [found for part, value in parts for found in _paths(path + part, value)]


def _as_tensor(leaf: Leaf) -> Leaf:
    """Turns arrays, numbers and variables into tensors, and keeps None."""
    if leaf.value is None or isinstance(leaf.value, rows.KINDS):
        return leaf
    if isinstance(leaf.value, tf1.ragged.RaggedTensorValue):
        return leaf._replace(value=tf.ragged.constant(leaf.value.to_list()))
    try:
        return leaf._replace(value=tf.convert_to_tensor(leaf.value))
    except (TypeError, ValueError) as reason:
        raise errors.BatchError(
            "Features and labels are dense, sparse or ragged tensors; "
            f"{leaf.path} is {type(leaf.value).__name__}. Convert it in the input_fn."
        ) from reason


def _listed(leaves: Sequence[Leaf]) -> str:
    given = [leaf.path for leaf in leaves if leaf.value is not None]
    return f"no rows, only the scalars {', '.join(given)}" if given else "no tensors at all"


def _agreed_rows(batched: Sequence[Leaf]) -> int | None:
    """Returns B where a leaf says so before anything runs; refuses disagreement."""
    counts = [(leaf, rows.static_count(leaf.value)) for leaf in batched]
    known = [(leaf, number) for leaf, number in counts if number is not None]
    if not known:
        return None
    first, total = known[0]
    for leaf, number in known[1:]:
        if number != total:
            raise errors.BatchError(
                f"{first.count_text(total)}, {leaf.count_text(number).rsplit(' ', 1)[0]}. {ALIKE}"
            )
    if total == 0:
        raise errors.BatchError(f"{EMPTY} {first.count_text(0)}. {CHECK}")
    return total


def _checked_total(
    total: int | None, batched: Sequence[Leaf]
) -> tuple[int | tf.Tensor, list[tf.Operation]]:
    """Returns B, and the checks of what is not known before a run."""
    unknown = [leaf for leaf in batched if rows.static_count(leaf.value) is None]
    if not unknown:
        return total, []
    numbers = [rows.count(leaf.value) for leaf in unknown]
    names = [leaf.path for leaf in unknown]
    known = next((leaf for leaf in batched if leaf not in unknown), None)
    if known is not None:
        numbers, names = [tf.constant(total), *numbers], [known.path, *names]
    checks = []
    if total is None:
        total = numbers[0]
        text = f"{EMPTY} {names[0]} came without rows. {CHECK}"
        checks.append(tf.debugging.Assert(total > 0, [text]))
    if len(numbers) > 1:
        stacked = tf.stack(numbers)
        text = f"{UNLIKE} {', '.join(names)}:"
        checks.append(
            tf.debugging.Assert(
                tf.reduce_all(tf.equal(stacked, stacked[0])),
                [text, stacked, ALIKE],
                summarize=len(numbers),
            )
        )
    return total, [check for check in checks if check is not None]  # None: eager, and passed


def _gated(
    value: types.Rows | None, total: int | tf.Tensor, checks: Sequence[types.Fetch]
) -> types.Rows | None:
    """Returns a leaf of B rows whose values are there only when the checks have passed."""
    if not checks or not rows.is_batched(value):
        return value
    with tf1.control_dependencies(checks):
        if isinstance(value, tf.SparseTensor):
            shape = rows.sparse_shape(value, value.dense_shape[0])
            return tf.SparseTensor(value.indices, tf.identity(value.values), shape)
        if isinstance(value, tf.RaggedTensor):
            return value.with_flat_values(tf.identity(value.flat_values))
        value = tf.identity(value)
    if isinstance(total, int) and value.shape.rank is not None:
        value.set_shape([total, *value.shape[1:]])
    return value


_Runs: TypeAlias = tuple[list[tuple[rows.Bound, rows.Bound]], Parts]
"""Of each of K towers the first row and the row after the last, one of which may be on loan; and
what part of all rows each has."""


def _static_runs(total: int, num_towers: int, whole: int) -> _Runs:
    counts = [total // num_towers + (i < total % num_towers) for i in range(num_towers)]
    begins = [sum(counts[:i]) if number else 0 for i, number in enumerate(counts)]
    bounds = [(begin, begin + max(n, 1)) for begin, n in zip(begins, counts, strict=True)]
    weights = tuple(number / whole for number in counts)
    return bounds, Parts(weights, tuple(number > 0 for number in counts))


def _runs(total: tf.Tensor, num_towers: int, whole: tf.Tensor | None) -> _Runs:
    """Does for an int32 tensor what `_static_runs` does, for all towers at once.

    Args:
        total: The worker's rows.
        num_towers: K.
        whole: All workers' rows, if there are several workers. One alone has some rows.
    """
    tower_ids = tf.range(num_towers)
    base, longer = total // num_towers, total % num_towers
    counts = base + tf.cast(tower_ids < longer, tf.int32)
    begins = base * tower_ids + tf.minimum(tower_ids, longer)
    is_own = counts > 0
    begins = tf.where(is_own, begins, tf.zeros_like(begins))
    ends = begins + tf.maximum(counts, 1)
    weights = tf.cast(counts, tf.float64) / tf.cast(total if whole is None else whole, tf.float64)
    has_rows = tf.unstack(is_own)
    if whole is None:
        has_rows[0] = True  # a batch has one row or more
    parts = Parts(tuple(tf.unstack(weights)), tuple(has_rows))
    return list(zip(tf.unstack(begins), tf.unstack(ends), strict=True)), parts
