"""Which tasks of a cluster answer, found by a short connection to each one's address."""

import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent import futures

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.graph import collectives
from replicate.strategy.cluster import cluster as clusters

_log = logging.getLogger("replicate")
_FIRST_WORD = 3.0  # seconds until somebody is told that others are missing
_WORDS = 30.0  # and between two such messages
_PAUSE = 0.2


def silent(cluster: clusters.Cluster, seconds: float = 2.0) -> list[int]:
    """Returns the numbers of those other tasks that do not answer.

    Args:
        cluster: The cluster.
        seconds: How long one may take to answer.
    """
    others = [n for n in range(cluster.size) if n != cluster.position]
    if not others:
        return []
    with futures.ThreadPoolExecutor(min(len(others), 32)) as pool:
        answers = pool.map(lambda n: _answers(cluster.addresses[n], seconds), others)
        return [n for n, answered in zip(others, list(answers), strict=True) if not answered]


def _answers(address: str, seconds: float) -> bool:
    """Whether a server speaks, as gRPC's do first, or at least keeps the connection open.

    NOTE: connections are made to a process that is being ended, too, until all its files are
    closed. One that only stands still is not lost.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
            return _is_open(connection)
    except (OSError, ValueError):
        return False


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True


def wait_for_all(
    cluster: clusters.Cluster, seconds: float, is_stopping: Callable[[], bool] | None = None
) -> None:
    """Waits until all tasks answer, and says who is missing.

    Args:
        cluster: The cluster.
        seconds: How long to wait.
        is_stopping: Whether this process is asked to stop; None: nobody asks.

    Raises:
        ClusterError: If some do not answer in time, or this process is asked to stop; names them.
    """
    begun = time.monotonic()
    next_word = _FIRST_WORD
    missing = silent(cluster)
    while missing:
        waited = time.monotonic() - begun
        if is_stopping is not None and is_stopping():
            raise errors.ClusterError(
                f"Workers of a cluster begin together: {cluster.name} was stopped, and "
                f"{named(cluster, missing)} had not come. Start all again."
            )
        if waited > seconds:
            raise errors.ClusterError(
                "Workers of a cluster begin together: "
                f"{cluster.name} has waited {waited:.0f} s for {named(cluster, missing)}, where "
                "nobody answers. Start it, check its address in TF_CONFIG, or let the others "
                "wait longer (the timeout of MultiWorkerStrategy)."
            )
        if waited > next_word:
            next_word = waited + _WORDS
            _log.warning(
                "%s waits for %s, for %.0f s of %g so far.",
                cluster.name,
                named(cluster, missing),
                waited,
                seconds,
            )
        time.sleep(_PAUSE)
        missing = [n for n in silent(cluster) if n in missing]


def named(cluster: clusters.Cluster, numbers: Sequence[int]) -> str:
    """Returns tasks as people call them, with their addresses."""
    shown = [f"{cluster.names[n]} ({cluster.addresses[n]})" for n in numbers]
    return ", ".join(shown)


def lost(
    cluster: clusters.Cluster,
    reason: Exception,
    seconds: float,
    missing: Sequence[int] | None = None,
) -> errors.ClusterError:
    """Returns what is raised where this task cannot go on without the others.

    Args:
        cluster: The cluster.
        reason: What TensorFlow raised.
        seconds: How long a task waits for another one.
        missing: The numbers of those that do not answer; None: they are asked.
    """
    missing = silent(cluster) if missing is None else missing
    if missing:
        found = f"{cluster.name} has lost {named(cluster, missing)}, where nobody answers any more"
    else:
        others = named(cluster, [n for n in range(cluster.size) if n != cluster.position])
        found = (
            f"{cluster.name} has waited for the others, {seconds:g} s at most. All still answer "
            f"({others}): one of them stands still, has ended before the others, or runs another "
            "step, as by a session.run in a hook"
        )
    return errors.ClusterError(
        f"Workers of a cluster take each step together: {found}. TensorFlow says: "
        f"{_said(reason)!r}. Start all workers again; they go on from the last checkpoint."
    )


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


def _said(reason: Exception) -> str:
    """Returns the line of an error's text that says what happened."""
    lines = [line.strip() for line in str(getattr(reason, "message", reason)).split("\n")]
    about = ("Graph execution", "Detected at", "Node:", "From /job", "[[", "Original stack", "File")
    told = [line for line in lines if line[3:] and not line.startswith(about)]
    return next((line[:300] for line in told if not line.endswith("error(s) found.")), lines[0])


def watched(run: Callable, cluster: clusters.Cluster, seconds: float, reasons: tuple) -> Callable:
    """Returns a function that runs another one, and says who was lost where that fails.

    Args:
        run: The function.
        cluster: The cluster.
        seconds: How long a task waits for another one.
        reasons: The exceptions that mean it, beside those of what workers join. A step that was
            cancelled means it where one of the others does not answer.

    Returns:
        The function, which raises ClusterError in place of these.
    """

    def call(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except tf.errors.OpError as reason:
            is_loss = isinstance(reason, reasons) or _is_of_meeting(reason)
            if not is_loss and not isinstance(reason, tf.errors.CancelledError):
                raise
            missing = silent(cluster)
            if not is_loss and not missing:
                raise
            raise lost(cluster, reason, seconds, missing) from reason

    return call


def _is_of_meeting(reason: tf.errors.OpError) -> bool:
    """Whether what workers join has failed, and is not at its end.

    NOTE: it may do so with any code; what another worker has run alone is an internal error.
    """
    node = getattr(reason, "node_def", None)
    is_end = isinstance(reason, tf.errors.OutOfRangeError)
    return node is not None and node.name.startswith(f"{collectives.SCOPE}Coll") and not is_end
