"""What devices have parts of is added up by the strategy: its `batch_reduce`, once for each stage.

The writer writes a sum as one operation that reads all parts. When all else is in the graph, the
strategy makes the sums, on the devices where they are read: so its placement, its packing and its
cross-device operations say how parts travel. Until then a reader has the first part in place of the
sum, which is of the same dtype and shape.
"""

import collections
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, cast

from replicate import devices as device_names
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.splitting.structure.nodes import Made, Node, Reference, Waited, resolved
from replicate.splitting.writing import transport
from replicate.splitting.writing import writer as writers
from replicate.strategy import base, context
from replicate.strategy.variables import values

_SUM = tf.VariableAggregation.SUM


class Sum(NamedTuple):
    """A sum that the strategy makes.

    Attributes:
        name: Stands for it.
        parts: The K devices' parts.
        shape: What is known of its shape.
        readers: What reads it, as which input, and on which device.
        waiting: What waits for it.
    """

    name: str
    parts: Sequence[Reference]
    shape: tf.TensorShape
    readers: Sequence[tuple[Waited, int, str]]
    waiting: Sequence[str]

    def places(self, home: str) -> tuple[str, ...]:
        """Returns the devices where it is read; home if it is fetched alone."""
        return tuple(sorted({place for _, _, place in self.readers})) or (home,)


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
        self._home = device_names.canonical_or_same(written.home)
        self._packed = packed
        names = written.changes.sums
        readers: dict[str, list[tuple[Waited, int, str]]] = {name: [] for name in names}
        waiting: dict[str, list[str]] = {name: [] for name in names}
        for node in self._nodes.by_name.values():
            self._take_reads_of(node, readers, waiting)
        changes = written.changes.inputs
        for op, n, reference in changes:
            if reference in readers:
                readers[str(reference)].append((op, n, written.device_of(op)))
        changes[:] = [each for each in changes if each[2] not in readers]
        for wanted in (each for group in fetch for each in group):
            if isinstance(wanted, str) and wanted in readers:
                readers[wanted].append(("", 0, written.home))
        self._sums = [self._taken(name, readers[name], waiting[name]) for name in names]

    def _take_reads_of(
        self,
        node: Node,
        readers: Mapping[str, list[tuple[Waited, int, str]]],
        waiting: Mapping[str, list[str]],
    ) -> None:
        for n, written in enumerate(node.input):
            if written in readers and node.name not in readers:
                readers[written].append((node.name, n, node.device))
            elif written.startswith("^") and written[1:] in waiting:
                waiting[written[1:]].append(node.name)

    def _taken(
        self, name: str, readers: Sequence[tuple[Waited, int, str]], waiting: Sequence[str]
    ) -> Sum:
        """Takes a sum out of the graph; what reads it reads a part until it is made."""
        nodes = self._nodes
        node = nodes.by_name[name]
        inputs = node.input[: len(self._written.devices)]
        parts = [nodes.tensors.get(each, each) for each in inputs]
        for reader, n, _ in readers:
            if isinstance(reader, str) and reader:
                nodes.by_name[reader].input[n] = node.input[0]
        for reader in waiting:
            nodes.by_name[reader].input.remove("^" + name)
        nodes.remove(name)
        known = [place for _, _, place in readers]
        canonical = map(device_names.canonical_or_same, known)
        places = [(each[0], each[1], place) for each, place in zip(readers, canonical, strict=True)]
        return Sum(name, parts, self._written.changes.sums[name].shape, places, waiting)

    def make(self, strategy: base.DistributionStrategy, made: dict[str, tf.Operation]) -> None:
        """Lets the strategy make the sums, and lets everything read them.

        Args:
            strategy: The strategy, of the same devices.
            made: The new operations by their names; gets what stands for the sums.
        """
        together: dict[Hashable, list[Sum]] = collections.defaultdict(list)
        for each in self._sums:
            stage = self._packed.stages.get(each.name)
            together[each.name if stage is None else stage].append(each)
        if not self._sums:
            return
        with strategy.scope(), tf1.control_dependencies(None), strategy.merging(self._share(made)):
            for members in together.values():
                self._make(strategy, members, made)

    def _share(self, made: Made) -> context.Share:
        """Returns what tells the strategy which devices have rows."""
        counts = [True if each is None else resolved(each, made) for each in self._packed.has_rows]
        no_weights, no_step = (float("nan"),) * len(counts), cast(context.Step, None)
        return context.Share(batches.Parts(no_weights, tuple(counts)), no_step)

    def _make(
        self,
        strategy: base.DistributionStrategy,
        members: Sequence[Sum],
        made: dict[str, tf.Operation],
    ) -> None:
        pairs = []
        for each in members:
            parts = [resolved(part, made) for part in each.parts]
            pairs.append(
                (values.PerDevice(parts, strategy.worker_devices), list(each.places(self._home)))
            )
        for each, found in zip(members, strategy.batch_reduce(_SUM, pairs), strict=True):
            places = each.places(self._home)
            copies = dict(zip(places, strategy.unwrap(found), strict=True))
            for tensor in copies.values():
                tensor.set_shape(each.shape)
            for reader, n, place in each.readers:
                op = made[reader] if reader and isinstance(reader, str) else reader
                if op:
                    op._update_input(n, copies[place])
            first = copies.get(self._home, copies[places[0]])
            for reader in each.waiting:
                made[reader]._add_control_input(first.op)
            made[each.name] = first
