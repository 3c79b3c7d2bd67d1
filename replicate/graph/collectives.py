"""What several processes hold becomes one: the second stage of every join, over workers.

Each worker joins its own towers first, and brings one tensor to an operation of TensorFlow's
collectives. Workers build the same graph, and so the same collectives in the same order.
Each waits for the one that was made before it: the order is the same in all workers, which
GPUs need, and a step that runs the last one runs them all.
"""

import collections
import contextlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from replicate import types
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import packing, reductions

SCOPE = "replicate_workers/"  # of what workers join: no name of the model's is taken

_KEYS = (1 << 31) - 1


class Options(NamedTuple):
    """How workers reach each other.

    Attributes:
        size: W, how many workers there are.
        position: This one's number; the first one is the chief.
        hint: `"ring"`, `"nccl"` or `"auto"`: by what tensors travel.
        pack_bytes: Up to how many bytes tensors share a transfer; 0: none do.
        timeout: After how many seconds a run fails in which a worker waits for another one.
    """

    size: int
    position: int
    hint: str = "auto"
    pack_bytes: int = packing.PACK_BYTES
    timeout: float = math.inf


class Workers:
    """A worker that is alone: what it brings is what all have.

    Attributes:
        size: How many workers there are.
        position: The number of this one.
        was_left: Whether the steps have ended because another worker ended its own.
    """

    size = 1
    position = 0
    was_left = False

    @property
    def is_alone(self) -> bool:
        """Whether there is no other worker."""
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether this is the first worker."""
        return self.position == 0

    def apart(self, name: str) -> "Workers":
        """Returns the workers with another row of collectives, which does not wait for this one."""
        del name
        return self

    def totals(self, values: Sequence[types.Gradient]) -> list[types.Gradient]:
        """Returns the sums over workers of N values; of IndexedSlices, all workers' slices."""
        return list(values)

    def total(self, value: types.Gradient) -> types.Gradient:
        """Returns the sum over workers of one value; see `totals`."""
        return self.totals([value])[0]

    def from_first(self, values: Sequence[types.Gradient]) -> list[types.Gradient]:
        """Returns what the first worker brings, in all workers; text stays each one's own.

        Args:
            values: N dense tensors or IndexedSlices.
        """
        return list(values)

    def rows_of_all(
        self,
        values: Sequence[tf.Tensor],
        axes: Sequence[int],
        lengths: Sequence[tf.Tensor] | None = None,
    ) -> list[tf.Tensor]:
        """Returns all workers' tensors, one worker's after the other's.

        Args:
            values: N tensors, of numbers or of text.
            axes: The axis of each along which they are put, and may be of several lengths.
            lengths: For each how long it is in each worker, int32, of shape [W]; None: workers
                tell each other.
        """
        del axes, lengths
        return list(values)


ALONE = Workers()


class CollectiveWorkers(Workers):
    """Several workers, who join tensors in one graph by TensorFlow's collectives.

    NOTE: none has a timeout: TensorFlow starts a thread for each that has, in each step, which
    sleeps until that is over. A process may not have as many. Each run of the graph is bounded.

    Args:
        options: How they reach each other.
        device: The device on which this worker's part is, and the joined value.
        name: Tells this row of collectives from others.
    """

    def __init__(self, options: Options, device: str, name: str = "step"):
        self.options = options
        self.size, self.position = options.size, options.position
        self._name = name
        self._device = device
        # NOTE: names of operations and tensors, which would keep their graph alive.
        self._made: list[str] = []
        self._awaited: list[str] = []
        self._counts = ""

    @property
    def made(self) -> list[tf.Operation]:
        """The collectives of the graph, of which a step must run all or none."""
        return _operations(self._made)

    @property
    def told(self) -> list[str]:
        """What each of these joins, in words: the same in all workers."""
        return [_told(op) for op in self.made]

    @property
    def counts(self) -> tf.Tensor | None:
        """How many rows each worker has in a step, int32, of shape [W]; None: not exchanged."""
        return tf1.get_default_graph().get_tensor_by_name(self._counts) if self._counts else None

    def note_counts(self, counts: tf.Tensor) -> None:
        """Notes how many rows each worker has in a step, int32, of shape [W]."""
        self._counts = counts.name

    def note_left(self, leaving: int) -> None:
        """Notes how many other workers have ended their steps before their input has."""
        self.was_left = int(leaving) > 0

    def apart(self, name: str) -> "CollectiveWorkers":
        """See base class."""
        return CollectiveWorkers(self.options, self._device, name)

    def wait_for(self, end: types.Fetch) -> None:
        """Has whatever is joined from now on wait for an operation or a tensor.

        Args:
            end: May end the step in all workers. What was on its way by then would be torn off in
                one worker, and fail in the others before they learn of the end.
        """
        self._awaited.append(getattr(end, "op", end).name)

    # Dense.

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over workers of N dense tensors; see `merged`."""
        return self.merged(tensors, "Add")

    def max(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the largest over workers of N dense tensors; see `merged`."""
        return self.merged(tensors, "Max")

    def merged(self, tensors: Sequence[tf.Tensor], how: str) -> list[tf.Tensor]:
        """Returns what N dense tensors make over workers, on the device.

        Args:
            tensors: What this worker brings; in each worker of the same dtypes and shapes.
            how: `"Add"`, `"Max"`, `"Min"` or `"Mul"`.
        """
        if tf.executing_eagerly() or getattr(tf1.get_default_graph(), "building_function", False):
            raise RuntimeError(
                "Workers of a cluster meet in a graph that a session runs, and not in eager code "
                "or a tf.function. Use an Estimator, or build a tf.Graph."
            )
        with self._at_home():
            carried = [packing.carried(tensor) for tensor in tensors]
            merged = self._merged_open(carried, how)
            return list(map(packing.restored, merged, tensors))

    def _merged_open(self, tensors: Sequence[tf.Tensor], how: str) -> list[tf.Tensor]:
        """Merges tensors; those of unknown sizes, the same in all workers, travel as one."""
        open_ones = collections.defaultdict(list)
        for n, tensor in enumerate(tensors):
            if not tensor.shape.is_fully_defined() or not tensor.shape.num_elements():
                open_ones[tensor.dtype].append(n)
        sent = {n for members in open_ones.values() for n in members}
        known = [n for n in range(len(tensors)) if n not in sent]
        flat = []
        for dtype, members in open_ones.items():
            parts = [tf.reshape(tensors[n], [-1]) for n in members]
            flat.append(tf.concat([*parts, tf.zeros([1], dtype)], 0))  # a ring of nothing breaks
        found = iter(self._merged_packs([*[tensors[n] for n in known], *flat], how))
        whole: dict[int, tf.Tensor] = {n: next(found) for n in known}
        for members, joined in zip(open_ones.values(), found, strict=True):
            sizes = [tf.size(tensors[n]) for n in members]
            for n, part in zip(members, tf.split(joined, [*sizes, 1])[:-1], strict=True):
                whole[n] = tf.reshape(part, tf.shape(tensors[n]))
                whole[n].set_shape(tensors[n].shape)
        return [whole[n] for n in range(len(tensors))]

    def _merged_packs(self, tensors: Sequence[tf.Tensor], how: str) -> list[tf.Tensor]:
        sent, most = packing.of_few_dtypes(tensors), self.options.pack_bytes
        plan = packing.Packing([sent], most, most)
        reduced = plan.unpack([self._reduce(pack, how) for pack in plan.pack(sent)])
        return [tf.cast(part, own.dtype) for part, own in zip(reduced, tensors, strict=True)]

    def totals(self, values: Sequence[types.Gradient]) -> list[types.Gradient]:
        """See base class."""
        totals = list(values)
        sparse = [n for n, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
        dense = [n for n in range(len(values)) if n not in set(sparse)]
        for members, join in ((dense, self.sum), (sparse, self.slices)):
            if members:
                found = join([values[n] for n in members])
                for n, value in zip(members, found, strict=True):
                    totals[n] = value
        return totals

    def table(self, own: tf.Tensor) -> tf.Tensor:
        """Returns what all workers bring, a row for each.

        Args:
            own: This worker's row, of one shape in all.
        """
        others = tf.zeros_like(own)  # and not a product, which infinities have none of
        brought = [own if n == self.position else others for n in range(self.size)]
        return self.sum([tf.stack(brought)])[0]

    def from_first(self, values: Sequence[types.Gradient]) -> list[types.Gradient]:
        """See base class."""
        sent = [n for n, value in enumerate(values) if packing.is_sent(value)]
        with self._at_home():
            brought = [self.first_alone(values[n]) for n in sent]
        found = list(values)
        for n, value in zip(sent, self.totals(brought), strict=True):
            found[n] = value
        return found

    def first_alone(self, value: types.Gradient) -> types.Gradient:
        """Returns the value on the first worker; on the others, what adds nothing to it."""
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
            ).op

    def _reduce(self, tensor: tf.Tensor, how: str) -> tf.Tensor:
        """Reduces a tensor; of an unknown size, each is an instance of its own."""
        size = None if tensor.shape.is_fully_defined() else tf.size(tensor, tf.int64)
        key, options = self._key(how, tensor, size), {"merge_op": how, "final_op": "Id"}
        made = self._make(tf.raw_ops.CollectiveReduceV2, tensor, key, options)
        made.set_shape(tensor.shape)
        return made

    # Rows.

    def slices(self, values: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Returns all workers' slices, one worker's after the other's, of N IndexedSlices.

        NOTE: a collective wants one size in all workers. Slices are made as many as the next
        power of two, so that few sizes are met, and cut again.
        """
        with self._at_home():
            own = tf.stack([tf.size(value.indices) for value in values])
            counts = tf.reshape(self.gathered(own, tf.constant(0)), [self.size, len(values)])
            return [self._all_slices(value, counts[:, n]) for n, value in enumerate(values)]

    def rows_of_all(
        self,
        values: Sequence[tf.Tensor],
        axes: Sequence[int],
        lengths: Sequence[tf.Tensor] | None = None,
    ) -> list[tf.Tensor]:
        """See base class."""
        with self._at_home():
            if lengths is None:
                own = [tf.shape(value)[axis] for value, axis in zip(values, axes, strict=True)]
                counts = tf.reshape(self.gathered(tf.stack(own), tf.constant(0)), [self.size, -1])
                lengths = tf.unstack(counts, len(values), axis=1)
            texts = [n for n, value in enumerate(values) if value.dtype == tf.string]
            numbers = dict(enumerate(values))
            longest = [packing.longest(values[n]) for n in texts]
            for n, length in zip(texts, self.max(longest) if texts else (), strict=True):
                numbers[n], numbers[len(numbers)] = packing.letters(values[n], length)
            of_text = [*range(len(values)), *texts]  # their letters, and behind all the sizes
            found = self._all_rows(
                list(numbers.values()), [axes[n] for n in of_text], [lengths[n] for n in of_text]
            )
            for n, sizes in zip(texts, found[len(values) :], strict=True):
                found[n] = packing.text(found[n], sizes)
            return found[: len(values)]

    def _all_rows(
        self, values: Sequence[tf.Tensor], axes: Sequence[int], lengths: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Gathers rows of numbers, in one collective for each dtype."""
        brought = [packing.carried(value) for value in values]
        together = collections.defaultdict(list)
        for n, value in enumerate(brought):
            together[value.dtype.name].append(n)
        found: dict[int, tf.Tensor] = {}
        for _, members in sorted(together.items()):
            # Complex numbers travel as pairs, which are in front.
            places = [axes[n] + brought[n].shape.rank - values[n].shape.rank for n in members]
            own, counts = [brought[n] for n in members], [lengths[n] for n in members]
            for n, rows in zip(members, self._padded_rows(own, places, counts), strict=True):
                found[n] = packing.restored(rows, values[n])
        return [found[n] for n in range(len(values))]

    def _padded_rows(
        self, values: Sequence[tf.Tensor], axes: Sequence[int], lengths: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Gathers rows of tensors of one dtype.

        NOTE: a collective wants one size in all workers. So each worker's rows are padded to those
        of the worker with most, and all together to the next power of two: there are few sizes.
        """
        orders, longer = [], []
        for value, axis, counts in zip(values, axes, lengths, strict=True):
            order = list(range(value.shape.rank))
            order[0], order[axis] = order[axis], order[0]
            orders.append(order)
            most = tf.reduce_max(counts)
            longer.append(packing.lengthened(tf.transpose(value, order), most))
        flat = tf.concat([tf.reshape(each, [-1]) for each in longer], 0)
        bits = bits_of(tf.size(flat))
        size = tf.bitwise.left_shift(1, bits)
        whole = tf.reshape(self.gathered(packing.lengthened(flat, size), bits), [-1, size])
        sizes = [tf.size(each) for each in longer]
        pieces = tf.split(whole, [*sizes, size - tf.add_n(sizes)], 1)[:-1]
        found = []
        for n, (counts, piece) in enumerate(zip(lengths, pieces, strict=True)):
            shape = tf.shape(longer[n])
            rows = tf.reshape(piece, tf.concat([[self.size], shape], 0))
            rows = tf.boolean_mask(rows, tf.sequence_mask(counts, shape[0]))
            found.append(tf.transpose(rows, orders[n]))
            known = values[n].shape.as_list()
            known[orders[n][0]] = None
            found[-1].set_shape(known)
        return found

    def gathered(self, tensor: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        """Returns all workers' rows of a tensor, of which all have as many.

        Args:
            tensor: Of shape [n, ...], n > 0.
            kind: A whole number that tells n from others, as a key of what is met again.
        """
        with self._at_home():
            key = self._key("gather", tensor, kind)
            made = self._make(tf.raw_ops.CollectiveGatherV2, tensor, key)
            made.set_shape([None, *tensor.shape[1:]])
            return made

    def _all_slices(self, value: tf.IndexedSlices, counts: tf.Tensor) -> tf.IndexedSlices:
        bits = bits_of(tf.maximum(tf.reduce_max(counts), 1))
        size = tf.bitwise.left_shift(1, bits)
        is_own = tf.reshape(tf.sequence_mask(counts, size), [-1])
        rows, indices = (
            tf.boolean_mask(self.gathered(packing.lengthened(part, size), bits), is_own)
            for part in (packing.carried(value.values), value.indices)
        )
        return tf.IndexedSlices(packing.restored(rows, value.values), indices, value.dense_shape)

    # Collectives.

    def _make(
        self,
        collective: Callable[..., tf.Tensor],
        tensor: tf.Tensor,
        key: tf.Tensor,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> tf.Tensor:
        """Makes a collective, behind the last one."""
        with tf1.control_dependencies(_operations([*self._made[-1:], *self._awaited])):
            made = collective(
                input=tensor,
                instance_key=key,
                group_size=tf.constant(self.size),
                group_key=tf.constant(_key_of(self.size, self._device)),
                ordering_token=[],
                communication_hint=self.options.hint,
                **options,
            )
        self._made.append(made.op.name)
        sessions.bound_runs(made.graph, self.options.timeout)
        return made

    def _key(self, what: str, tensor: tf.Tensor, kind: tf.Tensor | None) -> tf.Tensor:
        """Returns what one collective is known by in all workers.

        NOTE: a process keeps what it has learned of a key, shape included. Of two graphs, the
        same key names what is alike in both.

        Args:
            what: What it does.
            tensor: What it is given.
            kind: A whole number that is another one for another size; None: there is one size.
        """
        parts = self._name, len(self._made), what, tensor.dtype.name, tensor.shape
        key = tf.constant(_key_of(*parts))
        if kind is None:
            return key
        key = (tf.cast(key, tf.int64) + tf.cast(kind, tf.int64) * 7919) % _KEYS
        return tf.cast(key, tf.int32)

    def _at_home(self) -> contextlib.AbstractContextManager[None]:
        return reductions.alone_on(self._device, SCOPE)


def bits_of(number: tf.Tensor) -> tf.Tensor:
    """Returns the exponent of the next power of two, int32, of a number of 1 or more."""
    steps = tf.range(31)
    return tf.reduce_sum(tf.cast(tf.bitwise.left_shift(1, steps) < number, tf.int32))


def _operations(names: Sequence[str]) -> list[tf.Operation]:
    return [tf1.get_default_graph().get_operation_by_name(name) for name in names]


def _told(op: tf.Operation) -> str:
    is_sum = op.type == "CollectiveReduceV2"
    made = op.outputs[0]
    what = op.get_attr("merge_op").decode() if is_sum else "Gather"
    return f"{what} of {made.dtype.name} {made.shape}"


def _key_of(*parts: object) -> int:
    """Returns a number that is the same in all workers."""
    return zlib.crc32(" ".join(map(str, parts)).encode()) & _KEYS
