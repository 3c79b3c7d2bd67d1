"""The strategy adds what devices have parts of, and joins what workers have: level by level.

The writer writes such a join as one operation that reads all parts; it makes maxima itself, and
puts the rows of its own devices end to end. When all else is in the graph, the strategy makes the
joins, where they are read: those of a level, of which none waits for another, in one call. So its
placement, its packing, its cross-device operations and its workers say how parts travel. Until then
a reader has the first part in place of the join, which is of the same dtype, and of the same shape
if it is a sum.
"""

import collections
from collections.abc import Mapping, Sequence

from replicate import devices as device_names
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, collectives, reductions
from replicate.splitting.structure.nodes import Made, Maker, resolved
from replicate.splitting.writing import transport
from replicate.splitting.writing import writer as writers
from replicate.strategy import base, context
from replicate.strategy.variables import values

_SUM = tf.VariableAggregation.SUM
_canonical = device_names.canonical_or_same


class Levels:
    """The strategy's joins, which are taken out of what is written, before that is in the graph.

    Args:
        written: The writer.
        packed: Which joins are made together, who reads them, and which devices count.
    """

    def __init__(self, written: writers.Writer, packed: transport.Packed):
        self._written = written
        self._nodes = written.nodes
        self._joins = written.changes.joins
        self._packed = packed
        self._home = _canonical(written.home)
        devices = map(_canonical, [written.home, *written.devices])
        self._in_order = list(dict.fromkeys(devices))
        by_name, changes = self._nodes.by_name, written.changes
        changes.inputs[:] = [each for each in changes.inputs if each[2] not in self._joins]
        self._taken = {name: by_name[name] for name in self._joins}
        for name in self._joins:
            for reader, n in packed.readers[name].reading:
                if isinstance(reader, str) and reader not in self._joins:
                    by_name[reader].input[n] = self._stand_in(name)
            for waiting in packed.readers[name].waiting:
                by_name[waiting].input.remove("^" + name)
        for name in self._joins:
            self._nodes.remove(name)

    def _stand_in(self, written: str) -> str:
        """Returns what is read in place of a join: the first part, or that of a part."""
        while written in self._joins:
            written = self._taken[written].input[0]
        return written

    def _place(self, reader: Maker) -> str:
        """Returns the device of what reads a join, which may be another join."""
        if not isinstance(reader, str):
            return _canonical(self._written.device_of(reader))
        return _canonical((self._taken.get(reader) or self._nodes.by_name[reader]).device)

    def _places(self, name: str) -> list[str]:
        """Returns the devices where a join is wanted."""
        readers = self._packed.readers[name]
        places = {self._place(reader) for reader, _ in readers.reading}
        if readers.is_fetched or not places:
            places.add(self._home)
        in_order = [place for place in self._in_order if place in places]
        return [*in_order, *sorted(places.difference(in_order))]

    def make(self, strategy: base.DistributionStrategy, made: Made) -> dict[str, tf.Tensor]:
        """Lets the strategy make the joins, and everything read them; returns them by name.

        Args:
            strategy: The strategy, of the same devices.
            made: The new operations by their names.
        """
        if not self._joins:
            return {}
        together: dict[tuple[int, ...], list[str]] = collections.defaultdict(list)
        alone = [name for name in self._joins if name not in self._packed.levels]
        for name in self._joins:
            if name in self._packed.levels:
                together[self._packed.levels[name]].append(name)
        whole = {**made}
        with strategy.scope(), tf1.control_dependencies(None):
            with strategy.merging(self._share(made, self._written.place.workers)):
                for level in sorted(together):
                    self._make(strategy, together[level], whole)
            # What may have no value, or is no part of a step, waits for nothing else.
            with strategy.merging(self._share(made, collectives.ALONE)):
                for name in alone:
                    self._make(strategy, [name], whole)
        return {name: whole[name] for name in self._joins}

    def _share(self, made: Made, workers: collectives.Workers) -> context.Share:
        """Returns what tells the strategy who joins, and which devices have rows."""
        counts = [True] * (len(self._packed.has_rows) // self._written.micro_batches)
        if self._written.micro_batches == 1:
            counts = self._counts(made)
        no_weights = (float("nan"),) * len(counts)
        parts = batches.Parts(no_weights, tuple(counts))
        return context.Share(parts, step=None, workers=workers)

    def _counts(self, made: Made) -> list[bool | tf.Tensor]:
        """Returns for each part whether it has rows."""
        return [True if each is None else resolved(each, made) for each in self._packed.has_rows]

    def _of_devices(self, name: str, parts: Sequence[tf.Tensor], made: Made) -> list[tf.Tensor]:
        """Returns the sums of each device's parts, added one by one, as they are made.

        So a device holds one sum and one part at a time: the next part waits for the sum.

        Args:
            name: The join's.
            parts: The parts of all devices, or what this worker brings.
            made: The new operations by their names.
        """
        number = self._written.micro_batches
        if number == 1 or len(parts) == 1:
            return list(parts)
        sums: list[tf.Tensor] = []
        gates, counts = self._packed.turns.gates.get(name), self._counts(made)
        for k, part in enumerate(parts):
            (part,) = reductions.masked([part], counts[k])
            with tf.device(self._written.devices[k]), tf1.name_scope(reductions.SCOPE):
                if k % number:
                    sums[-1] = tf.add(sums[-1], part)
                else:
                    sums.append(part)
            gate = None if gates is None else gates[k]
            if gate is not None:
                made[gate]._add_control_input(sums[-1].op)
        return sums

    def _make(
        self,
        strategy: base.DistributionStrategy,
        members: Sequence[str],
        whole: dict[str, tf.Operation | tf.Tensor],
    ) -> None:
        """Makes joins of one level, and lets everything read them.

        Args:
            strategy: See `make`.
            members: The joins' names.
            whole: The new operations, and what is joined, by their names; gets these joins.
        """
        pairs, rows, lengths = {}, {}, []
        for name in members:
            join, places = self._joins[name], self._places(name)
            parts, counts = self._parts(name, whole)
            parts = self._of_devices(name, parts, whole) if join.axis is None else parts
            value = values.PerDevice(parts, strategy.worker_devices[: len(parts)])
            if join.axis is None:
                pairs[name] = (value, places)
            else:
                rows[name] = (value, join.axis, places)
                lengths += counts
        found = strategy.batch_reduce(_SUM, list(pairs.values())) if pairs else []
        found += strategy.batch_gather(list(rows.values()), lengths) if rows else []
        for name, joined in zip([*pairs, *rows], found, strict=True):
            copies = dict(zip(self._places(name), strategy.unwrap(joined), strict=True))
            self._deliver(name, copies, whole)

    def _parts(self, name: str, whole: Made) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns a join's parts, and of rows how many each worker has."""
        node, number = self._taken[name], self._joins[name].number
        read = [written for written in node.input if not written.startswith("^")]
        found = [resolved(self._nodes.tensors.get(each, each), whole) for each in read]
        if number == len(found) == 1:
            found[0].set_shape(self._shape(name))  # from another device it may have come without
        return found[:number], found[number:]

    def _shape(self, name: str) -> tf.TensorShape:
        """Returns what is known of a join's shape."""
        shapes = self._taken[name].shapes
        return shapes[0] if shapes else tf.TensorShape(None)

    def _deliver(
        self,
        name: str,
        copies: Mapping[str, tf.Tensor],
        whole: dict[str, tf.Operation | tf.Tensor],
    ) -> None:
        """Lets everything read a join that is made, on the devices where it is read."""
        readers, node = self._packed.readers[name], self._taken[name]
        controls = [written[1:] for written in node.input if written.startswith("^")]
        controls = [each for each in controls if each not in self._packed.has_rows]
        for tensor in copies.values():
            tensor.set_shape(self._shape(name))
            tensor.op._add_control_inputs([self._nodes.waited(e) or whole[e] for e in controls])
        for reader, n in readers.reading:
            if reader not in self._joins:  # another join reads it by its name
                op = whole[reader] if isinstance(reader, str) else reader
                op._update_input(n, copies[self._place(reader)])
        whole[name] = copies.get(self._home, next(iter(copies.values())))
        for waiting in readers.waiting:
            whole[waiting]._add_control_input(whole[name].op)
