"""One dataset for all towers: each step gives every tower a batch on its own device.

The dataset is read once, in order: of K successive batches each tower gets one. At the
end, where fewer than K are left, the towers without a batch get zero rows and nothing is
dropped. A dataset of scalars has no rows to be without: its end must be even.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from replicate import errors, types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.strategy.variables import values

Optional: TypeAlias = tf.experimental.Optional


def of(dataset_fn: Callable[[], tf.data.Dataset], devices: Sequence[str]) -> "PerDeviceDataset":
    """Returns what reads a function's dataset for all towers.

    Args:
        dataset_fn: Returns a `tf.data.Dataset` of batches.
        devices: The K towers' devices.

    Raises:
        ValueError: If it returned something else.
    """
    dataset = dataset_fn()
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "dataset_fn must return a tf.data.Dataset; got "
            f"{type(dataset).__name__}. Use tf.data.Dataset.from_tensor_slices, or another "
            "of its constructors."
        )
    return PerDeviceDataset(dataset, devices)


class PerDeviceDataset:
    """A dataset whose iterators yield PerDevice elements.

    Args:
        dataset: Yields batches; K of them make one step.
        devices: The K towers' devices.
    """

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str]):
        self._dataset = dataset
        self._devices = tuple(devices)

    @property
    def element_spec(self) -> types.Nest:
        """The nest of one tower's batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[types.Nest]:
        if not tf.executing_eagerly():
            raise RuntimeError(
                "Only eager code can loop over a distributed dataset; this builds a graph. Use "
                "make_initializable_iterator() or make_one_shot_iterator()."
            )
        return EagerIterator(self._dataset, self._devices)

    def make_initializable_iterator(self, shared_name: str | None = None) -> "GraphIterator":
        """Returns an iterator that prefetches, once its `initializer` has run.

        Args:
            shared_name: Not supported; None.
        """
        _refuse_shared(shared_name)
        inner = tfc.multi_device_iterator.MultiDeviceIterator(self._dataset, list(self._devices))
        return GraphIterator(
            self._devices,
            lambda: inner.get_next(self._devices[0]),
            lambda first: inner.get_next_as_optional()[1:],
            inner.initializer,
        )

    def make_one_shot_iterator(self) -> "GraphIterator":
        """Returns an iterator that needs no initializer; it prefetches on the host."""
        ready = self._dataset.prefetch(2 * len(self._devices))
        inner = tf1.data.make_one_shot_iterator(ready)

        def rest(first: types.Nest) -> list[Optional]:
            optionals = []
            before = tf.nest.flatten(first, expand_composites=True)
            for _ in self._devices[1:]:
                with tf1.control_dependencies(before):
                    optional = inner.get_next_as_optional()
                optionals.append(optional)
                before = [optional.has_value()]
            return optionals

        return GraphIterator(self._devices, inner.get_next, rest, None)

    # The names by which tf.compat.v1.data's functions ask a dataset for its iterators.
    _make_one_shot_iterator = make_one_shot_iterator
    _make_initializable_iterator = make_initializable_iterator


def _refuse_shared(shared_name: str | None) -> None:
    if shared_name is not None:
        raise ValueError(
            "An iterator over several devices belongs to one session: got shared_name="
            f"{shared_name!r}. Leave it out."
        )


class GraphIterator:
    """Yields PerDevice elements in a graph.

    Args:
        devices: The K towers' devices.
        first: Returns the first tower's batch, and ends the sequence.
        rest: Takes the first tower's batch and returns the other towers' optionals.
        initializer: The operation that starts the sequence, or None.
    """

    def __init__(
        self,
        devices: Sequence[str],
        first: Callable[[], types.Nest],
        rest: Callable[[types.Nest], Sequence[Optional]],
        initializer: tf.Operation | None,
    ):
        self._devices = tuple(devices)
        self._first = first
        self._rest = rest
        self._initializer = initializer

    @property
    def initializer(self) -> tf.Operation:
        """The operation that starts the sequence.

        Raises:
            ValueError: If the iterator needs none.
        """
        if self._initializer is None:
            raise ValueError("A one-shot iterator has no initializer. Call get_next() at once.")
        return self._initializer

    def get_next(self) -> types.Nest:
        """Returns the next element: a nest of PerDevice, one batch per tower.

        Raises:
            OutOfRangeError: When run, if no batch is left at all.
        """
        with tf.device(self._devices[0]):
            first = tf.nest.map_structure(tf.identity, self._first())
        optionals = self._rest(first)
        parts = [first]
        for device, optional in zip(self._devices[1:], optionals, strict=True):
            with tf.device(device):
                parts.append(_batch_or_none(optional, first))
        return values.regroup(parts, devices=self._devices)


class EagerIterator:
    """Yields PerDevice elements eagerly, prefetched onto the towers' devices.

    Args:
        dataset: Yields batches.
        devices: The K towers' devices.
    """

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str]):
        self._devices = tuple(devices)
        self._inner = tfc.multi_device_iterator.OwnedMultiDeviceIterator(
            dataset=dataset, devices=list(devices)
        )

    def __iter__(self) -> "EagerIterator":
        return self

    def __next__(self) -> types.Nest:
        if not tf.executing_eagerly():
            raise RuntimeError(
                "Only eager code can ask for the next element of a distributed dataset; this "
                "builds a graph, or a tf.function. Call next() outside, and pass the element in."
            )
        optionals = self._inner.get_next_as_optional()
        if not optionals[0].has_value():
            raise StopIteration
        parts: list[types.Nest] = []
        for device, optional in zip(self._devices, optionals, strict=True):
            with tf.device(device):
                has_value = bool(optional.has_value())
                part = optional.get_value() if has_value else _nothing_like(parts[0])
                parts.append(part)
        return values.regroup(parts, devices=self._devices)

    get_next = __next__


_SCALARS = (
    "At the end of a dataset a tower without a batch gets zero rows, and a scalar has no rows: "
    "the dataset's elements do not divide by the number of towers, and hold scalars ({}). Call "
    "batch() on the dataset before it is distributed, or repeat() it."
)


def _nothing_like(first: types.Nest) -> types.Nest:
    """Returns zero rows like the first tower's batch.

    Raises:
        BatchError: If something in it has no rows.
    """
    if scalars := _scalars(first):
        raise errors.BatchError(_SCALARS.format(scalars))
    return batches.take_rows(first, 0)


def _scalars(first: types.Nest) -> str:
    """Returns the scalars among the leaves as text; none where all have rows."""
    leaves = tf.nest.flatten(first)
    return ", ".join(f"part {i}" for i, leaf in enumerate(leaves) if leaf.shape.rank == 0)


def _batch_or_none(optional: Optional, first: types.Nest) -> types.Nest:
    """Returns a tower's batch, or zero rows like the first tower's."""
    spec = tf.nest.map_structure(_spec_of_any_rows, first)
    with tf1.control_dependencies(tf.nest.flatten(first, expand_composites=True)):
        has_value = tf.identity(optional.has_value())  # the end of all comes before this one
    chosen = tf.cond(
        has_value,
        lambda: tf.nest.flatten(optional.get_value(), expand_composites=True),
        lambda: _flat_nothing_like(first),
    )
    chosen = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    return tf.nest.pack_sequence_as(spec, list(chosen), expand_composites=True)


def _spec_of_any_rows(value: types.Rows) -> tf.TypeSpec:
    """Returns what tells a tensor's kind and inner shape, and not how many rows it has."""
    spec = tf.type_spec_from_value(value)
    shape = spec.shape if spec.shape.rank is None else [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.SparseTensorSpec(shape, spec.dtype) if isinstance(spec, tf.SparseTensorSpec) else spec


def _flat_nothing_like(first: types.Nest) -> list[tf.Tensor]:
    """Returns the tensors of zero rows; scalars are refused when this runs."""
    leaves = tf.nest.flatten(first, expand_composites=True)
    if not (scalars := _scalars(first)):
        return tf.nest.flatten(_nothing_like(first), expand_composites=True)
    with tf1.control_dependencies([tf1.Assert(False, [_SCALARS.format(scalars)])]):
        return [tf.identity(leaf) for leaf in leaves]
