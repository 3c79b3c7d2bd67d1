"""`MultiWorkerStrategy`: the towers of several processes are one model's."""

from collections.abc import Mapping, Sequence
from typing import Any

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat import estimator, graphs
from replicate.compat.tensorflow import tf
from replicate.graph import collectives, packing, reductions
from replicate.strategy import base, context
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.cluster import ends, manifest, membership, sessions
from replicate.strategy.variables import variables

_HINTS = ("auto", "ring", "nccl")


class MultiWorkerStrategy(base.DistributionStrategy):
    """Keeps a copy of each variable with each tower of each worker, and updates all alike.

    Each worker is a process with K towers of its own. What towers bring is joined in the
    worker first, then over workers by TensorFlow's collectives.

    Args:
        devices: The devices of this worker's towers, as `replicate_model_fn` takes them.
        cluster: A mapping like `TF_CONFIG`, or a `Cluster`; None: `TF_CONFIG` itself. Without a
            cluster the worker is alone.
        timeout: After how many seconds a worker fails that waits for another one.
        communication: `"ring"`, `"nccl"`, or `"auto"`: NCCL between GPUs, else a ring.
        compared: What workers compare at the start beside what they have built, such as the
            keys and values of a config.
        pack_bytes: Tensors share a transfer, up to so many bytes; 0: none do; None: 4 MiB, or
            128 KiB for each worker where that is more, so that latency stays below bytes.

    Raises:
        ConfigError: If the cluster is malformed, or this process no task of it.
        ValueError: If an option has no such value.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        cluster: clusters.Cluster | Mapping[str, Any] | str | None = None,
        timeout: float = 600.0,
        communication: str = "auto",
        compared: Mapping[str, object] | None = None,
        pack_bytes: int | None = None,
    ):
        if communication not in _HINTS:
            raise ValueError(f"communication is one of {_HINTS}; got {communication!r}.")
        membership.require_timeout(timeout)
        workers = device_names.resolve(devices)
        cluster = clusters.of(cluster)
        if cluster.servers:
            raise errors.ConfigError(
                "MultiWorkerStrategy keeps a copy of each variable with each worker, and parameter "
                f"servers have nothing to do in it: TF_CONFIG has {len(cluster.servers)} in its "
                "job ps. Use ParameterServerStrategy, in a config strategy: parameter_server; or "
                "leave the job out."
            )
        self.compared = dict(compared or {})
        cpus = device_names.number_of_cpus(workers)
        packs = packing.pack_bytes(cluster.size) if pack_bytes is None else pack_bytes
        self._options = collectives.Options(
            cluster.size, cluster.position or 0, communication, packs, timeout
        )
        self._graphs = graphs.PerGraph(self._new_workers)
        super().__init__(workers, workers, membership.Membership(cluster, cpus, timeout))

    @property
    def num_workers(self) -> int:
        """W; 1 in a process that is no worker, as an evaluator."""
        return self.cluster.size if self.is_in_cluster else 1

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """Which part of the input is this worker's."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_workers,
            input_pipeline_id=self.cluster.position or 0,
            num_replicas_in_sync=self.num_workers * self.num_towers,
        )

    def _workers(self) -> collectives.Workers:
        return self._graphs.get() if self.is_in_cluster else collectives.ALONE

    def _new_workers(self) -> collectives.CollectiveWorkers:
        return collectives.CollectiveWorkers(self._options, self._worker_devices[0])

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """See base class; what is each tower's own is aggregated over all workers' towers.

        NOTE: in an evaluation that has happened already, and a value waits for no batch.
        """
        value = super().read_var(v)
        workers, share = self.workers, context.share()
        is_own = workers.is_alone or (share is not None and share.is_gathered)
        if is_own or not isinstance(v, variables.TowerLocalVariable):
            return value
        if v.aggregation == variables.SUM:
            return workers.total(value)
        if v.aggregation == variables.MEAN:
            return reductions.divide_onto(workers.total(value), workers.size, None)
        return workers.from_first([value])[0]

    # Sessions.

    def run_config(self, **options: Any) -> types.RunConfig:
        """Returns a RunConfig of this task; of workers alone the first one is the chief.

        Args:
            **options: What a `RunConfig` is given.
        """
        return estimator.run_config(self.cluster.as_environment(), **options)

    def evaluating_together(self, config: types.RunConfig) -> types.RunConfig:
        """Returns a RunConfig with which all workers evaluate each row once, together.

        Every worker then calls `evaluate`, with an input of its own. Otherwise an evaluation is
        of the worker that calls it.

        Args:
            config: A `RunConfig`.
        """
        return estimator.evaluating_on(config, self.start())

    def require_session(self, config: types.RunConfig | None) -> None:
        """Refuses a RunConfig whose sessions cannot take part in the cluster.

        Raises:
            ConfigError: If it names no target, or shows other tasks' devices.
        """
        if config is None or not self.is_in_cluster:
            return
        session_config = getattr(config, "session_config", None)
        if not config.master:
            fault = "has no master"
        elif session_config is not None and not session_config.device_filters:
            fault = "has a session_config without device_filters, which shows all tasks' devices"
        else:
            return
        raise errors.ConfigError(
            f"A worker's session is in its cluster, on its own devices: the RunConfig of "
            f"{self.cluster.name} {fault}. Make it with strategy.run_config(...), and a "
            "session_config with strategy.configure(session_config)."
        )

    def workers_in(
        self, mode: str, config: types.RunConfig | None, is_export: bool
    ) -> collectives.Workers:
        """See base class.

        Predictions are each worker's own. An evaluation is, too, if it is in a session of its own.
        """
        workers = self.workers
        if workers.is_alone:
            return workers
        self.start()  # sessions of all modes may be in it
        if mode == types.TRAIN:
            self.require_session(config)
            return workers
        if mode == types.EVAL and bool(getattr(config, "evaluation_master", "")):
            return workers
        if not self.is_chief:
            if is_export:
                raise membership.export_refusal(self.cluster.name)
            sessions.warn_of_no_checkpoint(self.cluster.name, config)
        return collectives.ALONE

    def begin_session(
        self, spec: types.EstimatorSpec, config: types.RunConfig | None, joined: ends.Input
    ) -> types.EstimatorSpec:
        """See base class."""
        return sessions.together(spec, self._member, joined, self.agree)

    def agree(self, own: manifest.Manifest) -> None:
        """Waits until all workers are there, and compares what each was given and has built.

        Args:
            own: What this worker has, in words, and all must have alike.

        Raises:
            ClusterError: If a worker does not come in time, or differs.
        """
        if not self.is_in_cluster:
            return
        self.start()
        self._member.wait_for(self.cluster.others)
        config = manifest.of_config(self.compared)
        kinds = [tf.DeviceSpec.from_string(name).device_type for name in self._worker_devices]
        devices = {"the towers' devices": ", ".join(kinds)}
        manifest.compare(self._member, self._options, {**own, **config, **devices})

    def begin(self) -> tf.Operation:
        """Returns what each worker's session runs once, before any step.

        All variables get the first worker's values, which must be initialized or restored there.
        `replicate_model_fn` does so by itself.
        """
        workers = self._workers()
        return tf.no_op() if workers.is_alone else tf.group(*sessions.first_values(workers))

    def _places(self, kwargs: types.Arguments) -> Sequence[str]:
        return self._worker_devices

    def _reduce_destinations(self, value: types.Nest) -> Sequence[str]:
        return self._worker_devices
