"""Who is in a cluster, and how this process takes part in it.

`TF_CONFIG`, as Kubernetes' TFJob and many launchers set it, names the jobs with their tasks'
addresses and says which task this process is. The chief is the task of the job `chief`, or
the first worker where there is no such job.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat.tensorflow import tf, tf1

_SERVERS: dict[tuple, Any] = {}  # those of this process, and of how many CPUs: none can be stopped
_TRAINING = ("chief", "master", "worker")
_NAMES = (*_TRAINING, "ps", "evaluator")


class Cluster(NamedTuple):
    """The tasks that train together, and which of them this process is.

    Attributes:
        tasks: W pairs of a job and a number in it; the first one is the chief. NOTE: Estimators
            want a job of that name; of workers alone the first one has it.
        addresses: Their W addresses, `host:port`.
        position: This process's number among them; None: it is none, as an evaluator.
        names: What `TF_CONFIG` calls them.
        servers: The addresses of the tasks of the job `ps`, which keep variables.
        own: The job of this process and its number in it.
        has_evaluator: Whether the job evaluator is among its jobs.
    """

    tasks: tuple
    addresses: tuple
    position: int | None
    names: tuple
    servers: tuple = ()
    own: tuple = ("worker", 0)
    has_evaluator: bool = False

    @property
    def size(self) -> int:
        """How many tasks train."""
        return len(self.tasks)

    @property
    def name(self) -> str:
        """This task as people call it."""
        return "alone" if self.position is None else self.names[self.position]

    @property
    def leader(self) -> str:
        """The task that gives the order of steps, as TensorFlow names it."""
        job, number = self.tasks[0]
        return f"/job:{job}/replica:0/task:{number}"

    def as_environment(self) -> dict:
        """Returns what `TF_CONFIG` says of the tasks that train, as Estimators want it."""
        if not any(self.addresses):
            return {}
        job, number = ("evaluator", 0) if self.position is None else self.tasks[self.position]
        return {"cluster": self.spec(), "task": {"type": job, "index": number}}

    def spec(self) -> dict:
        """Returns the addresses by job, as `tf.train.ClusterSpec` takes them."""
        jobs: dict = {}
        for (job, _), address in zip(self.tasks, self.addresses, strict=True):
            jobs.setdefault(job, []).append(address)
        return jobs

    def spec_with_servers(self) -> dict:
        """Returns the addresses by job, those of parameter servers as well."""
        return {**self.spec(), "ps": list(self.servers)} if self.servers else self.spec()


def of(given: Any = None) -> Cluster:
    """Returns the cluster of a mapping like `TF_CONFIG`; None: of `TF_CONFIG` itself.

    Args:
        given: A mapping with `cluster` and `task`, the JSON text of one, or None.

    Raises:
        ConfigError: If it names no such task, or is malformed.
    """
    found = _parsed(given)
    jobs = found.get("cluster") or {}
    if not jobs:
        return Cluster((("worker", 0),), ("",), 0, ("worker:0",))
    _require_jobs(jobs)
    _require_addresses(jobs)
    used = [job for job in _TRAINING if jobs.get(job)]
    given = [(job, number) for job in used for number in range(len(jobs[job]))]
    names = tuple(map("{0[0]}:{0[1]}".format, given))
    addresses = tuple(address for job in used for address in jobs[job])
    task = found.get("task") or {}
    if not isinstance(task, Mapping):
        raise errors.ConfigError(
            f"TF_CONFIG's task is an object with type and index; got {task!r}. Check who sets it."
        )
    own = (task.get("type"), _number(task.get("index", 0)))
    servers = tuple(jobs.get("ps") or ())
    serving = [("ps", number) for number in range(len(servers))]
    if own not in [*given, *serving] and own[0] != "evaluator":
        known = [*names, *map("{0[0]}:{0[1]}".format, serving)]
        raise errors.ConfigError(
            f"TF_CONFIG's task is one of its cluster: got {task!r}, and the cluster has "
            f"{', '.join(known)}. Check type and index."
        )
    position, tasks = given.index(own) if own in given else None, _with_chief(given)
    own = own if position is None else tasks[position]
    has_evaluator = bool(jobs.get("evaluator"))
    return Cluster(tasks, addresses, position, names, servers, own, has_evaluator)


def _with_chief(given: list) -> tuple:
    """Returns tasks of which the first one is the chief by its name, too."""
    if given[0][0] != "worker":
        return tuple(given)
    return (("chief", 0), *(("worker", number) for number in range(len(given) - 1)))


def _parsed(given: Any) -> Mapping:
    text = os.environ.get("TF_CONFIG") or "{}" if given is None else given
    if isinstance(text, Mapping):
        return text
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as reason:
        raise errors.ConfigError(
            f"TF_CONFIG is JSON with `cluster` and `task`; got {text!r} ({reason}). Check who "
            "sets it."
        ) from reason
    if not isinstance(found, Mapping):
        raise errors.ConfigError(f"TF_CONFIG is a JSON object; got {text!r}. Check who sets it.")
    return found


def _require_jobs(jobs: Any) -> None:
    is_mapping = isinstance(jobs, Mapping)
    if not is_mapping or not all(isinstance(jobs[job], (list, tuple)) for job in jobs):
        raise errors.ConfigError(
            f"TF_CONFIG's cluster has a list of addresses for each job; got {jobs!r}."
        )
    unknown = sorted(set(jobs) - set(_NAMES))
    if unknown or not any(jobs.get(job) for job in _TRAINING):
        raise errors.ConfigError(
            f"A cluster's jobs are {', '.join(_NAMES)}, with a chief or a worker among them; got "
            f"{sorted(jobs)}. Rename or add one."
        )


def _require_addresses(jobs: Mapping) -> None:
    known: dict = {}
    for job, addresses in jobs.items():
        for number, address in enumerate(addresses):
            task = f"{job}:{number}"
            if not isinstance(address, str) or not re.fullmatch(r"\s*\S+:\d{1,5}\s*", address):
                raise errors.ConfigError(
                    f"TF_CONFIG's addresses are host:port; {task} has {address!r}. Correct it in "
                    "all tasks."
                )
            if known.setdefault(address.strip(), task) != task:
                raise errors.ConfigError(
                    f"Each task of a cluster has an address of its own; TF_CONFIG gives {address} "
                    f"to {known[address.strip()]} and {task}. Correct one of them in all tasks."
                )


def _number(index: Any) -> Any:
    return int(index) if isinstance(index, str) and index.isdigit() else index


class Member:
    """This process among the tasks of a cluster.

    Args:
        cluster: The cluster.
        num_cpus: As how many devices the CPU is shown.

    Attributes:
        session_config: Of sessions; the server has its threads and its share of GPUs.
    """

    def __init__(self, cluster: Cluster, num_cpus: int = 1):
        self.cluster = cluster
        self.session_config: Any = None
        self._num_cpus = num_cpus
        self._server: Any = None

    def start(self) -> str:
        """Starts this task's server, once in a process; returns the target of its sessions.

        Raises:
            RunError: If its address cannot be listened on.
        """
        if self._server is None:
            taking_part = (self.cluster.tasks, self.cluster.addresses, self.cluster.position)
            server, num_cpus = _SERVERS.get(taking_part, (None, 0))
            if num_cpus < self._num_cpus:
                server = self._new_server()
                _SERVERS[taking_part] = (server, self._num_cpus)
            self._server = server
        return self._server.target

    def _new_server(self) -> Any:
        job, number = self.cluster.tasks[self.cluster.position]
        config = self._server_config()
        try:
            return tf.distribute.Server(
                self.cluster.spec(), job_name=job, task_index=number, config=config
            )
        except tf.errors.OpError as reason:
            raise errors.RunError(
                f"Each task of a cluster listens on its own address: {self.cluster.name} could "
                f"not, on {self.cluster.addresses[self.cluster.position]} ({reason.message}). "
                "End what uses the port; of several strategies of one process let the first have "
                "the most devices; call replicate.estimator.train_and_evaluate, for TensorFlow's "
                'starts a server of its own unless TF_CONFIG has "environment": "google".'
            ) from reason

    def _server_config(self) -> Any:
        """Returns the server's `ConfigProto`: what devices are, sessions cannot say any more."""
        config = tf1.ConfigProto(device_count={"CPU": self._num_cpus})
        given = self.session_config
        if given is not None:
            config.gpu_options.CopyFrom(given.gpu_options)
            config.intra_op_parallelism_threads = given.intra_op_parallelism_threads
            config.inter_op_parallelism_threads = given.inter_op_parallelism_threads
        self.configure(config)
        return config

    def configure(self, config: Any) -> None:
        """Sets in a `ConfigProto`, in place, who leads the steps and that others are not seen.

        Neither other tasks are, nor other sessions: a server would keep variables by name, and
        the next model of this process, which has other shapes, would find them.
        """
        job, number = self.cluster.tasks[self.cluster.position]
        config.experimental.collective_group_leader = self.cluster.leader
        config.isolate_session_state = True
        own = f"/job:{job}/task:{number}"
        if own not in config.device_filters:
            config.device_filters.append(own)
