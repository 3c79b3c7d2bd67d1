"""Which task of a cluster this process is, and so which part of a training.

All workers make the steps, together. What follows from them is the chief's, and nobody else
writes to model_dir: the lock, the run's records, checkpoints, summaries, evaluations, the best
checkpoint, exports. A worker that is no chief only makes steps. An evaluator takes the
evaluations, and what follows from these, off the chief. See `training.trainings`.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.app.config import config

_TF_CONFIG = "TF_CONFIG"  # by which launchers tell a process of its cluster


class Task(NamedTuple):
    """This process among those of a training.

    Attributes:
        job: chief, worker, ps or evaluator.
        index: Its number in the job.
        jobs: The addresses of the cluster, by job, with a chief; none where it is alone.
        has_evaluator: Whether an evaluator evaluates, and not the chief.
    """

    job: str = "chief"
    index: int = 0
    jobs: Mapping[str, Sequence[str]] = {}
    has_evaluator: bool = False

    @property
    def name(self) -> str:
        """This task, as people call it."""
        if self.job == "worker":
            return f"worker {self.position}"
        return f"{self.job} {self.index}" if self.job == "ps" else self.job

    @property
    def size(self) -> int:
        """How many workers there are, the chief among them."""
        return max(len(self.jobs.get("chief", ())) + len(self.jobs.get("worker", ())), 1)

    @property
    def position(self) -> int:
        """Which of the workers this is; the chief is 0."""
        return self.index + 1 if self.job == "worker" else 0

    @property
    def has_servers(self) -> bool:
        """Whether parameter servers keep the variables."""
        return bool(self.jobs.get("ps"))

    @property
    def is_chief(self) -> bool:
        """Whether this is the one that writes to model_dir."""
        return self.job == "chief"

    @property
    def is_together(self) -> bool:
        """Whether workers make each step together."""
        return self.size > 1 and not self.has_servers

    @property
    def input_seed(self) -> int:
        """A seed that all workers of this cluster know, and other clusters do not."""
        return zlib.crc32(repr(sorted(self.jobs.items())).encode())

    @property
    def environment(self) -> dict[str, Any] | None:
        """What an Estimator is to hear as `TF_CONFIG`; None: nothing."""
        if not self.jobs or (self.size == 1 and not self.has_servers):
            return None
        return {
            "cluster": dict(self.jobs),
            "task": {"type": self.job, "index": self.index},
            "environment": "google",  # a server of ours is there
        }


ALONE = Task()
"""A training in one process."""


def of(settings: config.Config) -> Task:
    """Returns which task this process is, by `TF_CONFIG`.

    Args:
        settings: The config.

    Raises:
        ConfigError: If `TF_CONFIG` is malformed, or the config is none for such a cluster.
    """
    from replicate.strategy.cluster import cluster as clusters

    found = clusters.of()
    addresses = list(found.addresses)
    job, index = found.own.job, found.own.index
    if addresses == [""]:  # no cluster
        return ALONE._replace(has_evaluator=settings.cluster.evaluator)
    jobs = {
        "chief": addresses[:1],
        "worker": addresses[1:],
        "ps": [one.address for one in found.servers],
    }
    if found.position is not None:
        job, index = ("worker", found.position - 1) if found.position else ("chief", 0)
    has_evaluator = settings.cluster.evaluator or found.has_evaluator
    task = Task(job, index, {name: some for name, some in jobs.items() if some}, has_evaluator)
    if job == "evaluator" and not has_evaluator:
        raise errors.ConfigError(
            "cluster.evaluator: must be true where a task of its own evaluates, and TF_CONFIG's "
            "task is an evaluator; got false. Set it in the config of all tasks, so that the "
            "chief does not evaluate as well."
        )
    settings.require_cluster(task.size, len(found.servers))
    return task


@contextlib.contextmanager
def tf_config(given: Mapping[str, Any] | None) -> Iterator[None]:
    """While entered, the environment says this and nothing else of a cluster; None: no word."""
    before = os.environ.pop(_TF_CONFIG, None)
    try:
        if given is not None:
            os.environ[_TF_CONFIG] = json.dumps(given)
        yield
    finally:
        os.environ.pop(_TF_CONFIG, None)
        if before is not None:
            os.environ[_TF_CONFIG] = before
