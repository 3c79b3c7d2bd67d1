"""One worker of a cluster that is not there: its training graph, and what a step would move.

A cluster's strategy is made of names; nothing listens and nothing runs.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate.app.cluster import tasks
from replicate.app.config import config
from replicate.app.inspect import cost, joins, traffic
from replicate.compat.tensorflow import tf
from replicate.graph import ancestry

__all__ = ["Assumed", "Cluster", "Wanted", "measured", "of_a_worker", "task"]

_SERVER = "/job:ps/"
_GIGABIT = 1e9 / 8


class Assumed(NamedTuple):
    """What a graph does not tell.

    Attributes:
        bandwidth: Of a task's link, in Gbit/s each way.
        latency: Of one message, in milliseconds.
        compute: Milliseconds of a step in which a worker computes.
    """

    bandwidth: float = 10.0
    latency: float = 0.1
    compute: float = 100.0

    @property
    def network(self) -> cost.Network:
        """Bytes and seconds."""
        return cost.Network(self.bandwidth * _GIGABIT, self.latency / 1e3)


class Wanted(NamedTuple):
    """A cluster that somebody asks about.

    Attributes:
        workers: W, the chief among them.
        servers: M parameter servers; 0: workers meet in collectives.
        assumed: See there.
    """

    workers: int
    servers: int = 0
    assumed: Assumed = Assumed()


class Cluster(NamedTuple):
    """What a step of a cluster moves.

    Attributes:
        wanted: Which cluster.
        towers: K, of each worker.
        rows: Of each worker, in a step.
        collectives: In which workers meet.
        figures: Bytes and messages.
        unsized: How many tensors have a size that only a run can tell; they count as empty.
    """

    wanted: Wanted
    towers: int
    rows: int
    collectives: tuple[cost.Collective, ...]
    figures: cost.Figures
    unsized: int

    @property
    def milliseconds(self) -> float:
        """That messages take in a step."""
        return 1e3 * self.figures.seconds(self.wanted.assumed.network)

    @property
    def share(self) -> float:
        """Which part of a step that is."""
        return cost.share(self.milliseconds, self.wanted.assumed.compute)

    def by_kind(self) -> list[tuple[str, int, int]]:
        """Returns for each kind of collective how many there are, and a worker's bytes in them."""
        counts = Counter(one.kind for one in self.collectives)
        return [
            (kind, count, sum(one.bytes or 0 for one in self.collectives if one.kind == kind))
            for kind, count in sorted(counts.items())
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        return {
            "workers": self.wanted.workers,
            "servers": self.wanted.servers,
            "towers": self.towers,
            "rows": self.rows,
            "collectives": [
                {"kind": kind, "count": count, "bytes": size}
                for kind, count, size in self.by_kind()
            ],
            "unsized": self.unsized,
            **self.figures._asdict(),
            "assumed": {
                "bandwidth_gbit_per_second": self.wanted.assumed.bandwidth,
                "latency_ms": self.wanted.assumed.latency,
                "compute_ms": self.wanted.assumed.compute,
            },
            "network_ms": self.milliseconds,
            "share": self.share,
        }


def of_a_worker(settings: config.Config, wanted: Wanted) -> config.Config:
    """Returns the config with the first worker's rows of each batch.

    Workers that meet share each batch; those with servers take one each.
    """
    workers = 1 if wanted.servers else wanted.workers
    source = settings.train.input
    source = source.model_copy(update={"batch_size": -(-source.batch_size // workers)})
    training = settings.train.model_copy(update={"input": source})
    return settings.model_copy(update={"train": training})


def task(wanted: Wanted | None) -> tasks.Task:
    """Returns what the chief of the cluster would be told; None: that it is alone."""
    if wanted is None:
        return tasks.ALONE
    counts = {"chief": 1, "worker": wanted.workers - 1, "ps": wanted.servers}
    jobs = {
        job: [f"{job}-{number}:2222" for number in range(count)]
        for job, count in counts.items()
        if count
    }
    return tasks.Task(jobs=jobs)


def measured(step: Sequence[Any], wanted: Wanted, towers: int, rows: int) -> Cluster:
    """Returns what a step of a worker's graph moves.

    Args:
        step: Operations and tensors of one graph, which a step runs.
        wanted: The cluster.
        towers: K, of each worker.
        rows: Of each worker.
    """
    counts = joins.row_counts(tf.compat.v1.get_default_graph(), rows)
    if wanted.servers:
        return _with_servers(traffic.transfers(step, counts), wanted, towers, rows)
    found = tuple(joins.of(ancestry.executed_by(step), counts))
    figures = cost.ring(found, wanted.workers)
    return Cluster(wanted, towers, rows, found, figures, sum(one.bytes is None for one in found))


def _with_servers(
    moved: Sequence[traffic.Transfer], wanted: Wanted, towers: int, rows: int
) -> Cluster:
    """Returns what a step moves between a worker and the servers."""
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    unsized = 0
    for one in moved:
        is_read = _is_server(one.source)
        if is_read != _is_server(one.target):
            part, server = (read, one.source) if is_read else (written, one.target)
            part[server] += one.bytes
            unsized += one.unsized
    figures = cost.servers(list(read.values()), list(written.values()), wanted.workers)
    return Cluster(wanted, towers, rows, (), figures, unsized)


def _is_server(device: str) -> bool:
    return device.startswith(_SERVER)
