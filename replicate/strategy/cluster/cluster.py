"""Who is in a cluster, and which of its tasks this process is.

`TF_CONFIG`, as Kubernetes' TFJob and many launchers set it, names the jobs with their tasks'
addresses and says which task this process is. The chief is the task of the job `chief`, or
the first worker where there is no such job.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replicate import errors

_TRAINING = ("chief", "master", "worker")
_NAMES = (*_TRAINING, "ps", "evaluator")
_ADDRESS = re.compile(r"[!-.0-~]+:(\d{1,5})", re.ASCII)  # a host needs no other characters
_PORTS = range(1, 1 << 16)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a cluster.

    Attributes:
        job: Its job, as TensorFlow names it.
        index: Its number in the job.
        address: Where it listens, `host:port`; an evaluator does not.
        name: What `TF_CONFIG` calls it.
    """

    job: str
    index: int
    address: str
    name: str

    @property
    def device(self) -> str:
        """The part that is its own in the names of its devices."""
        return f"/job:{self.job}/task:{self.index}"

    def named(self, device: str) -> str:
        """Returns a device of the task by the name that the whole cluster knows."""
        return f"{self.device}/device:{device.partition('/device:')[2]}"

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


class Cluster(NamedTuple):
    """The tasks that train together, and which of them this process is.

    Attributes:
        tasks: Those that train, W of them; the first one is the chief. NOTE: Estimators want a
            job of that name; of workers alone the first one has it.
        own: This process.
        servers: The tasks that keep variables.
        is_stopping: Tells whether this process is asked to stop, so that it waits for nobody who
            has not come. Where it is given, workers end with the chief of a cluster with
            parameter servers, unless that was stopped. None: nobody asks.
        listens: Whether this process listens on its address; else it only builds graphs.
    """

    tasks: tuple[Task, ...]
    own: Task
    servers: tuple[Task, ...] = ()
    is_stopping: Callable[[], bool] | None = None
    listens: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the tasks that train."""
        return tuple(task.address for task in self.tasks)

    @property
    def size(self) -> int:
        """How many tasks train."""
        return len(self.tasks)

    @property
    def position(self) -> int | None:
        """This process's number among them; None: it is none, as an evaluator."""
        return self.tasks.index(self.own) if self.own in self.tasks else None

    @property
    def is_joined(self) -> bool:
        """Whether this process trains a model that is others' as well."""
        return self.position is not None and (self.size > 1 or bool(self.servers))

    @property
    def is_together(self) -> bool:
        """Whether its tasks make each step together."""
        return self.size > 1 and not self.servers

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints; one that does not train has its own."""
        return self.position in (0, None)

    @property
    def name(self) -> str:
        """This task as people call it."""
        return self.own.name

    @property
    def others(self) -> list[Task]:
        """The other tasks that train."""
        return [task for task in self.tasks if task != self.own]

    def as_environment(self) -> dict[str, Any]:
        """Returns what `TF_CONFIG` says of the tasks that train, as Estimators want it."""
        if not any(self.addresses):
            return {}
        own = self.own
        job, index = ("evaluator", 0) if self.position is None else (own.job, own.index)
        return {"cluster": self.spec(), "task": {"type": job, "index": index}}

    def spec(self) -> dict[str, list[str]]:
        """Returns the addresses by job, as `tf.train.ClusterSpec` takes them."""
        jobs: dict[str, list[str]] = {}
        for task in (*self.tasks, *self.servers):
            jobs.setdefault(task.job, []).append(task.address)
        return jobs


_LONE = Task("worker", 0, "", "worker:0")
ALONE = Cluster((_LONE,), _LONE)
"""A process without a cluster."""


def of(given: Cluster | Mapping[str, Any] | str | None = None) -> Cluster:
    """Returns the cluster of a mapping like `TF_CONFIG`; None: of `TF_CONFIG` itself.

    Args:
        given: A mapping with `cluster` and `task`, the JSON text of one, a Cluster, or None.

    Raises:
        ConfigError: If it names no such task, or is malformed.
    """
    if isinstance(given, Cluster):
        return given
    found = _parsed(given)
    jobs = found.get("cluster") or {}
    if not jobs:
        return ALONE
    _require_jobs(jobs)
    _require_addresses(jobs)
    tasks = [task for job in _TRAINING for task in _tasks(jobs, job)]
    servers = _tasks(jobs, "ps")
    own = _own(found.get("task") or {}, [*tasks, *servers])
    trained = tuple(tasks)
    if tasks[0].job == "worker":  # the first one is the chief by its name, too
        moved = [dataclasses.replace(task, index=task.index - 1) for task in tasks[1:]]
        trained = dataclasses.replace(tasks[0], job="chief"), *moved
    if own in tasks:
        own = trained[tasks.index(own)]
    return Cluster(trained, own, tuple(servers))


def _tasks(jobs: Mapping[str, Any], job: str) -> list[Task]:
    addresses = enumerate(jobs.get(job) or ())
    return [Task(job, index, address, f"{job}:{index}") for index, address in addresses]


def _own(named: object, tasks: list[Task]) -> Task:
    """Returns the task that `TF_CONFIG` says this process is."""
    if not isinstance(named, Mapping):
        raise errors.ConfigError(
            f"TF_CONFIG's task is an object with type and index; got {named!r}. Check who sets it."
        )
    job, index = named.get("type"), named.get("index")
    if isinstance(index, str) and re.fullmatch("[0-9]{1,9}", index):
        index = int(index)
    if type(index) is not int or index < 0:
        raise errors.ConfigError(
            "TF_CONFIG's task says which of its job it is, by an index from 0: got "
            f"{dict(named)!r}. Give each task an index of its own."
        )
    for task in tasks:
        if (task.job, task.index) == (job, index):
            return task
    if job == "evaluator":
        return Task(job, index, "", f"{job}:{index}")
    raise errors.ConfigError(
        f"TF_CONFIG's task is one of its cluster: got {named!r}, and the cluster has "
        f"{', '.join(task.name for task in tasks)}. Check type and index."
    )


def _parsed(given: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    text = os.environ.get("TF_CONFIG") or "{}" if given is None else given
    if isinstance(text, Mapping):
        return text
    try:
        found = json.loads(text)
    except (RecursionError, TypeError, ValueError) as reason:
        raise errors.ConfigError(
            f"TF_CONFIG is JSON with `cluster` and `task`; got {text!r} ({reason}). Check who "
            "sets it."
        ) from reason
    if not isinstance(found, Mapping):
        raise errors.ConfigError(f"TF_CONFIG is a JSON object; got {text!r}. Check who sets it.")
    return found


def _require_jobs(jobs: object) -> None:
    if not isinstance(jobs, Mapping) or not all(
        isinstance(addresses, (list, tuple)) for addresses in jobs.values()
    ):
        raise errors.ConfigError(
            f"TF_CONFIG's cluster has a list of addresses for each job; got {jobs!r}."
        )
    unknown = sorted(set(jobs) - set(_NAMES))
    if unknown or not any(jobs.get(job) for job in _TRAINING):
        raise errors.ConfigError(
            f"A cluster's jobs are {', '.join(_NAMES)}, with a chief or a worker among them; got "
            f"{sorted(jobs)}. Rename or add one."
        )


def _require_addresses(jobs: Mapping[str, Any]) -> None:
    known: dict[str, str] = {}
    for task in (task for job in jobs for task in _tasks(jobs, job)):
        address, name = task.address, task.name
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or int(found[1]) not in _PORTS:
            raise errors.ConfigError(
                f"TF_CONFIG's addresses are host:port, with a port from 1 to {_PORTS[-1]}; {name} "
                f"has {address!r}. Correct it in all tasks."
            )
        if known.setdefault(address, name) != name:
            raise errors.ConfigError(
                f"Each task of a cluster has an address of its own; TF_CONFIG gives {address} "
                f"to {known[address]} and {name}. Correct one of them in all tasks."
            )
