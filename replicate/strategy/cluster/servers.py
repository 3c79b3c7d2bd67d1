"""How a process takes part in a cluster whose variables are on parameter servers.

Each task listens on its own address. `train_and_evaluate` sees to that by itself; for whoever
calls `Estimator.train`, or has a session of their own, `Part.start` does.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster as clusters

_log = logging.getLogger("replicate")
_PAUSE = 0.2  # seconds between two looks at an address
_LONG = 5.0  # seconds after which waiting is worth a line
_WORDS = 30.0  # and between two such lines
_SERVERS: dict[str, Any] = {}  # those of this process, by address: they last as long as it does


class Part:
    """This process, as one of the chief and workers of a cluster with parameter servers.

    Args:
        cluster: The cluster; this process is one of those that train.
        num_cpus: As how many devices the CPU is shown, where nobody has begun to listen yet.
    """

    def __init__(self, cluster: clusters.Cluster, num_cpus: int = 1):
        self.cluster = cluster
        self._num_cpus = num_cpus

    @property
    def job(self) -> str:
        """This process as TensorFlow names it."""
        return "/job:{}/task:{}".format(*self.cluster.tasks[self.cluster.position])

    @property
    def servers(self) -> list[str]:
        """The devices of the parameter servers."""
        return [f"/job:ps/task:{n}/device:CPU:0" for n in range(len(self.cluster.servers))]

    def own(self, device: str) -> str:
        """Returns a device of this process, by the name that the whole cluster knows."""
        return f"{self.job}/device:{device.partition('/device:')[2]}"

    def start(self) -> str:
        """Starts this task's server, once, unless it listens already.

        Returns:
            The target of its sessions.

        Raises:
            ClusterError: If its address cannot be listened on.
        """
        address = self.cluster.addresses[self.cluster.position]
        # NOTE: a session that is thrown away is closed, and each server told so. By default that
        # waits until a server that is gone has come back, be it for ever, and hears no signal.
        os.environ.setdefault("GRPC_FAIL_FAST", "true")
        # NOTE: a name that others know this machine by may not lead back to it yet.
        if not is_listening(address) and not is_listening(f"127.0.0.1:{address.split(':')[-1]}"):
            config = tf1.ConfigProto(device_count={"CPU": self._num_cpus})
            listen(self.cluster, config)
        return f"grpc://{address}"

    def configure(self, config: Any) -> None:
        """Sets in a `ConfigProto`, in place, that other workers are not waited for."""
        job = self.cluster.tasks[self.cluster.position][0]
        own = self.job if job == "worker" else f"/job:{job}"
        for seen in ("/job:ps", own):
            if seen not in config.device_filters:
                config.device_filters.append(seen)

    def wait_for_servers(
        self, seconds: float, is_stopping: Callable[[], bool] | None = None
    ) -> None:
        """Waits until all parameter servers listen.

        Raises:
            ClusterError: If one of them does not in time, or this process is asked to stop.
        """
        for n, address in enumerate(self.cluster.servers):
            there = f"ps:{n} at {address}"
            wait(lambda one=address: is_listening(one), there, seconds, is_stopping=is_stopping)


def listen(cluster: clusters.Cluster, config: Any = None) -> Any:
    """Starts the server of this process, which lasts as long as the process does.

    Args:
        cluster: The cluster; any of its tasks but an evaluator.
        config: The server's `ConfigProto`.

    Raises:
        ClusterError: If its address cannot be listened on.
    """
    job, number = cluster.own
    address = cluster.spec_with_servers()[job][number]
    if address in _SERVERS:
        return _SERVERS[address]
    try:
        made = tf.distribute.Server(
            cluster.spec_with_servers(), job_name=job, task_index=number, config=config
        )
    except tf.errors.OpError as reason:
        raise errors.ClusterError(
            f"Each task of a cluster listens on its own address: {job}:{number} could not, on "
            f"{address} ({reason.message}). End what uses the port, or choose another one in "
            "TF_CONFIG, in all processes."
        ) from reason
    return _SERVERS.setdefault(address, made)


def serve(cluster: clusters.Cluster) -> None:
    """Keeps variables for the others until somebody ends the process.

    NOTE: TensorFlow's own waiting hears no signal.
    """
    listen(cluster)
    _log.info("%s:%d keeps variables, and ends when it is ended.", *cluster.own)
    while True:
        time.sleep(1)


def is_listening(address: str) -> bool:
    """Whether somebody takes connections at an address, `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1):
            return True
    except OSError:
        return False


def wait(
    is_there: Callable[[], Any],
    what: str,
    seconds: float,
    hint: str = "",
    is_stopping: Callable[[], bool] | None = None,
) -> None:
    """Waits for something of a cluster, and says so.

    Args:
        is_there: Whether it has come.
        what: Its name.
        seconds: For how long.
        hint: What may help where it does not come.
        is_stopping: Whether this process is asked to stop; None: nobody asks.

    Raises:
        ClusterError: If it does not come in time, or this process is asked to stop.
    """
    begun = time.monotonic()
    next_word = begun + _LONG
    while not is_there():
        now = time.monotonic()
        if is_stopping is not None and is_stopping():
            raise errors.ClusterError(
                f"All tasks of a cluster must run: this one was stopped, and {what} has not come, "
                f"for {now - begun:.0f} seconds. Start all again."
            )
        if now - begun > seconds:
            hint = hint or "Look at the log of that process, and start it again."
            raise errors.ClusterError(
                f"All tasks of a cluster must run: waited {seconds:g} seconds for {what}. {hint}"
            )
        if now > next_word:
            next_word = now + _WORDS
            waited = now - begun
            _log.warning("Still waiting for %s, for %.0f s of %g so far.", what, waited, seconds)
        time.sleep(_PAUSE)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Returns some names, for people."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
