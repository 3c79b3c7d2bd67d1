"""The strategy joins what devices, and workers, have parts of: level by level.

The writer writes a join as one operation that reads all parts. When all else is in the graph, the
strategy makes the joins, where they are read: those of a level, of which none waits for another, in
one call. So its placement, its packing, its cross-device operations and its workers say how parts
travel. Until then a reader has the first part in place of the join, which is of the same dtype, and
of the same shape if it is a sum.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from replicate import devices as device_names
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, collectives
from replicate.splitting.structure.nodes import Join, Made, Reference, Waited, resolved
from replicate.splitting.writing import transport
from replicate.splitting.writing import writer as writers
from replicate.strategy import base, context
from replicate.strategy.variables import values

_SUM = tf.VariableAggregation.SUM
_canonical = device_names.canonical_or_same


class _Taken(NamedTuple):
    """A join that is taken out of the graph until the strategy makes it.

    Attributes:
        name: Stands for it.
        join: What it is.
        inputs: Its parts, and how many rows each worker has.
        shape: What is known of its shape.
        places: The devices where it is wanted.
        readers: What reads it, as which input, and on which device.
        waiting: What waits for it.
        controls: What it waits for.
    """

    name: str
    join: Join
    inputs: Sequence[Reference]
    shape: tf.TensorShape
    places: Sequence[str]
    readers: Sequence[tuple[str | tf.Operation, int, str]]
    waiting: Sequence[str]
    controls: Sequence[Waited]


class Levels:
    """The joins of a graph that is written, but not added yet; takes them out of it.

    Args:
        written: The writer.
        packed: Which joins are made together, who reads them, and which devices count.
    """

    def __init__(self, written: writers.Writer, packed: transport.Packed):
        self._written = written
        self._nodes = written.nodes
        self._home = _canonical(written.home)
        devices = map(_canonical, [written.home, *written.devices])
        self._in_order = list(dict.fromkeys(devices))
        self._packed = packed
        changes = written.changes
        changes.inputs[:] = [each for each in changes.inputs if each[2] not in changes.joins]
        self._taken = [self._take(name, join) for name, join in changes.joins.items()]
        for name in changes.joins:
            self._nodes.remove(name)

    def _take(self, name: str, join: Join) -> _Taken:
        """Takes a join out of the graph; what reads it reads a part until it is made."""
        nodes, readers = self._nodes, self._packed.readers[name]
        node, found = nodes.by_name[name], []
        for reader, n in readers.reading:
            if isinstance(reader, str):
                device = nodes.by_name[reader].device
                if reader not in self._written.changes.joins:
                    nodes.by_name[reader].input[n] = self._stand_in(name)
            else:
                device = self._written.device_of(reader)
            found.append((reader, n, _canonical(device)))
        for reader in readers.waiting:
            nodes.by_name[reader].input.remove("^" + name)
        places = {place for _, _, place in found}
        if readers.is_fetched or not places:
            places.add(self._home)
        in_order = [place for place in self._in_order if place in places]
        in_order += sorted(places.difference(in_order))
        inputs = [written for written in node.input if not written.startswith("^")]
        inputs = [nodes.tensors.get(written, written) for written in inputs]
        controls = [written[1:] for written in node.input if written.startswith("^")]
        controls = [each for each in controls if each not in self._packed.has_rows]
        waited = [nodes.waited(each) or each for each in controls]
        shape, waiting = nodes.shape(name), readers.waiting
        return _Taken(name, join, inputs, shape, in_order, found, waiting, waited)

    def _stand_in(self, written: str) -> str:
        """Returns what is read in place of a join: the first part, or that of a part."""
        while written in self._written.changes.joins:
            written = self._nodes.by_name[written].input[0]
        return written

    def make(self, strategy: base.DistributionStrategy, made: Made) -> dict[str, tf.Tensor]:
        """Lets the strategy make the joins, and everything read them; returns them by name.

        Args:
            strategy: The strategy, of the same devices.
            made: The new operations by their names.
        """
        together: dict[tuple[int, ...], list[_Taken]] = collections.defaultdict(list)
        alone: list[_Taken] = []
        for each in self._taken:
            level = self._packed.levels.get(each.name)
            (alone if level is None else together[level]).append(each)
        whole = {**made}
        if not self._taken:
            return {}
        with strategy.scope(), tf1.control_dependencies(None):
            with strategy.merging(self._share(made, self._written.place.workers)):
                for level in sorted(together):
                    self._make(strategy, together[level], whole)
            # What may have no value, or is no part of a step, waits for nothing else.
            with strategy.merging(self._share(made, collectives.ALONE)):
                for each in alone:
                    self._make(strategy, [each], whole)
        return {each.name: whole[each.name] for each in self._taken}

    def _share(self, made: Made, workers: collectives.Workers) -> context.Share:
        """Returns what tells the strategy who joins, and which devices have rows."""
        counts = [True if each is None else resolved(each, made) for each in self._packed.has_rows]
        no_weights = (float("nan"),) * len(counts)
        parts = batches.Parts(no_weights, tuple(counts))
        return context.Share(parts, step=None, workers=workers)

    def _make(
        self,
        strategy: base.DistributionStrategy,
        members: Sequence[_Taken],
        whole: dict[str, tf.Operation | tf.Tensor],
    ) -> None:
        """Makes joins of one level, and lets everything read them.

        Args:
            strategy: See `make`.
            members: The joins.
            whole: The new operations, and what is joined, by their names; gets these joins.
        """
        sums = [each for each in members if each.join.axis is None]
        pairs = [(self._parts(strategy, each, whole), list(each.places)) for each in sums]
        found = strategy.batch_reduce(_SUM, pairs) if sums else []
        rows, parts, lengths = [], [], []
        for each in members:
            if each.join.axis is not None:
                rows.append(each)
                parts.append((self._parts(strategy, each, whole), each.join.axis, each.places))
                lengths.append(resolved(each.inputs[each.join.number], whole))
        found += strategy.batch_gather(parts, lengths) if rows else []
        for each, joined in zip([*sums, *rows], found, strict=True):
            copies = dict(zip(each.places, strategy.unwrap(joined), strict=True))
            waited = [whole[op] if isinstance(op, str) else op for op in each.controls]
            for tensor in copies.values():
                tensor.set_shape(each.shape)
                tensor.op._add_control_inputs(waited)
            for reader, n, place in each.readers:
                op = whole.get(reader) if isinstance(reader, str) else reader
                if op is not None:  # another join reads it by its name
                    op._update_input(n, copies[place])
            whole[each.name] = copies.get(self._home, copies[each.places[0]])
            for name in each.waiting:
                whole[name]._add_control_input(whole[each.name].op)

    def _parts(
        self, strategy: base.DistributionStrategy, each: _Taken, whole: Made
    ) -> values.PerDevice:
        """Returns the parts of a join, device by device; or the only one, of this worker."""
        number = each.join.number
        parts = [resolved(part, whole) for part in each.inputs[:number]]
        if number == 1 and each.join.axis is None:
            parts[0].set_shape(each.shape)  # from another device it may have come without
        return values.PerDevice(parts, strategy.worker_devices[:number])
