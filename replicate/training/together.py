"""How workers begin alike, and run each step together.

A session of each worker begins with an operation in which all workers meet: they compare
what they have built, and get the first worker's variables, restored or made. Each step then
runs all that workers join, whoever of them asks for more.
"""

import logging
from typing import Any

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.strategy import agreement

_log = logging.getLogger("replicate")


def run_all(spec: Any, across: collectives.Across) -> Any:
    """Returns a spec of which each step runs all that workers join.

    NOTE: the chief alone fetches summaries. What these are made of must not wait for a worker
    that fetches none.
    """
    made = across.made
    if spec.mode == types.TRAIN:
        return spec._replace(train_op=tf1.group(spec.train_op, *made, name="train_together"))
    with tf1.control_dependencies(made):
        loss = tf.identity(spec.loss)
    metrics = {
        name: (value, tf1.group(update, *made))
        for name, (value, update) in (spec.eval_metric_ops or {}).items()
    }
    return spec._replace(loss=loss, eval_metric_ops=metrics)


def begin(spec: Any, across: collectives.Across, batch: Any) -> Any:
    """Returns a spec whose sessions begin with the first worker's variables.

    Args:
        spec: The EstimatorSpec.
        across: Joins what workers bring.
        batch: What workers must have alike of their batches, such as a static size.
    """
    return spec._replace(scaffold=_Scaffold(spec.scaffold, across, batch))


class _Scaffold(tf1.train.Scaffold):
    """A scaffold whose local initialization is where workers meet.

    Args:
        inner: The model's own.
        across: Joins what workers bring.
        batch: See `begin`.
    """

    def __init__(self, inner: Any, across: collectives.Across, batch: Any):
        self._across = across
        self._batch = batch
        self._sessions = 0
        # NOTE: only the first worker makes values; the others are ready to be given them.
        ready = None if across.is_first else tf.constant([], tf.string)
        super().__init__(copy_from_scaffold=inner, ready_for_local_init_op=ready)

    def finalize(self) -> "_Scaffold":
        """See base class; once for each session that is made.

        Raises:
            RunError: If a session was lost: a process that has lost another one cannot meet
                the others again.
        """
        self._sessions += 1
        if self._sessions > 1:
            raise errors.RunError(
                "Workers that have lost one of them end, and begin again together: worker "
                f"{self._across.options.position} of {self._across.size} could not reach the "
                "others (the reason is logged above). Start all of them again; they go on from "
                "the last checkpoint."
            )
        own = self._local_init_op
        local = self.default_local_init_op() if own is None else own
        self._local_init_op = tf1.group(local, *agreement.begin(self._across, self._batch))
        _log.info(
            "Worker %d of %d waits for the others, for %g seconds at most.",
            self._across.options.position,
            self._across.size,
            self._across.options.timeout,
        )
        return super().finalize()
