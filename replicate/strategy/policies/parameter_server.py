"""One copy of each variable, which all towers read: on this machine, or on a cluster's servers."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicate import devices as device_names
from replicate import errors
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import placement
from replicate.strategy import base
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.cluster import servers

PLACEMENTS = ("single", "round_robin", "balanced")


class LocalParameterServerStrategy(base.DistributionStrategy):
    """Keeps one copy of each variable, and updates it once.

    Args:
        devices: The towers' devices, as `replicate_model_fn` takes them.
        parameter_device: Where variables live; None: the GPU where there is exactly one,
            else the CPU, or the worker devices under the last two placements.
        placement: `"single"`, `"round_robin"`, or `"balanced"` by bytes.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        parameter_device: str | None = None,
        placement: str = "single",
    ):
        workers = device_names.resolve(devices)
        super().__init__(workers, _parameter_devices(workers, parameter_device, placement))
        self._placement_name = placement
        self._chooser = PerGraph(lambda: _chooser(placement, self._parameter_devices))

    def _tower_device(self, tower_id: int):
        return self._devices_of(self._worker_devices[tower_id])

    def run_towers(self, *args, **kwargs) -> list:
        """See base class."""
        results = super().run_towers(*args, **kwargs)
        graph = tf1.get_default_graph()
        if not (tf.executing_eagerly() or graph.building_function):
            placement.keep_beside_variables(graph)
        return results

    def _default_device(self):
        return self._devices_of(self.home)

    def _devices_of(self, worker: str):
        """Enters a worker's device; in a graph, with variables on their own."""
        if tf1.executing_eagerly_outside_functions():
            return tf.device(worker)
        return tf1.device(placement.device_function(self._chooser, worker))

    def _places(self, kwargs):
        if not tf1.executing_eagerly_outside_functions():
            return ("",)  # the device functions know, and know what the user named
        if self._placement_name == "balanced":
            kwargs["initial_value"] = _start(kwargs)
        value = kwargs.get("initial_value")
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
        if shape is None and value is not None and not callable(value):
            shape = value.shape if hasattr(value, "shape") else np.shape(value)
        return (self._chooser(shape, getattr(value, "dtype", None) if dtype is None else dtype),)


class ParameterServerStrategy(LocalParameterServerStrategy):
    """Keeps variables on the parameter servers of a cluster, and towers on this worker's devices.

    Each worker is a process that builds a graph of its own, takes batches of its own, and updates
    the variables, which all workers share, when its step is done: it waits for no other one. The
    first variable is on the first server in the graphs of all workers, and so on; local variables
    are the worker's own. A process that is neither chief nor worker, as an evaluator, is alone.

    Args:
        devices: The devices of this worker's towers, as `replicate_model_fn` takes them.
        cluster: A mapping like `TF_CONFIG`; None: `TF_CONFIG` itself.
        placement: `"round_robin"` over the servers, or `"balanced"` by bytes; None: the first.
        timeout: After how many seconds a worker fails that waits for a server or the chief.

    Attributes:
        is_stopping: Tells whether this process is asked to stop, so that it waits for nobody any
            more. Where it is set, workers end with the chief unless that was stopped; None: each
            one ends by itself.

    Raises:
        ConfigError: If the cluster is malformed, or this process no task of it.
        ValueError: If an option has no such value.
    """

    def __init__(
        self,
        devices: Sequence[str] | int | None = None,
        cluster: Any = None,
        placement: str | None = None,
        timeout: float = 600.0,
    ):
        if placement not in (None, *PLACEMENTS[1:]):
            raise ValueError(
                f"placement is one of {', '.join(PLACEMENTS[1:])}; got {placement!r}. Choose one."
            )
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds, above 0; got {timeout!r}.")
        self.cluster = clusters.of(cluster)
        self.timeout = timeout
        self.is_stopping: Callable[[], bool] | None = None
        self._alone = LocalParameterServerStrategy(devices, None, placement or "single")
        local = self._alone.worker_devices
        self.part = None
        if self.cluster.servers and self.cluster.position is not None:
            self.part = servers.Part(self.cluster, device_names.number_of_cpus(local))
        super().__init__(local, None, placement or ("round_robin" if self.part else "single"))
        if self.part is not None:
            self._worker_devices = tuple(map(self.part.own, local))
            self._parameter_devices = tuple(self.part.servers)
            self._home = self.part.own(device_names.parameter_device(local))

    @property
    def is_chief(self) -> bool:
        """Whether this process makes the variables, and writes checkpoints and summaries."""
        return self.cluster.position in (0, None)

    @property
    def home(self):
        """See base class."""
        return self._parameter_devices[0] if self.part is None else self._home

    def alone(self) -> LocalParameterServerStrategy:
        """Returns the strategy of sessions that see this process alone, as of an evaluation."""
        return self if self.part is None else self._alone

    def _devices_of(self, worker):
        if self.part is not None and tf1.executing_eagerly_outside_functions():
            raise RuntimeError(
                "Variables are on parameter servers in a graph, which sessions run: this code runs "
                "eagerly. Use replicate_model_fn in an Estimator, or enter tf.Graph()."
            )
        return super()._devices_of(worker)

    def start(self) -> str:
        """Starts this worker's server, once.

        Returns:
            The target of sessions that take part in the cluster; `""` where it is alone.
        """
        return "" if self.part is None else self.part.start()

    def wait_for_servers(self) -> None:
        """Waits until all parameter servers listen; see `servers.Part.wait_for_servers`."""
        self.part.wait_for_servers(self.timeout, self.is_stopping)

    def wait(self, is_there: Callable[[], Any], what: str, hint: str = "") -> None:
        """Waits for something of the cluster; see `servers.wait`."""
        servers.wait(is_there, what, self.timeout, hint, self.is_stopping)

    def configure(self, session_config: Any) -> None:
        """See base class."""
        super().configure(session_config)
        if session_config is not None and self.part is not None:
            self.part.configure(session_config)

    # What towers bring is added up here, and sent to a server when it is applied there.

    def sum_places(self, destination):
        """See base class."""
        return super().sum_places(destination) if self.part is None else (self._home,)

    def _batch_reduce(self, aggregation, columns, places):
        places = places if self.part is None else [(self._home,)] * len(places)
        return super()._batch_reduce(aggregation, columns, places)

    def _reduce_plain(self, aggregation, value, destination):
        is_sent_later = self.part is not None and self.is_single_tower
        if is_sent_later and (isinstance(value, tf.IndexedSlices) or _is_tensor(value)):
            return value
        return super()._reduce_plain(aggregation, value, destination)


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)


def _start(kwargs: dict) -> Any:
    """Returns an eager variable's initial value, made where that alone tells its bytes.

    NOTE: in a function it may be none yet, and of a checkpoint it is made for a shape.
    """
    value = kwargs.get("initial_value")
    is_told = kwargs.get("shape") is not None and kwargs.get("dtype") is not None
    is_of_checkpoint = hasattr(value, "checkpoint_position")
    if not callable(value) or is_told or is_of_checkpoint or not tf.executing_eagerly():
        return value
    return value()


class PerGraph:
    """Chooses for each graph as if it were the first; eager variables are one row of their own.

    Args:
        make: Makes a chooser; see `graph.placement`.
    """

    def __init__(self, make: Callable[[], placement.Chooser]):
        self._make = make
        self._choosers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._eager = make()

    def __call__(self, shape: Any, dtype: Any) -> str:
        """Returns the canonical device of the next variable."""
        if tf1.executing_eagerly_outside_functions():
            return self._eager(shape, dtype)
        with tfc.ops.init_scope():
            graph = tf1.get_default_graph()
        if graph not in self._choosers:
            self._choosers[graph] = self._make()
        return self._choosers[graph](shape, dtype)


def _parameter_devices(workers: Sequence[str], named: str | None, placement_name: str) -> tuple:
    if placement_name not in PLACEMENTS:
        raise ValueError(
            f"placement is one of {', '.join(PLACEMENTS)}; got {placement_name!r}. Choose one."
        )
    if named is not None:
        return device_names.resolve([named])
    if placement_name == "single":
        return (device_names.parameter_device(workers),)
    return tuple(workers)


def _chooser(placement_name: str, parameter_devices: Sequence[str]):
    if placement_name == "round_robin":
        return placement.RoundRobin(parameter_devices)
    if placement_name == "balanced":
        return placement.BalancedByBytes(parameter_devices)
    if len(parameter_devices) != 1:
        raise errors.DeviceError(
            f"A single parameter device is needed; got {list(parameter_devices)}. Name one, or "
            "use placement='round_robin'."
        )
    return placement.Single(parameter_devices[0])
