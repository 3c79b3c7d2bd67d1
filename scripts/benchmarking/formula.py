"""What a step of a cluster moves over the network, and in what time: docs/network.md.

W workers, M parameter servers, n bytes that a worker brings to a collective. A ring all-reduce
cuts these n bytes into W pieces; in W - 1 messages each worker passes on and adds up, in W - 1
further ones it passes on what is complete: 2 (W - 1) messages of n / W bytes, one after the
other. An all-gather passes on the whole n bytes W - 1 times. (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009.)

With servers a worker reads the weights that it needs, r bytes, and sends w bytes of gradients. A
server that has its part of them, r / M and w / M, moves that for all workers: W r / M and W w / M.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicate.app.inspect import traffic
from replicate.compat.tensorflow import tf, tf1

from . import shapes

ALL_REDUCE, ALL_GATHER = "all-reduce", "all-gather"
_KINDS = {"CollectiveReduceV2": ALL_REDUCE, "CollectiveGatherV2": ALL_GATHER}
_LENGTHENED = "Pad"  # what is gathered has as many rows as the next power of two
_SERVER = "/job:ps/"


class Collective(NamedTuple):
    """One operation in which all workers meet.

    Attributes:
        kind: `ALL_REDUCE` or `ALL_GATHER`.
        bytes: What one worker brings; None where only a run can tell.
    """

    kind: str
    bytes: int | None


class Network(NamedTuple):
    """What lies between tasks.

    Attributes:
        bandwidth: Bytes per second that one task can send, while it receives as many.
        latency: Seconds from a message's start to that of the next one that waits for it.
    """

    bandwidth: float
    latency: float


class Figures(NamedTuple):
    """What a step moves.

    Attributes:
        sent: Bytes that a worker sends.
        received: Bytes that a worker receives.
        messages: How many messages of a worker wait for one another.
        server_sent: Bytes that the parameter server that sends most sends to all workers; 0
            where there is none.
        server_received: Bytes that the one that receives most receives.
    """

    sent: int
    received: int
    messages: int
    server_sent: int = 0
    server_received: int = 0

    def seconds(self, network: Network) -> float:
        """Returns how long these messages take, one after the other.

        A server's link is shared by all workers that wait for it.
        """
        ways = ((self.sent, self.server_received), (self.received, self.server_sent))
        there, back = (max(of_worker, of_server) for of_worker, of_server in ways)
        # In a ring a worker sends while it receives; with servers it reads, then it sends.
        total = there + back if self.server_sent or self.server_received else max(there, back)
        return self.messages * network.latency + total / network.bandwidth


def ring(collectives: Sequence[Collective], workers: int) -> Figures:
    """Returns what W workers move that meet in collectives, one after the other.

    What only a run can tell counts as no bytes.
    """
    others = workers - 1
    bytes_of = {ALL_REDUCE: 0, ALL_GATHER: 0}
    messages = 0
    for one in collectives:
        bytes_of[one.kind] += one.bytes or 0
        messages += others * (2 if one.kind == ALL_REDUCE else 1)
    sent = 2 * others * bytes_of[ALL_REDUCE] / workers + others * bytes_of[ALL_GATHER]
    return Figures(round(sent), round(sent), messages)


def servers(read: Sequence[int], written: Sequence[int], workers: int) -> Figures:
    """Returns what W workers and M parameter servers move, all in the same time.

    Args:
        read: Bytes that a worker reads from each server: weights, or rows of them.
        written: Bytes that it sends to each: gradients, and which rows it wants.
        workers: W.
    """
    busiest = [workers * max(sizes, default=0) for sizes in (read, written)]
    return Figures(sum(written), sum(read), 2, *busiest)


def of_servers(step: traffic.Step, workers: int, rows: int) -> Figures:
    """Returns what a step of a worker's graph moves between parameter servers and all workers.

    Args:
        step: Operations and tensors of the default graph, which a step runs.
        workers: W.
        rows: Of each worker.
    """
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    known = shapes.Shapes(shapes.row_counts(tf1.get_default_graph(), rows))
    for one in traffic.transfers(step, known.of):
        is_read = one.source.startswith(_SERVER)
        if is_read != one.target.startswith(_SERVER):
            part, server = (read, one.source) if is_read else (written, one.target)
            part[server] += one.bytes
    return servers(list(read.values()), list(written.values()), workers)


def collectives_of(ops: Iterable[tf.Operation], row_counts: Mapping[str, int]) -> list[Collective]:
    """Returns the collectives among operations of one graph, in the order in which they were made.

    Args:
        ops: Of a step.
        row_counts: See `shapes.row_counts`.
    """
    known = shapes.Shapes(row_counts)
    found = {op for op in ops if op.type in _KINDS}
    in_order = sorted(found, key=lambda op: op._id)
    return [Collective(_KINDS[op.type], _size(op.inputs[0], known)) for op in in_order]


def _size(tensor: tf.Tensor, known: shapes.Shapes) -> int | None:
    """Returns how many bytes a worker brings; None where only a run can tell."""
    size = traffic.bytes_of(tensor, known.of)
    if size is not None:
        return size
    slices = next((op for op in _behind(tensor) if op.type == _LENGTHENED), None)
    shape = None if slices is None else known.of(slices.inputs[0])
    if shape is None or not shape.is_fully_defined():
        return None
    rows, width = shape.as_list()[0], shape[1:].num_elements()
    return (1 << max(rows - 1, 0).bit_length()) * width * tensor.dtype.size


def _behind(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that a tensor has passed, the last one first, along first inputs."""
    op = tensor.op
    while op is not None:
        yield op
        op = op.inputs[0].op if len(op.inputs) else None
