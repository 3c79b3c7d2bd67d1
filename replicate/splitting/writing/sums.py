"""What devices have parts of is added up by the strategy: its `batch_reduce`, once for each stage.

The writer writes a sum as one operation that reads all parts. When all else is in the graph, the
strategy makes the sums, on the devices where they are read: so its placement, its packing and its
cross-device operations say how parts travel. Until then a reader has the first part in place of the
sum, which is of the same dtype and shape.
"""

import collections
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from replicate import devices as device_names
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.splitting.structure.nodes import Made, Node, Reference, Waited, resolved
from replicate.splitting.writing import transport
from replicate.splitting.writing import writer as writers
from replicate.strategy import base, context
from replicate.strategy.variables import values

_SUM = tf.VariableAggregation.SUM


_Read: TypeAlias = tuple[str | tf.Operation, int, str]
_canonical = device_names.canonical_or_same


class Sum(NamedTuple):
    """A sum that the strategy makes.

    Attributes:
        name: Stands for it.
        parts: The K devices' parts.
        shape: What is known of its shape.
        places: The devices where it is wanted.
        readers: What reads it, as which input, and on which device.
        waiting: What waits for it.
    """

    name: str
    parts: Sequence[Reference]
    shape: tf.TensorShape
    places: Sequence[str]
    readers: Sequence[_Read]
    waiting: Sequence[str]


class Sums:
    """The sums of a graph that is written, but not added yet; takes them out of it.

    Args:
        written: The writer.
        packed: Which sums are made together, and which devices count.
        fetch: What will be run, in groups.
    """

    def __init__(
        self,
        written: writers.Writer,
        packed: transport.Packed,
        fetch: Sequence[Sequence[Waited]],
    ):
        self._written = written
        self._nodes = written.nodes
        self._home = _canonical(written.home)
        devices = map(_canonical, [written.home, *written.devices])
        self._in_order = list(dict.fromkeys(devices))
        self._packed = packed
        names = written.changes.sums
        self._readers: dict[str, list[_Read]] = {name: [] for name in names}
        self._waiting: dict[str, list[str]] = {name: [] for name in names}
        for node in self._nodes.by_name.values():
            self._note_reads(node)
        changes = written.changes.inputs
        for op, n, reference in changes:
            if reference in names:
                self._readers[str(reference)].append((op, n, _canonical(written.device_of(op))))
        changes[:] = [each for each in changes if each[2] not in names]
        fetched = {wanted for group in fetch for wanted in group if isinstance(wanted, str)}
        self._sums = [self._taken(name, name in fetched) for name in names]

    def _note_reads(self, node: Node) -> None:
        """Notes which sums an operation reads, or waits for."""
        if node.name in self._readers:
            return
        for n, written in enumerate(node.input):
            if written in self._readers:
                self._readers[written].append((node.name, n, _canonical(node.device)))
            elif written.startswith("^") and written[1:] in self._waiting:
                self._waiting[written[1:]].append(node.name)

    def _taken(self, name: str, is_fetched: bool) -> Sum:
        """Takes a sum out of the graph; what reads it reads a part until it is made."""
        nodes = self._nodes
        node, readers = nodes.by_name[name], self._readers[name]
        for reader, n, _ in readers:
            if isinstance(reader, str):
                nodes.by_name[reader].input[n] = node.input[0]
        for reader in self._waiting[name]:
            nodes.by_name[reader].input.remove("^" + name)
        nodes.remove(name)
        found = {place for _, _, place in readers}
        if is_fetched or not found:
            found.add(self._home)
        places = [place for place in self._in_order if place in found]
        places += sorted(found.difference(places))
        inputs = node.input[: len(self._written.devices)]
        parts = [nodes.tensors.get(each, each) for each in inputs]
        shape = self._written.changes.sums[name].shape
        return Sum(name, parts, shape, places, readers, self._waiting[name])

    def make(self, strategy: base.DistributionStrategy, made: Made) -> dict[str, tf.Tensor]:
        """Lets the strategy make the sums, and lets everything read them; returns them by name.

        Args:
            strategy: The strategy, of the same devices.
            made: The new operations by their names.
        """
        together: dict[Hashable, list[Sum]] = collections.defaultdict(list)
        for each in self._sums:
            stage = self._packed.stages.get(each.name)
            together[each.name if stage is None else stage].append(each)
        found: dict[str, tf.Tensor] = {}
        if not self._sums:
            return found
        with strategy.scope(), tf1.control_dependencies(None), strategy.merging(self._share(made)):
            for members in together.values():
                found.update(self._made(strategy, members, made))
        return found

    def _share(self, made: Made) -> context.Share:
        """Returns what tells the strategy which devices have rows."""
        counts = [True if each is None else resolved(each, made) for each in self._packed.has_rows]
        no_weights = (float("nan"),) * len(counts)
        return context.Share(batches.Parts(no_weights, tuple(counts)), step=None)

    def _made(
        self, strategy: base.DistributionStrategy, members: Sequence[Sum], made: Made
    ) -> Iterator[tuple[str, tf.Tensor]]:
        """Makes sums of one stage, and yields each with its name."""
        pairs = []
        for each in members:
            parts = [resolved(part, made) for part in each.parts]
            pairs.append((values.PerDevice(parts, strategy.worker_devices), list(each.places)))
        for each, whole in zip(members, strategy.batch_reduce(_SUM, pairs), strict=True):
            copies = dict(zip(each.places, strategy.unwrap(whole), strict=True))
            for tensor in copies.values():
                tensor.set_shape(each.shape)
            for reader, n, place in each.readers:
                (made[reader] if isinstance(reader, str) else reader)._update_input(
                    n, copies[place]
                )
            first = copies.get(self._home, copies[each.places[0]])
            for name in each.waiting:
                made[name]._add_control_input(first.op)
            yield each.name, first
