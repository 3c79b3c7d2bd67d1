"""Datasets from what a config says about its inputs.

A dataset of a user's function may or may not be batched already. Unless the config says
`batched`, this decides, in this order:

1. If the function batched or unbatched it last, as its graph shows, that counts.
2. If an element has a scalar, it is a single example.
3. If the first dimension of every tensor is unknown, it is a batch; likewise when there
   are several tensors and the first dimension of each is `batch_size`.
4. Else it is a single example, and the app batches it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from replicate import errors
from replicate.app.cluster import tasks
from replicate.app.config import files, functions, input_config
from replicate.app.data import caching, csv_tables, shares, tables
from replicate.compat.tensorflow import tf

__all__ = ["element_of", "input_fn", "is_batched", "record_files"]

_STREAM_BUFFER = 10_000  # rows a stream is shuffled over where the config only says true
_HIDES_ITS_INPUT = ("FlatMap", "Interleave", "GroupBy", "Window")


def input_fn(
    source: input_config.Input,
    key: str,
    mode: str,
    params: Mapping[str, Any],
    task: tasks.Task = tasks.ALONE,
) -> Callable[[], tf.data.Dataset]:
    """Returns an Estimator input_fn; bad files are found now, before a graph is built.

    Args:
        source: The input as the config has it.
        key: Its key in the config, for error texts.
        mode: One of `ModeKeys`, for functions that name it.
        params: The model_fn's params, for functions that name them.
        task: Which worker's part of each batch is wanted.

    Raises:
        RunError: If a file is bad or missing, or a function cannot be found.
    """
    if isinstance(source, input_config.Csv):
        if not csv_tables.fits_in_memory(source, key):
            return _stream(source, key, task)
        data = csv_tables.read_csv(source, key)
        return lambda: _finish(_of_arrays(*data, source), source, True, task)
    if isinstance(source, input_config.Npz):
        data = tables.read_npz(source, key)
        return lambda: _finish(_of_arrays(*data, source), source, True, task)
    if isinstance(source, input_config.Tfrecord):
        paths = record_files(source, key)
        place = caching.place_of(source, key, paths, worker=task.name)
        return lambda: _of_records(source, paths, place, task)
    fn = functions.load(source.function, f"{key}.function")
    source, task, context = shares.left_to(fn, source, task)
    offered = {"mode": mode, "params": dict(params), "batch_size": source.batch_size}
    place = caching.place_of(source, key, fn=fn, offered=offered, worker=task.name)
    offered["input_context"] = context
    return lambda: _of_function(source, fn, offered, key, place, task)


def element_of(make: Callable[[], tf.data.Dataset]) -> Any:
    """Returns the element_spec of an input_fn's dataset, built in a graph of its own."""
    with tf.Graph().as_default():
        return make().element_spec


def is_batched(dataset: tf.data.Dataset, batch_size: int) -> bool:
    """Says whether a dataset's elements are batches; the rule is above."""
    known = _batched_by(tf.data.experimental.to_variant(dataset).op)
    if known is not None:
        return known
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if any(shape.rank == 0 for shape in shapes):
        return False
    firsts = [None if shape.rank is None else shape[0] for shape in shapes]
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


def _of_arrays(features: Any, label: Any, source: input_config.Input) -> tf.data.Dataset:
    """Returns batches of rows; the arrays stay in Python, out of the graph."""
    arrays = [a for a in tf.nest.flatten((features, label)) if a is not None]
    rows = len(arrays[0])
    dtypes = [tf.as_dtype(a.dtype) if a.dtype.kind not in "OSU" else tf.string for a in arrays]
    indices = tf.data.Dataset.range(rows)
    if source.shuffle:
        indices = indices.shuffle(rows if source.shuffle is True else min(rows, source.shuffle))
    indices = _repeated(indices, source).batch(source.batch_size)

    def gather(index: Any) -> Any:
        taken = tf.numpy_function(lambda i: [a[i] for a in arrays], [index], dtypes)
        for tensor, array in zip(taken, arrays, strict=True):
            tensor.set_shape((None, *array.shape[1:]))
        if label is None:
            return tf.nest.pack_sequence_as(features, taken)
        return tf.nest.pack_sequence_as((features, label), taken)

    return indices.map(gather)


def _stream(source: input_config.Csv, key: str, task: tasks.Task) -> Callable[[], tf.data.Dataset]:
    """Returns an input_fn that holds some of the rows at a time."""
    first = next(csv_tables.pieces(source, key))  # a bad header is found now
    paths = files.expanded(source.file, key)
    place = caching.place_of(source, key, paths, worker=task.name)
    dtypes = {
        name: tf.string if column.dtype == object else tf.as_dtype(column.dtype)
        for name, column in first.items()
    }
    shapes = {name: tf.TensorSpec([None], dtype) for name, dtype in dtypes.items()}

    def part(columns: dict[str, tf.Tensor]) -> Any:
        features, label = csv_tables.label_of(dict(columns), source)
        return features if label is None else (features, label)

    def make() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_generator(
            lambda: csv_tables.pieces(source, key), output_signature=shapes
        ).unbatch()
        rows = caching.through(rows, place)
        if source.shuffle:
            rows = rows.shuffle(_STREAM_BUFFER if source.shuffle is True else source.shuffle)
        return _finish(_repeated(rows, source).map(part), source, False, task)

    return make


def record_files(source: input_config.Tfrecord, key: str) -> list[str]:
    """Returns the TFRecord files of an input, patterns made out.

    Raises:
        RunError: If there is none by a name or pattern, or it is of another kind.
    """
    paths = []
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
    source: input_config.Tfrecord, paths: list[str], place: str | None, task: tasks.Task
) -> tf.data.Dataset:
    records = caching.through(_records(source, paths), place)
    if source.shuffle:
        buffer = _STREAM_BUFFER if source.shuffle is True else int(source.shuffle)
        records = records.shuffle(buffer)
    spec = {name: _parsing(feature) for name, feature in source.features.items()}

    def parse(batch: tf.Tensor) -> Any:
        features = tf.io.parse_example(batch, spec)
        if source.label is None:
            return features
        label = features.pop(source.label)
        return features, label

    batches = shares.own_part(_repeated(records, source).batch(source.batch_size), task)
    return _finish(batches.map(parse), source, True)


def _records(source: input_config.Tfrecord, paths: list[str]) -> tf.data.Dataset:
    """Returns the records of all files, whose order is shuffled where that of rows is."""
    compression = "" if source.compression == "none" else source.compression
    names = tf.data.Dataset.from_tensor_slices(paths)
    if source.shuffle and len(paths) > 1:
        names = names.shuffle(len(paths))
    at_a_time = min(source.parallel_reads, len(paths))
    if at_a_time == 1:
        return tf.data.TFRecordDataset(names, compression)
    return names.interleave(
        lambda name: tf.data.TFRecordDataset(name, compression),
        cycle_length=at_a_time,
        num_parallel_calls=at_a_time,
        deterministic=True,
    )


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
    fn: Callable[..., Any],
    offered: Mapping[str, Any],
    key: str,
    place: str | None,
    task: tasks.Task,
) -> tf.data.Dataset:
    dataset = functions.call_with_named(fn, offered, f"{key}.function: {source.function}")
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.RunError(
            f"{key}.function: {source.function} must return a tf.data.Dataset, "
            f"got {type(dataset).__name__}. Return e.g. tf.data.Dataset.from_tensor_slices(...)."
        )
    batched = source.batched
    if batched is None:
        batched = is_batched(dataset, source.batch_size)
    dataset = caching.through(dataset, place)
    if source.shuffle:
        dataset = dataset.shuffle(_STREAM_BUFFER if source.shuffle is True else int(source.shuffle))
    return _finish(_repeated(dataset, source), source, batched, task)


def _repeated(dataset: tf.data.Dataset, source: input_config.Input) -> tf.data.Dataset:
    if not source.repeat:
        return dataset
    return dataset.repeat(-1 if source.repeat is True else int(source.repeat))


def _finish(
    dataset: tf.data.Dataset,
    source: input_config.Input,
    batched: bool,
    task: tasks.Task = tasks.ALONE,
) -> tf.data.Dataset:
    if not batched:
        dataset = dataset.batch(source.batch_size)
    dataset = shares.own_part(dataset, task)
    return dataset.prefetch(source.prefetch) if source.prefetch else dataset
