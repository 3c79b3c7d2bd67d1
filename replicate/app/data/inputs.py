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

import numpy as np
import numpy.typing as npt

from replicate import errors, types
from replicate.app.config import files, functions, input_config
from replicate.app.data import caching, npz, positions, tables
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import rows
from replicate.strategy.cluster import cluster as clusters

InputFn: TypeAlias = Callable[[], tf.data.Dataset]
Batches: TypeAlias = Callable[[positions.Position], tf.data.Dataset]  # from there on

_PLACES = 2**30  # that hashes of rows have
_STREAM_BUFFER = 10_000  # rows a stream is shuffled over where the config only says true
_HIDES_ITS_INPUT = ("FlatMap", "Interleave", "GroupBy", "Window")


def input_fn(
    source: input_config.AnyInput,
    key: str,
    mode: str,
    params: Mapping[str, Any],
    task: clusters.Cluster = clusters.ALONE,
    position: positions.Position = positions.FIRST,
) -> InputFn:
    """Returns an Estimator input_fn, which begins at a position; see `batches`."""
    make = batches(source, key, mode, params, task)
    return lambda: make(position)


def batches(
    source: input_config.AnyInput,
    key: str,
    mode: str,
    params: Mapping[str, Any],
    task: clusters.Cluster = clusters.ALONE,
) -> Batches:
    """Returns what makes batches of an input; bad files are found now, before a graph is built.

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
    if isinstance(source, input_config.Table) and not tables.fits_in_memory(source, key):
        return _stream(source, key, is_training, task)
    if isinstance(source, input_config.Table | input_config.Npz):
        if isinstance(source, input_config.Npz):
            features, label = npz.read(source, key, has_labels)
        else:
            features, label = tables.read(source, key, is_training)
        return lambda position: _of_arrays(features, label, source, task, position, key)
    if isinstance(source, input_config.Tfrecord):
        return _of_records(source, key, is_training, task)
    return _of_function(source, key, mode, params, task)


def element_of(make: InputFn) -> Any:
    """Returns the element_spec of an input_fn's dataset, built in a graph of its own."""
    with tf.Graph().as_default():
        return make().element_spec


def columns_of(source: input_config.Input, key: str) -> dict[str, tf.TypeSpec]:
    """Returns the features that predictions read from columns; none of another kind of input.

    Of a column that a Parquet file lacks nobody knows whether it has lists.

    Args:
        source: The input as the config has it.
        key: Its key in the config, for error texts.
    """
    source = source.for_predictions()
    if isinstance(source, input_config.Table):
        specs = {name: tf.TensorSpec([None], dtype) for name, dtype in source.columns.items()}
        if isinstance(source, input_config.Parquet):
            from replicate.app.data import arrow  # for a table alone: see there

            paths = files.expanded(source.file, key)
            known = (arrow.shapes_in(path, specs, key) for path in paths)
            shapes = next(filter(None, known), {})
            specs |= {n: tf.TensorSpec([None, *shapes[n]], specs[n].dtype) for n in shapes}
        return specs
    if not isinstance(source, input_config.Tfrecord):
        return {}
    with tf.Graph().as_default():
        found = tf.io.parse_example(tf1.placeholder(tf.string, [None]), _parsings(source))
        return {name: tf.type_spec_from_value(found[name]) for name in source.features}


def _specs(columns: tables.Columns) -> dict[str, tf.TypeSpec]:
    """Returns the spec of each column, with as many rows as there may be."""
    dtypes = {n: tf.string if c.dtype == object else c.dtype for n, c in columns.items()}
    return {n: tf.TensorSpec([None, *columns[n].shape[1:]], dtype) for n, dtype in dtypes.items()}


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
    position: positions.Position,
    key: str,
) -> tf.data.Dataset:
    """Returns batches of rows; the arrays stay in Python, out of the graph."""
    nest = features if label is None else (features, label)
    arrays = tf.nest.flatten(nest)
    count = len(arrays[0])
    dtypes = [tf.as_dtype(a.dtype) if a.dtype.kind not in "OSU" else tf.string for a in arrays]
    buffer = count if source.shuffle is True else min(count, source.shuffle or 0)
    if source.batch_size > count and position.each is None and position.times_of(source) != 1:
        messages.warn(
            f"{key}: batch_size is {source.batch_size}, and there are {count} rows: a batch has "
            f"rows more than once. Set {key}.batch_size to {count} at most, or count train.epochs.",
            "configuration.md#train",
        )

    @tf.autograph.experimental.do_not_convert
    def gather(index: tf.Tensor) -> types.Nest:
        taken = tf.numpy_function(lambda i: [a[i] for a in arrays], [index], dtypes)
        for tensor, array in zip(taken, arrays, strict=True):
            tensor.set_shape((None, *array.shape[1:]))
        return tf.nest.pack_sequence_as(nest, taken)

    def numbers(seed: tf.Tensor | None) -> tf.data.Dataset:
        return tf.data.Dataset.range(count)

    found = positions.of_rows(position, source, numbers, buffer, count)
    return _ahead(own_part(found, task).map(gather), source)


def _stream(
    source: input_config.AnyTable, key: str, is_training: bool, task: clusters.Cluster
) -> Batches:
    """Returns what makes batches and holds some of the rows at a time."""
    pieces = functools.partial(tables.pieces, source, key, is_training)
    specs = _specs(next(pieces()))  # a bad header is found now
    paths = files.expanded(source.file, key)
    cached = caching.through(source, key, paths, worker=_place(task))

    @tf.autograph.experimental.do_not_convert
    def part(columns: dict[str, tf.Tensor]) -> types.Nest:
        features, label = tables.label_of(columns, source)
        return features if label is None else (features, label)

    def rows(seed: tf.Tensor | None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(pieces, output_signature=specs).unbatch()

    return _of_rows(source, task, rows, part, cached)


def _of_rows(
    source: input_config.Input,
    task: clusters.Cluster,
    rows: positions.Rows,
    finished: Callable[[Any], types.Nest],
    cached: positions.Change | None,
) -> Batches:
    """Returns what makes batches of a stream of rows; each batch is finished by a function."""

    def make(position: positions.Position) -> tf.data.Dataset:
        found = positions.of_rows(position, source, rows, _buffer(source), cached=cached)
        return _ahead(own_part(found, task).map(finished), source)

    return make


def record_files(source: input_config.Tfrecord, key: str) -> list[str]:
    """Returns the TFRecord files of an input, patterns made out.

    Raises:
        RunError: If there is none by a name or pattern, or it is of another kind.
    """
    paths: list[str] = []
    for name in source.file:
        if "://" in name:
            paths += tf.io.gfile.glob(name) or files.expanded([name], key)
            continue
        found = files.expanded([name], key)
        for path in found:
            _refuse_other_form(path, source.compression, key)
        paths += found
    return paths


def _refuse_other_form(path: str, compression: str, key: str) -> None:
    is_gzip = files.kind_of(path) == "gzip"
    if compression == "none" and is_gzip:
        raise errors.RunError(
            f"{key}: {path}: must be without compression, as {key}.compression says, but is "
            "compressed with gzip. Set compression: GZIP."
        )
    if compression == "GZIP" and not is_gzip and files.kind_of(path):
        raise errors.RunError(
            f"{key}: {path}: must be compressed with gzip, as {key}.compression says, but is "
            "not. Set compression: none."
        )
    if compression == "none":
        files.refuse_other_kind(path, "tfrecord", key)


def _of_records(
    source: input_config.Tfrecord, key: str, is_training: bool, task: clusters.Cluster
) -> Batches:
    paths = record_files(source, key)
    cached = caching.through(source, key, paths, worker=_place(task))
    own = _own_side(source, is_training)

    def rows(seed: tf.Tensor | None) -> tf.data.Dataset:
        return own(_records(source, paths, seed))

    @tf.autograph.experimental.do_not_convert
    def parse(batch: tf.Tensor) -> types.Nest:
        features = tf.io.parse_example(batch, _parsings(source))
        label = features.pop(source.label, None)
        features = {name: features[name] for name in source.features if name in features}
        return features if label is None else (features, label)

    return _of_rows(source, task, rows, parse, cached)


def _records(
    source: input_config.Tfrecord, paths: list[str], seed: tf.Tensor | None
) -> tf.data.Dataset:
    """Returns the records of all files, whose order is shuffled where that of rows is."""
    names = tf.data.Dataset.from_tensor_slices([files.relative(path) for path in paths])
    if source.shuffle and len(paths) > 1:
        names = names.shuffle(len(paths), seed)
    at_a_time = min(source.parallel_reads, len(paths))
    if at_a_time == 1:
        return tf.data.TFRecordDataset(names, source.compression_type)
    return names.interleave(
        lambda name: tf.data.TFRecordDataset(name, source.compression_type),
        cycle_length=at_a_time,
        num_parallel_calls=at_a_time,
        deterministic=True,
    )


def _parsings(source: input_config.Tfrecord) -> dict[str, Any]:
    return {name: _parsing(feature) for name, feature in source.features.items()}


def _parsing(feature: input_config.Feature) -> Any:
    dtype = tf.as_dtype(feature.dtype)
    if feature.kind == "sparse":
        return tf.io.VarLenFeature(dtype)
    if feature.kind == "ragged":
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    default = feature.default
    if default is not None:
        values = np.array(default, object if dtype == tf.string else dtype.as_numpy_dtype)
        is_one = not isinstance(default, list)
        default = np.full(feature.shape, values) if is_one else values.reshape(feature.shape)
    return tf.io.FixedLenFeature(list(feature.shape), dtype, default)


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
    cached = caching.through(source, key, made_by=(fn, offered), worker=_place(task))

    def make(position: positions.Position) -> tf.data.Dataset:
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
        if source.holdout is not None:
            if batched:
                _refuse_rows_unlike(found.element_spec, key, named)
                found, batched = found.unbatch(), False
            found = _own_side(source, mode == types.TRAIN)(found)
        found = found if cached is None else cached(found)
        if source.shuffle:
            found = found.shuffle(_buffer(source))
        if task.size == 1:
            position = position._replace(start=position.start // turns)
        found = positions.of_function(position, source, found, batched)
        return _ahead(own_part(found, task), source)

    return make


def _refuse_rows_unlike(batch: Any, key: str, named: str) -> None:
    """Refuses batches whose rows would differ with those beside them, or that have no rows."""
    for spec in tf.nest.flatten(batch):
        shape = getattr(spec, "shape", None)
        if shape is None or isinstance(spec, tf.SparseTensorSpec):
            continue
        if shape.rank == 0:
            raise errors.RunError(
                f"{named} must return a dataset whose tensors all have rows, as "
                f"{key}.holdout divides them, got {spec}. Give that a value for each row; or set "
                f"{key}.batched: false, if these are rows, not batches."
            )
        # A ragged tensor pads no row in its ragged dimensions.
        inner = None if shape.rank is None else shape[getattr(spec, "ragged_rank", 0) + 1 :]
        if inner is None or not inner.is_fully_defined():
            raise errors.RunError(
                f"{named} must return rows, or batches whose rows have a size that is known, as "
                f"{key}.holdout chooses rows by what they have and padding differs with the "
                f"batch, got {spec}. Return the rows before they are padded, pad to one size, or "
                f"set {key}.holdout: null and hold rows out in the function."
            )


def _own_side(source: input_config.Divisible, is_training: bool) -> positions.Change:
    """Returns what takes from a dataset the rows that are held out, or leaves them out."""
    share = source.holdout
    if share is None:
        return lambda found: found

    @tf.autograph.experimental.do_not_convert
    def is_wanted(*row: types.Nest) -> tf.Tensor:
        parts = [part for one in tf.nest.flatten(row) for part in _contents(one)]
        text = tf.strings.join([tf.io.serialize_tensor(part) for part in parts])
        place = tf.strings.to_hash_bucket_fast(text, _PLACES)
        return tf.not_equal(place < round(share * _PLACES), is_training)

    return lambda found: found.filter(is_wanted)


def _contents(value: types.Rows | None) -> list[tf.Tensor]:
    """Returns what makes up a row's tensor; a sparse one's shape is that of the widest beside."""
    if isinstance(value, tf.SparseTensor):
        return [value.indices, value.values]
    return [] if value is None else tf.nest.flatten(value, expand_composites=True)


def _buffer(source: input_config.Input) -> int:
    """Returns over how many rows a stream is shuffled; 0: it is not."""
    return _STREAM_BUFFER if source.shuffle is True else int(source.shuffle or 0)


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
    if isinstance(number, int):
        begin = base * place + min(place, longer)
        return begin, begin + base + (place < longer)
    begin = base * place + tf.minimum(place, longer)
    return begin, begin + base + tf.cast(place < longer, base.dtype)
