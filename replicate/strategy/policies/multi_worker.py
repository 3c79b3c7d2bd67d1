"""`MultiWorkerStrategy`: the towers of several processes are one model's."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicate import devices as device_names
from replicate import errors
from replicate.compat import estimator
from replicate.compat.tensorflow import tf
from replicate.graph import carriers, collectives, reductions
from replicate.strategy import base, context
from replicate.strategy.cluster import agreement, presence
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.variables import variables

_HINTS = ("auto", "ring", "nccl")


class MultiWorkerStrategy(base.DistributionStrategy):
    """Keeps a copy of each variable with each tower of each worker, and updates all alike.

    Each worker is a process with K towers of its own. What towers bring is joined in the
    worker first, then over workers by TensorFlow's collectives.

    Args:
        devices: The devices of this worker's towers, as `replicate_model_fn` takes them.
        cluster: A mapping like `TF_CONFIG`; None: `TF_CONFIG` itself. Without a cluster the
            worker is alone.
        timeout: After how many seconds a worker fails that waits for another one.
        communication: `"ring"`, `"nccl"`, or `"auto"`: NCCL between GPUs, else a ring.
        compared: What workers compare at the start beside what they have built, such as the
            keys and values of a config; None: the JSON mapping in `REPLICATE_COMPARED`.
        pack_bytes: Tensors share a transfer, up to so many bytes; 0: none do; None: 4 MiB, or
            128 KiB for each worker where that is more, so that latency stays below bytes.

    Attributes:
        compared: See the argument; may be added to until a session begins.
        is_stopping: Tells whether this process is asked to stop, so that it waits for nobody who
            has not come; None: nobody asks.

    Raises:
        ConfigError: If the cluster is malformed, or this process no task of it.
        ValueError: If an option has no such value.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        cluster: Any = None,
        timeout: float = 600.0,
        communication: str = "auto",
        compared: Mapping[str, Any] | None = None,
        pack_bytes: int | None = None,
    ):
        if communication not in _HINTS:
            raise ValueError(f"communication is one of {_HINTS}; got {communication!r}.")
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds, above 0; got {timeout!r}.")
        workers = device_names.resolve(devices)
        self.is_stopping: Callable[[], bool] | None = None
        self.compared = _from_environment() if compared is None else dict(compared)
        self._member = clusters.Member(clusters.of(cluster), device_names.number_of_cpus(workers))
        found = self._member.cluster
        if found.servers:
            raise errors.ConfigError(
                "MultiWorkerStrategy keeps a copy of each variable with each worker, and parameter "
                f"servers have nothing to do in it: TF_CONFIG has {len(found.servers)} in its job "
                "ps. Use ParameterServerStrategy, in a config strategy: parameter_server; or leave "
                "the job out."
            )
        packs = carriers.pack_bytes(found.size) if pack_bytes is None else pack_bytes
        self._options = collectives.Options(
            found.size, found.position or 0, communication, timeout, packs
        )
        self._graphs = collectives.PerGraph(self._new_across)
        super().__init__(workers, workers)

    @property
    def cluster(self) -> clusters.Cluster:
        """Who takes part, and who this process is."""
        return self._member.cluster

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes checkpoints and summaries."""
        return self.cluster.position in (0, None)

    @property
    def num_workers(self) -> int:
        """W; 1 in a process that is no worker, as an evaluator."""
        return 1 if self.cluster.position is None else self.cluster.size

    @property
    def is_single_tower(self) -> bool:
        """Whether there is one tower in the whole cluster."""
        return self.num_towers == 1 and self.across() is None

    @property
    def all_towers(self) -> int:
        """W x K, or K where this worker is alone, as in predictions."""
        return self.num_towers * (1 if self.across() is None else self.num_workers)

    @property
    def first_tower(self) -> int:
        """The number over all workers of this worker's first tower."""
        return 0 if self.across() is None else self._options.position * self.num_towers

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """Which part of the input is this worker's."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_workers,
            input_pipeline_id=self.cluster.position or 0,
            num_replicas_in_sync=self.num_workers * self.num_towers,
        )

    def _across(self):
        return self._graphs.get() if self.num_workers > 1 else None

    def _new_across(self) -> collectives.Across:
        return collectives.Across(self._options, self._worker_devices[0])

    def start(self) -> str:
        """Starts this worker's server, once.

        Returns:
            The target of sessions that take part in the cluster; `""` where it is alone.
        """
        return self._member.start() if self.num_workers > 1 else ""

    def require_session(self, config: Any) -> None:
        """Refuses a RunConfig whose sessions cannot take part in the cluster.

        Raises:
            ConfigError: If it names no target, or shows other tasks' devices.
        """
        if config is None or self.num_workers == 1:
            return
        given = getattr(config, "session_config", None)
        if not config.master:
            found = "has no master"
        elif given is not None and not given.device_filters:
            found = "has a session_config without device_filters, which shows all tasks' devices"
        else:
            return
        raise errors.ConfigError(
            f"A worker's session is in its cluster, on its own devices: the RunConfig of "
            f"{self.cluster.name} {found}. Make it with strategy.run_config(...), and a "
            "session_config with strategy.configure(session_config)."
        )

    def agree(self, own: Mapping[str, Sequence[str]]) -> None:
        """Waits until all workers are there, and compares what each was given and has built.

        Args:
            own: What this worker has, in words, and all must have alike: lists of texts.

        Raises:
            ClusterError: If a worker does not come in time, or differs.
        """
        if self.num_workers == 1:
            return
        self.start()
        presence.wait_for_all(self.cluster, self._options.timeout, self.is_stopping)
        given = {f"the config's {name}": [str(self.compared[name])] for name in self.compared}
        kinds = [tf.DeviceSpec.from_string(name).device_type for name in self._worker_devices]
        devices = {"the towers' devices": [", ".join(kinds)]}
        agreement.compare(self._member, self._options, {**own, **given, **devices})

    def begin(self) -> tf.Operation:
        """Returns what each worker's session runs once, before any step.

        All variables get the first worker's values, which must be initialized or restored there.
        `replicate_model_fn` does so by itself.
        """
        across = self._across()
        return tf.no_op() if across is None else tf.group(*agreement.begin(across))

    def read_var(self, v: Any) -> Any:
        """See base class; what is each tower's own is aggregated over all workers' towers.

        NOTE: in an evaluation that has happened already, and a value waits for no batch.
        """
        value = super().read_var(v)
        across = self.across()
        mode = context.current()
        share = None if mode is None else mode.share
        is_own = across is None or (share is not None and share.is_gathered)
        if is_own or not isinstance(v, variables.TowerLocalVariable):
            return value
        if v.aggregation == variables.SUM:
            return across.total(value)
        if v.aggregation == variables.MEAN:
            return reductions.divide_onto(across.total(value), across.size, None)
        return across.from_first([value])[0]

    def run_config(self, **options: Any) -> Any:
        """Returns a RunConfig of this task; of workers alone the first one is the chief.

        Args:
            **options: What a `RunConfig` is given.
        """
        return estimator.run_config(self.cluster.as_environment(), **options)

    def evaluating_together(self, config: Any) -> Any:
        """Returns a RunConfig with which all workers evaluate each row once, together.

        Every worker then calls `evaluate`, with an input of its own. Otherwise an evaluation is
        of the worker that calls it.

        Args:
            config: A `RunConfig`.
        """
        return estimator.evaluating_on(config, self.start())

    def configure(self, session_config: Any) -> None:
        """See base class."""
        super().configure(session_config)
        if session_config is not None and self.num_workers > 1:
            self._member.configure(session_config)
            self._member.session_config = session_config

    def _default_device(self):
        return tf.device(self._worker_devices[0])

    def _places(self, kwargs):
        return self._worker_devices

    def _reduce_destinations(self, value):
        return self._worker_devices


def _from_environment() -> dict:
    text = os.environ.get("REPLICATE_COMPARED") or "{}"
    try:
        found = json.loads(text)
    except ValueError as reason:
        raise errors.ConfigError(
            f"REPLICATE_COMPARED is a JSON object; got {text!r} ({reason}). Check who sets it."
        ) from reason
    if not isinstance(found, dict):
        raise errors.ConfigError(
            f"REPLICATE_COMPARED is a JSON object; got {text!r}. Check who sets it."
        )
    return found
