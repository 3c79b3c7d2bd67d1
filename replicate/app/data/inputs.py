"""Datasets from what a config says about its inputs.

A dataset of a user's function may or may not be batched already. Unless the config says
`batched`, this decides, in this order:

1. If the function batched or unbatched it last, as its graph shows, that counts.
2. If an element has a scalar, it is a single example.
3. If the first dimension of every tensor is unknown, it is a batch; likewise when there
   are several tensors and the first dimension of each is `batch_size`.
4. Else it is a single example, and the app batches it.

Each worker of a cluster takes its part of each batch, or every Wth batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from replicate import errors, types
from replicate.app.config import functions, input_config
from replicate.app.data import npz, positions, records
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.strategy.cluster import cluster as clusters

InputFn: TypeAlias = Callable[[], tf.data.Dataset]
Batches: TypeAlias = Callable[..., tf.data.Dataset]
"""An input_fn that may be given a `Position`, from which on it makes batches."""

_PLACES = 2**30  # that hashes of rows have
_STREAM_BUFFER = 10_000  # rows a stream is shuffled over where the config only says true
_HIDES_ITS_INPUT = ("FlatMap", "Interleave", "GroupBy", "Window")


def input_fn(
    source: input_config.AnyInput,
    key: str,
    mode: str,
    params: Mapping[str, Any],
    task: clusters.Cluster = clusters.ALONE,
) -> Batches:
    """Returns an Estimator's input_fn, which may be given where in the data to begin.

    Bad files are found now, before a graph is built.

    Args:
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        mode: One of `ModeKeys`, for functions that name it.
        params: The model_fn's params, for functions that name them.
        task: Which worker's part of each batch is wanted.

    Raises:
        RunError: If a file is bad or missing, or a function cannot be found.
    """
    is_training, has_labels = mode == types.TRAIN, mode != types.PREDICT
    if not has_labels:
        source = source.for_predictions()
    if isinstance(source, input_config.Table):
        return _of_table(source, key, is_training, task)
    if isinstance(source, input_config.Npz):
        return _of_arrays(*npz.read(source, key, has_labels), source, task)
    if isinstance(source, input_config.Tfrecord):
        return _of_records(source, key, is_training, task)
    return _of_function(source, key, mode, params, task)


def element_of(make: InputFn) -> Any:
    """Returns the element_spec of an input_fn's dataset, built in a graph of its own."""
    with tf.Graph().as_default():
        return make().element_spec


def is_batched(dataset: tf.data.Dataset, batch_size: int) -> bool:
    """Says whether a dataset's elements are batches; the rule is above."""
    known = _batched_by(tf.data.experimental.to_variant(dataset).op)
    if known is not None:
        return known
    specs = tf.nest.flatten(dataset.element_spec)
    shapes = [spec.shape for spec in specs if hasattr(spec, "shape")]  # all but None
    if any(shape.rank == 0 for shape in shapes):
        return False
    firsts = [None if shape.rank is None else shape.as_list()[0] for shape in shapes]
    if all(first is None for first in firsts):
        return True
    return len(firsts) > 1 and all(first == batch_size for first in firsts)


def _batched_by(op: tf.Operation) -> bool | None:
    """Says what the last batch or unbatch did, walking back from a dataset's operation."""
    if "Unbatch" in op.type:
        return False
    if "Batch" in op.type:
        return True
    if any(word in op.type for word in _HIDES_ITS_INPUT):
        return None
    answers = [_batched_by(one.op) for one in op.inputs if one.dtype == tf.variant]
    return next((answer for answer in answers if answer is not None), None)


def _of_arrays(
    features: npz.Features,
    label: npt.NDArray[Any] | None,
    source: input_config.Input,
    task: clusters.Cluster,
) -> Batches:
    """Returns what makes batches of rows; the arrays stay in Python, out of the graph."""
    nest = features if label is None else (features, label)
    arrays = tf.nest.flatten(nest)
    count = len(arrays[0])
    dtypes = [tf.as_dtype(a.dtype) if a.dtype.kind not in "OSU" else tf.string for a in arrays]

    @tf.autograph.experimental.do_not_convert
    def gather(index: tf.Tensor) -> types.Nest:
        taken = tf.numpy_function(lambda i: [a[i] for a in arrays], [index], dtypes)
        for tensor, array in zip(taken, arrays, strict=True):
            tensor.set_shape((None, *array.shape[1:]))
        return tf.nest.pack_sequence_as(nest, taken)

    def numbers(seed: tf.Tensor | None) -> tf.data.Dataset:
        return tf.data.Dataset.range(count)

    return _of_rows(source, task, numbers, gather, count)


def _of_table(
    source: input_config.AnyTable, key: str, is_training: bool, task: clusters.Cluster
) -> Batches:
    """Returns what makes batches of a table: of arrays, or of a stream if these are too large."""
    from replicate.app.data import tables  # for a table alone: see there

    if tables.fits_in_memory(source, key):
        return _of_arrays(*tables.read(source, key, is_training), source, task)
    pieces = functools.partial(tables.pieces, source, key, is_training)
    first = next(pieces())  # a bad header is found now
    dtypes = {n: tf.string if c.dtype == object else c.dtype for n, c in first.items()}
    specs = {n: tf.TensorSpec([None, *first[n].shape[1:]], one) for n, one in dtypes.items()}

    @tf.autograph.experimental.do_not_convert
    def part(columns: dict[str, tf.Tensor]) -> types.Nest:
        features, label = tables.label_of(columns, source)
        return features if label is None else (features, label)

    def rows(seed: tf.Tensor | None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(pieces, output_signature=specs).unbatch()

    return _of_rows(source, task, rows, part)


def _of_records(
    source: input_config.Tfrecord, key: str, is_training: bool, task: clusters.Cluster
) -> Batches:
    paths, own = records.files_of(source, key), _own_side(source, is_training)

    def rows(seed: tf.Tensor | None) -> tf.data.Dataset:
        return own(records.dataset(source, paths, seed))

    @tf.autograph.experimental.do_not_convert
    def parse(batch: tf.Tensor) -> types.Nest:
        features = tf.io.parse_example(batch, records.parsings(source))
        label = features.pop(source.label, None)
        features = {name: features[name] for name in source.features if name in features}
        return features if label is None else (features, label)

    return _of_rows(source, task, rows, parse)


def _of_rows(
    source: input_config.Input,
    task: clusters.Cluster,
    rows: positions.Rows,
    finished: Callable[[Any], types.Nest],
    count: int | None = None,
) -> Batches:
    """Returns what makes batches of rows; each batch is finished by a function."""

    def make(position: positions.Position = positions.FIRST) -> tf.data.Dataset:
        found = positions.of_rows(position, source, rows, _buffer(source, count), count)
        return _ahead(own_part(found, task).map(finished), source)

    return make


def _of_function(
    source: input_config.Function,
    key: str,
    mode: str,
    params: Mapping[str, Any],
    task: clusters.Cluster,
) -> Batches:
    fn = functions.load(source.function, f"{key}.function")
    turns = task.size if task.servers else 1  # each batch is a step of one worker
    source, task, context = left_to(fn, source, task)
    offered = {"mode": mode, "params": dict(params), "batch_size": source.batch_size}

    def make(position: positions.Position = positions.FIRST) -> tf.data.Dataset:
        named = f"{key}.function: {source.function}"
        found = functions.call_with_named(fn, {**offered, "input_context": context}, named)
        if not isinstance(found, tf.data.Dataset):
            raise errors.RunError(
                f"{named} must return a tf.data.Dataset, got {type(found).__name__}. "
                "Return e.g. tf.data.Dataset.from_tensor_slices(...)."
            )
        batched = source.batched
        if batched is None:
            batched = is_batched(found, source.batch_size)
        found = found.cache() if source.cache else found
        if source.shuffle:
            found = found.shuffle(_buffer(source))
        if task.size == 1:
            position = position._replace(start=position.start // turns)
        found = positions.of_function(position, source, found, batched)
        return _ahead(own_part(found, task), source)

    return make


def _own_side(source: input_config.Tfrecord, is_training: bool) -> positions.Change:
    """Returns what takes from records those that are held out, or leaves them out."""
    share = source.holdout
    if share is None:
        return lambda found: found

    @tf.autograph.experimental.do_not_convert
    def is_wanted(record: tf.Tensor) -> tf.Tensor:
        place = tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(record), _PLACES)
        return tf.not_equal(place < round(share * _PLACES), is_training)

    return lambda found: found.filter(is_wanted)


def _buffer(source: input_config.Input, count: int | None = None) -> int:
    """Returns over how many rows of so many an input is shuffled; 0: it is not."""
    wanted = (count or _STREAM_BUFFER) if source.shuffle is True else int(source.shuffle or 0)
    return min(wanted, count or wanted)


def _ahead(found: tf.data.Dataset, source: input_config.Input) -> tf.data.Dataset:
    return found.prefetch(source.prefetch) if source.prefetch else found


def left_to(
    fn: Callable[..., Any], source: input_config.Function, task: clusters.Cluster
) -> tuple[input_config.Function, clusters.Cluster, tf.distribute.InputContext]:
    """Leaves it to a function that names `input_context` to read this worker's rows alone.

    Returns:
        The input, with the rows that are this worker's of each batch; whose part is still to be
        taken; and the context.
    """
    context = tf.distribute.InputContext(task.size, _place(task), task.size)
    if task.size == 1 or not functions.names(fn, "input_context"):
        return source, task, context
    begin, end = _part(source.batch_size, task)
    share = source.batch_size if task.servers else max(end - begin, 1)
    return source.model_copy(update={"batch_size": share}), clusters.ALONE, context


def own_part(dataset: tf.data.Dataset, task: clusters.Cluster) -> tf.data.Dataset:
    """Returns what of a dataset's batches is a worker's.

    Workers that make each step together share each batch, as towers do; others take turns.
    """
    if task.size == 1:
        return dataset
    if task.servers:
        return dataset.shard(task.size, _place(task))
    is_tuple = isinstance(dataset.element_spec, tuple)

    @tf.autograph.experimental.do_not_convert
    def cut(*element: types.Nest) -> types.Nest:
        nest = element if is_tuple else element[0]
        batched = [leaf for leaf in tf.nest.flatten(nest) if rows.is_batched(leaf)]
        number = next(filter(None, map(rows.static_count, batched)), None)
        if number is None or number % task.size:
            # Workers' parts differ: none of them is to have a size that is known beforehand.
            number = tf1.placeholder_with_default(rows.count(batched[0]), [])
        begin, end = _part(number, task)
        return tf.nest.map_structure(
            lambda leaf: rows.cut(leaf, begin, end) if rows.is_batched(leaf) else leaf, nest
        )

    return dataset.map(cut)


def _place(task: clusters.Cluster) -> int:
    """Returns which of the workers that read rows this one is."""
    return task.position or 0


def _part(number: Any, task: clusters.Cluster) -> tuple[Any, Any]:
    """Returns the first of a worker's rows, and the one after the last; ints, or tensors."""
    base, longer, place = number // task.size, number % task.size, _place(task)
    least = min if isinstance(number, int) else tf.minimum
    return base * place + least(place, longer), base * (place + 1) + least(place + 1, longer)
