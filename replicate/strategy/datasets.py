"""One dataset for all towers: each step gives every tower a batch on its own device.

The dataset is read once, in order: of K successive batches each tower gets one. At the
end, where fewer than K are left, the towers without a batch get zero rows and nothing is
dropped. A dataset of scalars has no rows to be without: its end must be even.
"""

from collections.abc import Callable, Iterator, Sequence

from replicate import errors, types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.strategy.variables import values

_SCALARS = (
    "At the end of a dataset a tower without a batch gets zero rows, and a scalar has no rows: "
    "the dataset's elements do not divide by the number of towers, and hold scalars ({}). Call "
    "batch() on the dataset before it is distributed, or repeat() it."
)


def _filled_up(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Adds batches of zero rows, like the last ones, until all divide by `count`."""
    spec = dataset.element_spec
    scalars = [n for n, leaf in enumerate(tf.nest.flatten(spec)) if leaf.shape.rank == 0]

    def without_rows(*element: types.Nest) -> types.Nest:
        refusal = _SCALARS.format(", ".join(f"part {n}" for n in scalars))
        checks = [tf1.Assert(False, [refusal])] if scalars else []
        with tf1.control_dependencies(checks):
            element = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        leaves = [rows.kept(leaf, leaf.shape.rank == 0) for leaf in tf.nest.flatten(element)]
        return tf.nest.pack_sequence_as(spec, leaves)

    def filled_up(_: tf.Tensor, group: tf.data.Dataset) -> tf.data.Dataset:
        return group.concatenate(group.take(1).map(without_rows).repeat()).take(count)

    def key(*element: types.Nest) -> tf.Tensor:
        del element
        return tf.constant(0, tf.int64)

    return dataset.group_by_window(key, filled_up, window_size=count)


class PerDeviceDataset:
    """A dataset whose iterators yield PerDevice elements.

    Args:
        dataset: Yields batches; K of them make one step.
        devices: The K towers' devices.

    Raises:
        ValueError: If it is no dataset.
    """

    def __init__(self, dataset: tf.data.Dataset, devices: Sequence[str]):
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                "dataset_fn must return a tf.data.Dataset; got "
                f"{type(dataset).__name__}. Use tf.data.Dataset.from_tensor_slices, or another "
                "of its constructors."
            )
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
        dataset = _filled_up(self._dataset, len(self._devices))
        prefetched = tfc.multi_device_iterator.OwnedMultiDeviceIterator(
            dataset=dataset, devices=list(self._devices)
        )
        return self._elements(prefetched)

    def _elements(self, prefetched: Iterator[list[types.Nest]]) -> Iterator[types.Nest]:
        while True:
            if not tf.executing_eagerly():
                raise RuntimeError(
                    "Only eager code can ask for the next element of a distributed dataset; "
                    "this builds a graph, or a tf.function. Call next() outside, and pass the "
                    "element in."
                )
            try:
                parts = next(prefetched)
            except StopIteration:
                return
            except tf.errors.InvalidArgumentError as failure:
                if _SCALARS[:40] in failure.message:
                    raise errors.BatchError(failure.message) from failure
                raise
            yield values.regroup(parts, devices=self._devices)

    def make_initializable_iterator(self, shared_name: str | None = None) -> "GraphIterator":
        """Returns an iterator that prefetches, once its `initializer` has run.

        Args:
            shared_name: Not supported; None.
        """
        if shared_name is not None:
            raise ValueError(
                "An iterator over several devices belongs to one session: got shared_name="
                f"{shared_name!r}. Leave it out."
            )
        dataset = _filled_up(self._dataset, len(self._devices))
        inner = tfc.multi_device_iterator.MultiDeviceIterator(dataset, list(self._devices))
        return GraphIterator(self._devices, inner.get_next, inner.initializer)

    def make_one_shot_iterator(self) -> "GraphIterator":
        """Returns an iterator that needs no initializer; it prefetches on the host."""
        count = len(self._devices)
        inner = tf1.data.make_one_shot_iterator(
            _filled_up(self._dataset, count).prefetch(2 * count)
        )

        def next_batches() -> list[types.Nest]:
            parts: list[types.Nest] = []
            for device in self._devices:
                before = tf.nest.flatten(parts[-1:], expand_composites=True)
                with tf1.control_dependencies(before), tf.device(device):
                    parts.append(tf.nest.map_structure(tf.identity, inner.get_next()))
            return parts

        return GraphIterator(self._devices, next_batches, None)

    # The names by which tf.compat.v1.data's functions ask a dataset for its iterators.
    _make_one_shot_iterator = make_one_shot_iterator
    _make_initializable_iterator = make_initializable_iterator


class GraphIterator:
    """Yields PerDevice elements in a graph.

    Args:
        devices: The K towers' devices.
        next_batches: Returns the K towers' next batches.
        initializer: The operation that starts the sequence, or None.
    """

    def __init__(
        self,
        devices: Sequence[str],
        next_batches: Callable[[], list[types.Nest]],
        initializer: tf.Operation | None,
    ):
        self._devices = tuple(devices)
        self._next_batches = next_batches
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
        return values.regroup(self._next_batches(), devices=self._devices)
