"""One copy of each variable, which all towers read: on this machine, or on a cluster's servers."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from replicate import devices as device_names
from replicate import errors, types
from replicate.compat import graphs
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import all_reduce, placement
from replicate.strategy import base, verbs
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.cluster import ends, manifest, membership, sessions

_SPREAD = tuple(name for name in placement.PLACEMENTS if name != "single")


class _OneCopyStrategy(base.DistributionStrategy):
    """Keeps one copy of each variable, and updates it once.

    Args:
        worker_devices: See base class.
        parameter_devices: See base class.
        placement_name: One of `placement.PLACEMENTS`.
        slice_bytes: See base class.
        member: See base class.
    """

    def __init__(
        self,
        worker_devices: Sequence[str],
        parameter_devices: Sequence[str],
        placement_name: str,
        slice_bytes: int | None,
        member: membership.Membership = membership.ALONE,
    ):
        super().__init__(worker_devices, parameter_devices, member)
        _require_slices(slice_bytes, placement_name)
        self._placement_name = placement_name
        self.slice_bytes = slice_bytes
        make = placement.PLACEMENTS[placement_name]
        self._choosers = graphs.PerGraph(lambda: make(self._parameter_devices))
        self._choosers_of_large = graphs.PerGraph(lambda: make(self._parameter_devices))
        self._unnamed: graphs.PerGraph[set[str]] = graphs.PerGraph(set)

    def _tower_device(self, tower_id: int) -> contextlib.AbstractContextManager[object]:
        return self._devices_of(self._worker_devices[tower_id])

    def _default_device(self) -> contextlib.AbstractContextManager[object]:
        return self._devices_of(self.home)

    def _devices_of(self, worker: str) -> contextlib.AbstractContextManager[object]:
        """Enters a worker's device; in a graph, with variables on their own."""
        if tf1.executing_eagerly_outside_functions():
            return tf.device(worker)
        choose = placement.device_function(self._choose, worker, self._unnamed.get())
        return tf1.device(choose)

    def may_move(self, name: str) -> bool:
        """See base class."""
        return name in self._unnamed.get()

    def _choose(self, shape: tf.TensorShape | None, dtype: tf.DType | None) -> str:
        """Returns the device of the next variable: in each graph as if it were the first.

        Large ones are by themselves: of those that are cut all devices hold as much.
        """
        if self.slice_bytes is not None:
            if placement.size_in_bytes(shape, dtype) > self.slice_bytes:
                return self._choosers_of_large.get()(shape, dtype)
        return self._choosers.get()(shape, dtype)

    def _make_variable(self, next_creator: types.Function, kwargs: types.Arguments) -> tf.Variable:
        if self.slice_bytes is not None:
            raise ValueError(
                f"slice_bytes={self.slice_bytes} cuts variables of a graph that replicate_model_fn "
                "splits; in scope() they are whole. Leave out slice_bytes."
            )
        return super()._make_variable(next_creator, kwargs)

    def _places(self, kwargs: types.Arguments) -> Sequence[str]:
        if not tf1.executing_eagerly_outside_functions():
            return ("",)  # the device functions know, and know what the user named
        if self._placement_name == "balanced":
            kwargs["initial_value"] = _start(kwargs)
        value = kwargs.get("initial_value")
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
        if shape is None and value is not None and not callable(value):
            shape = value.shape if hasattr(value, "shape") else np.shape(value)
        return (self._choose(shape, getattr(value, "dtype", None) if dtype is None else dtype),)


class LocalParameterServerStrategy(_OneCopyStrategy):
    """Keeps one copy of each variable, and updates it once.

    Args:
        devices: The towers' devices, as `replicate_model_fn` takes them.
        parameter_device: Where variables live; None: the GPU where there is exactly one,
            else the CPU; the worker devices under all placements but `"single"`.
        placement: `"single"`, `"round_robin"`, or `"balanced"` by bytes.
        slice_bytes: A split graph cuts variables of more bytes into slices of rows, one on each
            parameter device; None: none. Not those that the model_fn has a partitioner cut.

    Raises:
        ValueError: If an option has no such value, or variables are on one device.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        parameter_device: str | None = None,
        placement: str = "single",
        slice_bytes: int | None = None,
    ):
        if slice_bytes is not None and parameter_device is not None:
            raise ValueError(
                "slice_bytes cuts variables into slices for several devices: got "
                f"slice_bytes={slice_bytes} with parameter_device={parameter_device!r}. Leave out "
                "one of them."
            )
        workers = device_names.resolve(devices)
        parameters = _parameter_devices(workers, parameter_device, placement)
        super().__init__(workers, parameters, placement, slice_bytes)


class ParameterServerStrategy(_OneCopyStrategy):
    """Keeps variables on the parameter servers of a cluster, and towers on this worker's devices.

    Each worker is a process that builds a graph of its own, takes batches of its own, and updates
    the variables, which all workers share, when its step is done: it waits for no other one. The
    first variable is on the first server in the graphs of all workers, and so on; local variables
    are the worker's own. A process that is neither chief nor worker, as an evaluator, is alone.

    Args:
        devices: The devices of this worker's towers, as `replicate_model_fn` takes them.
        cluster: A mapping like `TF_CONFIG`, or a `Cluster`; None: `TF_CONFIG` itself.
        placement: `"round_robin"` over the servers, or `"balanced"` by bytes; None: the first.
        timeout: After how many seconds a worker fails that waits for a server or the chief; in
            synchronous steps, for any other worker.
        compared: What a worker compares with the chief's beside what they have built, such as the
            keys and values of a config.
        slice_bytes: See `LocalParameterServerStrategy`; the slices are on the servers.

    Raises:
        ConfigError: If the cluster is malformed, or this process no task of it.
        ValueError: If an option has no such value.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        cluster: clusters.Cluster | Mapping[str, Any] | str | None = None,
        placement: str | None = None,
        timeout: float = 600.0,
        compared: Mapping[str, object] | None = None,
        slice_bytes: int | None = None,
    ):
        if placement not in (None, *_SPREAD):
            raise ValueError(
                f"placement is one of {', '.join(_SPREAD)}; got {placement!r}. Choose one."
            )
        membership.require_timeout(timeout)
        cluster = clusters.of(cluster)
        self.compared = dict(compared or {})
        self._alone = LocalParameterServerStrategy(
            devices, None, placement or "single", slice_bytes if placement else None
        )
        workers, parameters = self._alone.worker_devices, self._alone.parameter_devices
        cpus = device_names.number_of_cpus(workers)
        self._home = parameters[0]
        if cluster.is_joined:
            self._home = cluster.own.named(device_names.parameter_device(workers))
            workers = tuple(cluster.own.named(worker) for worker in workers)
            parameters = tuple(server.named("/device:CPU:0") for server in cluster.servers)
            placement = placement or "round_robin"
        member = membership.Membership(cluster, cpus, timeout)
        super().__init__(workers, parameters, placement or "single", slice_bytes, member)

    @classmethod
    def taking_over(
        cls,
        name: str | None,
        devices: Sequence[str],
        cluster: clusters.Cluster | Mapping[str, Any],
        timeout: float = 600.0,
        compared: Mapping[str, object] | None = None,
        slice_bytes: int | None = None,
    ) -> "ParameterServerStrategy | None":
        """Returns what does in a cluster what the strategy of a name does on one machine.

        Args:
            name: The name; None: the default one.
            devices: The canonical devices of this worker.
            cluster: See the class.
            timeout: See the class.
            compared: See the class.
            slice_bytes: See the class.

        Returns:
            The strategy; None: that needs a copy of each variable with each worker.
        """
        if name not in (None, "one_device", "parameter_server", *_SPREAD):
            return None
        placement = name if name in _SPREAD else "round_robin"
        devices = devices[:1] if name == "one_device" else devices
        return cls(devices, cluster, placement, timeout, compared, slice_bytes)

    @property
    def home(self) -> str:
        """See base class."""
        return self._home

    def _devices_of(self, worker: str) -> contextlib.AbstractContextManager[object]:
        if self.is_in_cluster and tf1.executing_eagerly_outside_functions():
            raise RuntimeError(
                "Variables are on parameter servers in a graph, which sessions run: this code runs "
                "eagerly. Use replicate_model_fn in an Estimator, or enter tf.Graph()."
            )
        return super()._devices_of(worker)

    # Sessions.

    def in_mode(self, mode: str, config: types.RunConfig | None) -> base.DistributionStrategy:
        """See base class; an evaluation's session sees this process alone."""
        if not self.is_in_cluster:
            return self
        if mode != types.TRAIN:
            return self._alone
        if config is not None and not config.num_ps_replicas:
            raise errors.ConfigError(
                "A RunConfig must know of the cluster in which it trains: the strategy has "
                f"{len(self.cluster.servers)} parameter servers, the RunConfig none. Make the "
                "RunConfig once TF_CONFIG is set, and give the strategy no other cluster."
            )
        return self

    def begin_session(
        self, spec: types.EstimatorSpec, config: types.RunConfig | None, joined: ends.Input
    ) -> types.EstimatorSpec:
        """See base class."""
        is_joined = self.is_in_cluster and bool(getattr(config, "master", ""))
        if spec.mode != types.TRAIN or not is_joined:
            return spec
        compared = {**joined.compared, **manifest.of_config(self.compared)}
        joined = joined._replace(compared=compared)
        return sessions.beside_servers(spec, self._member, self._home, config, joined)

    # What towers bring is added up here, and sent to a server when it is applied there.

    def sum_places(self, destination: types.Nest) -> tuple[str, ...]:
        """See base class."""
        return (self._home,) if self.is_in_cluster else super().sum_places(destination)

    def _batch_sum(
        self,
        columns: Sequence[Sequence[types.Gradient]],
        places: Sequence[Sequence[str]],
        has_rows: all_reduce.HasRows | None = None,
    ) -> list[list[types.Gradient]]:
        if self.is_in_cluster:
            own = {self._home, *self._worker_devices}
            places = [[each if each in own else self._home for each in place] for place in places]
        return super()._batch_sum(columns, places, has_rows)

    def _reduce_plain(
        self, aggregation: tf.VariableAggregation, value: types.Nest, destination: types.Nest
    ) -> types.Nest:
        is_sent_later = self.is_in_cluster and self.is_single_tower
        if is_sent_later and verbs.is_of_one(value):
            return value
        return super()._reduce_plain(aggregation, value, destination)


def _require_slices(slice_bytes: int | None, placement_name: str) -> None:
    """Refuses slices that could not be, or not be anywhere."""
    if slice_bytes is None:
        return
    if isinstance(slice_bytes, bool) or not isinstance(slice_bytes, int) or slice_bytes < 1:
        raise ValueError(
            "slice_bytes is how many bytes a variable may have that is not cut, a whole number of "
            f"1 or more; got {slice_bytes!r}. Pass such as 64 * 2**20, or None."
        )
    if placement_name == "single":
        raise ValueError(
            f"slice_bytes={slice_bytes} cuts variables into slices for several devices, and "
            f'placement="single" has one. Choose placement="balanced" or "round_robin".'
        )


def _start(kwargs: types.Arguments) -> types.Nest:
    """Returns an eager variable's initial value, made where that alone tells its bytes.

    NOTE: in a function it may be none yet, and of a checkpoint it is made for a shape.
    """
    value = kwargs.get("initial_value")
    is_told = kwargs.get("shape") is not None and kwargs.get("dtype") is not None
    is_of_checkpoint = hasattr(value, "checkpoint_position")
    if not callable(value) or is_told or is_of_checkpoint or not tf.executing_eagerly():
        return value
    return value()


def _parameter_devices(
    workers: Sequence[str], named: str | None, placement_name: str
) -> Sequence[str]:
    if placement_name not in placement.PLACEMENTS:
        shown = ", ".join(placement.PLACEMENTS)
        raise ValueError(f"placement is one of {shown}; got {placement_name!r}. Choose one.")
    if named is not None:
        return device_names.resolve([named])
    if placement_name == "single":
        return (device_names.parameter_device(workers),)
    return workers
