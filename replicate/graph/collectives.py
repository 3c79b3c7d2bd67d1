"""What several processes hold becomes one: the second stage of every join, over workers.

Each worker joins its own towers first, and brings one tensor to an operation of TensorFlow's
collectives. Workers build the same graph, and so the same collectives in the same order.
Each waits for the one that was made before it: the order is the same in all workers, which
GPUs need, and a step that runs the last one runs them all.
"""

import contextlib
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import carriers, reductions

SCOPE = "replicate_workers/"  # of what workers join: no name of the model's is taken

_KEYS = (1 << 31) - 1


class Options(NamedTuple):
    """How workers reach each other.

    Attributes:
        size: W, how many workers there are.
        position: This one's number; the first one is the chief.
        hint: `"ring"`, `"nccl"` or `"auto"`: by what tensors travel.
        timeout: After how many seconds a worker that waits for another one fails; 0: never.
        pack_bytes: Up to how many bytes tensors share a transfer; 0: none do.
    """

    size: int
    position: int
    hint: str = "auto"
    timeout: float = 0
    pack_bytes: int = carriers.PACK_BYTES


class Across:
    """Joins tensors over workers, in one graph.

    Args:
        options: How workers reach each other.
        device: The device on which this worker's part is, and the joined value.
        name: Tells this row of collectives from others.

    Attributes:
        was_left: Whether the steps have ended because another worker ended its own.
    """

    def __init__(self, options: Options, device: str, name: str = "step"):
        self.options = options
        self._name = name
        self._device = device
        self._names: list[str] = []  # NOTE: of operations, which would keep their graph alive
        self._rows: int | str = 0  # a number, or the name of a tensor
        self.was_left = False
        self._told: list[str] = []
        self._awaited: list[str] = []
        self._group = _key_of(options.size, device)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self.options.size

    @property
    def is_first(self) -> bool:
        """Whether this is the first worker."""
        return self.options.position == 0

    def apart(self, name: str) -> "Across":
        """Returns another row of collectives, which does not wait for this one."""
        return Across(self.options, self._device, name)

    @property
    def made(self) -> list[tf.Operation]:
        """The collectives of the graph, of which a step must run all or none."""
        return [tf1.get_default_graph().get_operation_by_name(name) for name in self._names]

    @property
    def told(self) -> list[str]:
        """What each of these joins, in words: the same in all workers."""
        return list(self._told)

    @property
    def rows(self) -> Any:
        """How many rows all workers have in a step: an int, or a tensor of the current graph."""
        if isinstance(self._rows, int):
            return self._rows
        return tf1.get_default_graph().get_tensor_by_name(self._rows)

    @rows.setter
    def rows(self, number: Any) -> None:
        self._rows = number if isinstance(number, int) else number.name

    def note_left(self, leaving: int) -> None:
        """Notes how many other workers have ended their steps before their input has."""
        self.was_left = int(leaving) > 0

    def wait_for(self, end: Any) -> None:
        """Has whatever is joined from now on wait for an operation or a tensor.

        Args:
            end: May end the step in all workers. What was on its way by then would be torn off in
                one worker, and fail in the others before they learn of the end.
        """
        self._awaited.append(getattr(end, "op", end).name)

    # Dense.

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over workers of N dense tensors, on the device.

        Args:
            tensors: What this worker brings; in each worker of the same dtypes and shapes.
        """
        return self._reduced(tensors, "Add")

    def max(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the largest over workers of N dense tensors; see `sum`."""
        return self._reduced(tensors, "Max")

    def merged(self, tensors: Sequence[tf.Tensor], how: str) -> list[tf.Tensor]:
        """Returns what N dense tensors make over workers; see `sum`.

        Args:
            tensors: See `sum`.
            how: `"Add"`, `"Max"`, `"Min"` or `"Mul"`.
        """
        return self._reduced(tensors, how)

    def gathered(self, tensor: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        """Returns all workers' rows of a tensor, of which all have as many.

        Args:
            tensor: Of shape [n, ...], n > 0.
            kind: A whole number that tells n from others, as a key of what is met again.
        """
        with self._at_home():
            return self._gather(tensor, kind)

    def totals(self, values: Sequence[Any]) -> list:
        """Returns the sums over workers of N values; of IndexedSlices, all workers' slices."""
        totals = list(values)
        sparse = [n for n, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
        dense = [n for n in range(len(values)) if n not in set(sparse)]
        for members, join in ((dense, self.sum), (sparse, self.slices)):
            if members:
                found = join([values[n] for n in members])
                for n, value in zip(members, found, strict=True):
                    totals[n] = value
        return totals

    def total(self, value: Any) -> Any:
        """Returns the sum over workers of one value; see `totals`."""
        return self.totals([value])[0]

    def all(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns all workers' tensors of one dtype and shape, one worker's after the other's."""
        with self._at_home():
            own = carriers.carried(tf.stack(list(tensors)))
            others = tf.zeros_like(own)  # and not a product, which infinities have none of
            brought = [own if n == self.options.position else others for n in range(self.size)]
            (found,) = self.sum([tf.stack(brought)])
            rows = [row for worker in tf.unstack(found) for row in tf.unstack(worker)]
            return [carriers.restored(row, tensors[0]) for row in rows]

    def from_first(self, values: Sequence[Any]) -> list:
        """Returns what the first worker brings, in all workers; text stays each one's own.

        Args:
            values: N dense tensors or IndexedSlices.
        """
        sent = [n for n, value in enumerate(values) if carriers.is_sent(value)]
        with self._at_home():
            brought = [self.of_first(values[n]) for n in sent]
        found = list(values)
        for n, value in zip(sent, self.totals(brought), strict=True):
            found[n] = value
        return found

    def of_first(self, value: Any) -> Any:
        """Returns a value in the first worker; in the others, what adds nothing to it."""
        if self.is_first:
            return value
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(value.values[:0], value.indices[:0], value.dense_shape)
        return tf.zeros_like(value)

    def meeting(self) -> tf.Operation:
        """Returns an operation that ends when it runs in all workers; for a step of its own.

        NOTE: steps with the collectives that are used elsewhere share a sequence of step ids, in
        all graphs. One that fails leaves its id to the next, and a worker still clears away what
        was left of it while another one begins the next, which is then torn. Steps with this
        older operation have a sequence of their own.
        """
        with self._at_home():
            return tf.raw_ops.CollectiveReduce(
                input=tf.constant([1.0]),
                group_size=self.size,
                group_key=_key_of(self.size, self._device, "meeting"),
                instance_key=_key_of("meeting"),
                merge_op="Add",
                final_op="Id",
                subdiv_offsets=[0],
                communication_hint=self.options.hint,
                timeout_seconds=self.options.timeout,
            ).op

    def _reduced(self, tensors: Sequence[tf.Tensor], op: str) -> list:
        if tf.executing_eagerly() or getattr(tf1.get_default_graph(), "building_function", False):
            raise RuntimeError(
                "Workers of a cluster meet in a graph that a session runs, and not in eager code "
                "or a tf.function. Use an Estimator, or build a tf.Graph."
            )
        results: list = [None] * len(tensors)
        with self._at_home():
            carried = [carriers.carried(tensor) for tensor in tensors]
            sent = carriers.of_few_dtypes(carried)
            for members in carriers.packs(sent, self.options.pack_bytes):
                joined = self._reduce_pack([sent[n] for n in members], op)
                for n, part in zip(members, joined, strict=True):
                    results[n] = carriers.restored(tf.cast(part, carried[n].dtype), tensors[n])
        return results

    def _reduce_pack(self, parts: list, op: str) -> list:
        """Reduces tensors of one dtype in one transfer."""
        if len(parts) == 1:
            flat = self._reduce(tf.reshape(parts[0], [-1]), op)
            whole = tf.reshape(flat, tf.shape(parts[0]))
            whole.set_shape(parts[0].shape)
            return [whole]
        flat = self._reduce(tf.concat([tf.reshape(part, [-1]) for part in parts], 0), op)
        sizes = [part.shape.num_elements() for part in parts]
        pieces = zip(tf.split(flat, sizes), parts, strict=True)
        return [tf.reshape(piece, part.shape) for piece, part in pieces]

    def _reduce(self, tensor: tf.Tensor, op: str) -> tf.Tensor:
        """Reduces a tensor of shape [size]."""
        shape = tensor.shape
        key = self._key(op, tensor.dtype.name, shape)
        if not shape.is_fully_defined():  # a size of its own each time: an instance of its own
            key = (tf.cast(key, tf.int64) + tf.size(tensor, tf.int64) * 7919) % _KEYS
            key = tf.cast(key, tf.int32)
        with tf1.control_dependencies(self._before()):
            made = tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                instance_key=key,
                merge_op=op,
                final_op="Id",
                ordering_token=[],
                communication_hint=self.options.hint,
                timeout_seconds=self.options.timeout,
                **self._members(),
            )
        made.set_shape(shape)
        self._note(made, op)
        return made

    def _before(self) -> list[tf.Operation]:
        names = [*self._names[-1:], *self._awaited]
        return [tf1.get_default_graph().get_operation_by_name(name) for name in names]

    def _note(self, made: tf.Tensor, op: str) -> None:
        self._names.append(made.op.name)
        self._told.append(f"{op} of {made.dtype.name} {made.shape}")

    # Slices.

    def slices(self, values: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Returns all workers' slices, one worker's after the other's, of N IndexedSlices.

        NOTE: a collective wants one size in all workers. Slices are made as many as the next
        power of two, so that few sizes are met, and cut again.
        """
        with self._at_home():
            own = tf.stack([tf.size(value.indices) for value in values])
            counts = tf.reshape(self._gather(own, tf.constant(0)), [self.size, len(values)])
            return [self._all_slices(value, counts[:, n]) for n, value in enumerate(values)]

    def concat(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns all workers' tensors, one after the other along an axis; lengths may differ."""
        with self._at_home():
            order = list(range(tensor.shape.rank))
            order[0], order[axis] = order[axis], order[0]
            rows = tf.transpose(tensor, order)
            places = tf.zeros([tf.shape(rows)[0]], tf.int32)
            (found,) = self.slices([tf.IndexedSlices(rows, places)])
            return tf.transpose(found.values, order)

    def _all_slices(self, value: tf.IndexedSlices, counts: tf.Tensor) -> tf.IndexedSlices:
        largest = tf.maximum(tf.reduce_max(counts), 1)
        bits = bits_of(largest)
        size = tf.bitwise.left_shift(1, bits)
        is_own = tf.reshape(tf.sequence_mask(counts, size), [-1])
        rows, indices = (
            tf.boolean_mask(self._gather(carriers.lengthened(part, size), bits), is_own)
            for part in (carriers.carried(value.values), value.indices)
        )
        return tf.IndexedSlices(carriers.restored(rows, value.values), indices, value.dense_shape)

    def _gather(self, tensor: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        """Returns all workers' rows; `kind` tells sizes apart."""
        key = self._key("gather", tensor.dtype.name, tensor.shape)
        key = tf.cast((tf.cast(key, tf.int64) + tf.cast(kind, tf.int64) * 7919) % _KEYS, tf.int32)
        with tf1.control_dependencies(self._before()):
            made = tf.raw_ops.CollectiveGatherV2(
                input=tensor,
                instance_key=key,
                ordering_token=[],
                communication_hint=self.options.hint,
                timeout_seconds=self.options.timeout,
                **self._members(),
            )
        made.set_shape([None, *tensor.shape[1:]])
        self._note(made, "Gather")
        return made

    def _members(self) -> dict:
        return {
            "group_size": tf.constant(self.size),
            "group_key": tf.constant(self._group),
        }

    def _key(self, *parts: Any) -> tf.Tensor:
        """Returns what one collective is known by in all workers.

        NOTE: a process keeps what it has learned of a key, shape included. Of two graphs, the
        same key names what is alike in both.
        """
        return tf.constant(_key_of(self._name, len(self._names), *parts))

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        with reductions.alone_on(self._device, SCOPE):
            yield


def bits_of(number: tf.Tensor) -> tf.Tensor:
    """Returns the exponent of the next power of two, int32, of a number of 1 or more."""
    steps = tf.range(31)
    return tf.reduce_sum(tf.cast(tf.bitwise.left_shift(1, steps) < number, tf.int32))


def _key_of(*parts: Any) -> int:
    """Returns a number that is the same in all workers."""
    return zlib.crc32(" ".join(map(str, parts)).encode()) & _KEYS


def together(running: Sequence[Generator], totals: Callable[[list], list] | None = None) -> list:
    """Runs generators that ask for sums over workers, so that many share a transfer.

    Args:
        running: N generators. Each gives lists of what this worker has, and is sent their sums.
            None may be inside of a scope, such as a device, where it does so.
        totals: Returns the sums of N values over workers; None: there is one worker.

    Returns:
        What each of them returns.
    """
    results: list = [None] * len(running)
    waiting: dict = dict.fromkeys(range(len(running)))
    while waiting:
        wanted = {}
        for n, given in waiting.items():
            try:
                wanted[n] = running[n].send(given)
            except StopIteration as end:
                results[n] = end.value
        parts = [part for asked in wanted.values() for part in asked]
        found = iter(parts if totals is None or not parts else totals(parts))
        waiting = {n: [next(found) for _ in asked] for n, asked in wanted.items()}
    return results


class PerGraph:
    """An `Across` for each graph.

    Args:
        make: Makes one.
    """

    def __init__(self, make: Callable[[], Across]):
        self._make = make
        self._found: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def get(self) -> Across:
        """Returns that of the current graph."""
        graph = tf1.get_default_graph()
        if graph not in self._found:
            self._found[graph] = self._make()
        return self._found[graph]
