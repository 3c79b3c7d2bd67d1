"""How this process takes part in a cluster: its server and sessions, whom it waits for or loses."""

import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NoReturn, TypeVar

from replicate import devices as device_names
from replicate import errors
from replicate.compat import sessions as tf_sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import collectives
from replicate.strategy.cluster import cluster as clusters

Result = TypeVar("Result")

_log = logging.getLogger("replicate")
_FIRST_WORD = 3.0  # seconds until somebody is told that others are missing
_WORDS = 30.0  # and between two such messages
_PAUSE = 0.2
_ANSWER = 2.0  # seconds that a task may take to answer

# What TensorFlow raises where another task is gone, or does not come; then, what may say so.
_LOSSES = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_DOUBTFUL = (tf.errors.CancelledError, tf.errors.InternalError)
POSSIBLE_LOSSES = (*_LOSSES, *_DOUBTFUL)


class Membership:
    """This process among the tasks of a cluster.

    Args:
        cluster: The cluster.
        num_cpus: As how many devices the CPU is shown.
        timeout: After how many seconds it fails if it waits for another task.
    """

    def __init__(self, cluster: clusters.Cluster, num_cpus: int = 1, timeout: float = 600.0):
        self.cluster = cluster
        self.timeout = timeout
        self._num_cpus = num_cpus
        self._session_config: tf1.ConfigProto | None = None

    @property
    def _others(self) -> list[clusters.Task]:
        return [*self.cluster.others, *self.cluster.servers]

    # Sessions.

    def start(self) -> str:
        """Starts this task's server, if other tasks train the same model; see `listen`.

        Returns:
            The target of sessions that take part in the cluster; `""` where it is alone.
        """
        is_listening = self.cluster.is_joined and self.cluster.listens
        return self.listen() if is_listening else ""

    def listen(self) -> str:
        """Starts this task's server, once in a process; returns the target of its sessions.

        NOTE: TensorFlow's train_and_evaluate starts one by itself, which suits parameter servers.

        Raises:
            ClusterError: If its address cannot be listened on, or its server does not suit it.
        """
        if self.cluster.servers:
            # NOTE: a session that is thrown away is closed, and each server told so. By default
            # that waits until a server that is gone has come back, and hears no signal.
            os.environ.setdefault("GRPC_FAIL_FAST", "true")
        server = next(filter(self._is_own, tf_sessions.SERVERS), None)
        if server is None:
            server = self._new_server()
        self._require_suited(server.server_def.default_session_config)
        return server.target

    def _is_own(self, server: tf.distribute.Server) -> bool:
        """Whether a server of this process is that of this task in this cluster."""
        found, own = server.server_def, self.cluster.own
        jobs = tf.train.ClusterSpec(found.cluster).as_dict()
        is_task = (found.job_name, found.task_index) == (own.job, own.index)
        return is_task and jobs == {**jobs, **self.cluster.spec()}

    def _require_suited(self, told: tf1.ConfigProto) -> None:
        """Refuses this task's server where it was told what does not suit its sessions."""
        own, number = self.cluster.own, told.device_count.get("CPU", 1)
        if number < self._num_cpus:
            raise errors.ClusterError(
                f"The server of a task shows the devices of all its towers: that of {own} shows "
                f"{number} CPU devices, and {self._num_cpus} are named. Make all strategies before "
                "the first of them trains, and give a server of your own no device_count."
            )
        if not (self.cluster.servers or told.experimental.collective_group_leader):
            raise errors.ClusterError(
                f"Workers that take each step together have the servers of their strategies: that "
                f"of {own} is another one. Call replicate.estimator.train_and_evaluate; "
                'TensorFlow\'s starts a server unless TF_CONFIG has "environment": "google".'
            )

    def _new_server(self) -> tf.distribute.Server:
        own, spec = self.cluster.own, self.cluster.spec()
        config = tf1.ConfigProto()  # what devices are, sessions cannot say any more
        given = self._session_config
        if given is not None:
            config.gpu_options.CopyFrom(given.gpu_options)
            config.intra_op_parallelism_threads = given.intra_op_parallelism_threads
            config.inter_op_parallelism_threads = given.inter_op_parallelism_threads
        if not self.cluster.servers:
            self._set(config)
        device_names.settle_sessions()  # which notes the server, too
        try:
            return tf.distribute.Server(spec, job_name=own.job, task_index=own.index, config=config)
        except tf.errors.OpError as reason:
            raise errors.ClusterError(
                f"Each task of a cluster listens on its own address: {own.name} could not, on "
                f"{own.address} ({reason.message}). End what uses the port, or choose another one "
                "in TF_CONFIG, in all processes; start a server of your own after "
                "replicate_model_fn."
            ) from reason

    def configure(self, config: tf1.ConfigProto) -> None:
        """Sets in the settings of sessions, in place, whom they see, and who leads the steps.

        They see parameter servers, and no other worker. Without parameter servers they see no
        other session either: a server would keep variables by name, and the next model of this
        process, which has other shapes, would find them. Nothing is set in a process that is alone.
        """
        if self.cluster.is_joined:
            self._set(config)
            self._session_config = config

    def _set(self, config: tf1.ConfigProto) -> None:
        own, first = self.cluster.own, self.cluster.tasks[0]
        seen = [own.device]
        if self.cluster.servers:
            seen = ["/job:ps", own.device if own.job == "worker" else f"/job:{own.job}"]
        else:
            leader = f"/job:{first.job}/replica:0/task:{first.index}"
            config.experimental.collective_group_leader = leader
            config.isolate_session_state = True
        config.device_filters.extend(each for each in seen if each not in config.device_filters)

    # Waiting.

    def wait_until(self, missing: Callable[[], str], hint: str = "") -> None:
        """Waits until nothing is missing, and says so meanwhile.

        Args:
            missing: Returns what is missing, in words; nothing: `""`.
            hint: What may help if it does not come.

        Raises:
            ClusterError: If it does not come in time, or this process is asked to stop.
        """
        begun, next_word, rule = time.monotonic(), _FIRST_WORD, "All tasks of a cluster must run: "
        name, is_stopping = self.cluster.name, self.cluster.is_stopping
        while what := missing():
            waited = time.monotonic() - begun
            if is_stopping is not None and is_stopping():
                raise errors.ClusterError(
                    f"{rule}{name} was stopped, and {what} had not come, for {waited:.0f} s. "
                    "Start all again."
                )
            if waited > self.timeout:
                hint = hint or (
                    "Look at its log, start it, check its address in TF_CONFIG, at which no other "
                    "program may listen, or wait longer (the timeout of the strategy)."
                )
                raise errors.ClusterError(
                    f"{rule}{name} has waited {waited:.0f} s for {what}. {hint}"
                )
            if waited > next_word:
                next_word = waited + _WORDS
                text = "%s waits for %s, for %.0f s of %g so far."
                _log.warning(text, name, what, waited, self.timeout)
            time.sleep(_PAUSE)

    def wait_for(self, tasks: Sequence[clusters.Task]) -> None:
        """Waits until each of some tasks has a server; see `wait_until`."""
        missing = list(tasks)

        def still_missing() -> str:
            missing[:] = silent(missing, must_speak=True)
            return listed(missing)

        self.wait_until(still_missing)

    # Losing.

    def lost(
        self, reason: Exception, missing: Sequence[clusters.Task] | None = None
    ) -> errors.ClusterError:
        """Returns what is raised where this worker cannot go on without the others.

        Args:
            reason: What TensorFlow raised.
            missing: The others that do not answer; None: they are asked.
        """
        name, others = self.cluster.name, self._others
        missing = silent(others) if missing is None else missing
        if missing:
            found = f"{name} has lost {listed(missing)}, where nobody answers any more"
        else:
            found = (
                f"{name} has waited for the others, {self.timeout:g} s at most. All still answer "
                f"({listed(others)}): one of them stands still, has ended before the others, or "
                "runs another step, as by a session.run in a hook"
            )
        return errors.ClusterError(
            f"Workers of a cluster take each step together: {found}. TensorFlow says: "
            f"{messages.first_lines(reason)[:300]!r}. Start all workers again; they go on from the "
            "last checkpoint."
        )

    def watched(self, run: Callable[..., Result]) -> Callable[..., Result]:
        """Returns a function that runs another one, and says who was lost where that fails.

        Returns:
            The function, which raises ClusterError where TensorFlow says that another task is gone,
            where what workers join fails, and where that may be and one of the others does not
            answer. Beside parameter servers it does so where a step has waited too long: of
            other losses a session recovers.
        """
        losses: tuple[type[Exception], ...] = _LOSSES
        doubtful: tuple[type[Exception], ...] = _DOUBTFUL
        if self.cluster.servers:
            losses, doubtful = (tf.errors.DeadlineExceededError,), ()

        @functools.wraps(run)
        def call(*args: Any, **kwargs: Any) -> Result:
            try:
                return run(*args, **kwargs)
            except tf.errors.OpError as reason:
                is_loss = isinstance(reason, losses) or _is_of_meeting(reason)
                if not is_loss and not isinstance(reason, doubtful):
                    raise
                missing = silent(self._others)
                if not is_loss and not missing:
                    raise
                raise self.lost(reason, missing) from reason

        return call


ALONE = Membership(clusters.ALONE)
"""That of a process without a cluster."""


def require_timeout(seconds: float) -> None:
    """Refuses a timeout that is none."""
    if not seconds > 0:
        raise ValueError(f"timeout is a number of seconds, above 0; got {seconds!r}.")


def serve(cluster: clusters.Cluster) -> NoReturn:
    """Keeps variables for the others until somebody ends the process.

    NOTE: TensorFlow's own waiting hears no signal.
    """
    Membership(cluster).listen()
    _log.info("%s keeps variables, and ends when it is ended.", cluster.name)
    while True:
        time.sleep(1)


def is_there(address: str, must_speak: bool = False) -> bool:
    """Whether somebody at an address speaks first, as servers do, or keeps connections open.

    NOTE: connections are made to a process that is being ended, too, until all its files are
    closed. One that only stands still is not lost.

    Args:
        address: `host:port`.
        must_speak: Whether who says nothing, as another program at the port, is not there.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWER) as connection:
            try:
                return connection.recv(1) != b""
            except TimeoutError:
                return not must_speak
    except (OSError, ValueError):
        return False


def silent(tasks: Sequence[clusters.Task], must_speak: bool = False) -> list[clusters.Task]:
    """Returns those of some tasks that are not there; see `is_there`."""
    if not tasks:
        return []
    with futures.ThreadPoolExecutor(min(len(tasks), 32)) as pool:
        found = list(pool.map(lambda task: is_there(task.address, must_speak), tasks))
    return [task for task, answers in zip(tasks, found, strict=True) if not answers]


def listed(tasks: Sequence[clusters.Task]) -> str:
    """Returns tasks as people call them, with their addresses."""
    return ", ".join(map(str, tasks))


def export_refusal(own: str) -> errors.RunError:
    """Returns what is raised where a worker that is no chief exports.

    Args:
        own: The worker, as people call it.
    """
    return errors.RunError(
        f"The chief of a cluster writes exports, as it writes checkpoints: {own} was asked for "
        "one. Export where strategy.is_chief is True, or let the evaluator do it with the "
        "exporters of an EvalSpec."
    )


def _is_of_meeting(reason: tf.errors.OpError) -> bool:
    """Whether what workers join has failed, and is not at its end.

    NOTE: it may do so with any code; what another worker has run alone is an internal error.
    """
    node = getattr(reason, "node_def", None)
    is_end = isinstance(reason, tf.errors.OutOfRangeError)
    return node is not None and node.name.startswith(f"{collectives.SCOPE}Coll") and not is_end
