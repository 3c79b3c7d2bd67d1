"""Summaries of a training beside the model's own: learning rate, examples per second."""

import time
from collections.abc import Callable
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry

__all__ = ["EXAMPLES_PER_SECOND", "LEARNING_RATE", "SummaryHook", "rate_of", "rows_of"]

LEARNING_RATE, EXAMPLES_PER_SECOND = "learning_rate", "examples_per_second"


class SummaryHook(tf1.train.SessionRunHook):
    """Writes both to the event files, at the steps at which the model's summaries are written.

    The learning rate at step s is what the schedule says for s. The examples are the rows that
    were trained on since the last summary; the time is that of training alone.

    Args:
        folder: Where the event files are.
        every: Steps between summaries.
        rows: How many rows a batch has: a number, or a tensor of shape [].
        rate: Returns the learning rate, a number or a tensor of shape []; None: nobody knows.
            Called once the graph is built.
        clock: Returns seconds.
    """

    def __init__(
        self,
        folder: str,
        every: int,
        rows: Any,
        rate: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder = folder
        self._timer = tf1.train.SecondOrStepTimer(every_steps=every)
        self._rows = rows
        self._make_rate = rate
        self._clock = clock
        self._rate: Any = None
        self._step: Any = None
        self._since: float | None = None  # None: no step was made yet
        self._seen = 0
        self._last = -1

    def begin(self) -> None:
        """See base class."""
        self._writer = tf1.summary.FileWriterCache.get(self._folder)
        self._step = tf1.train.get_global_step()
        self._rate = self._make_rate()
        self._timer.reset()

    def leave_out(self, seconds: float) -> None:
        """Takes a time that was not spent on training out of what is measured."""
        if self._since is not None:
            self._since += seconds

    def before_run(self, run_context: Any) -> tf1.train.SessionRunArgs:
        """See base class."""
        return tf1.train.SessionRunArgs([self._step, self._rows_to_fetch()])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        if self._since is None:  # the first step prepares what the others use
            self._since = self._clock()
        else:
            self._seen += self._rows_of(run_values.results[1])
        step = int(run_values.results[0]) + 1  # read before the step, or beside it
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._write(run_context.session)

    def end(self, session: Any) -> None:
        """See base class."""
        self._write(session)

    def _rows_to_fetch(self) -> Any:
        return self._rows if tf.is_tensor(self._rows) else []

    def _rows_of(self, fetched: Any) -> int:
        return int(fetched) if tf.is_tensor(self._rows) else int(self._rows)

    def _write(self, session: Any) -> None:
        fetches = {"step": self._step}
        if tf.is_tensor(self._rate):
            fetches[LEARNING_RATE] = self._rate
        found = session.run(fetches)
        step = int(found.pop("step"))
        if step == self._last:
            return
        if self._rate is not None:
            found.setdefault(LEARNING_RATE, self._rate)
        seconds = 0.0 if self._since is None else self._clock() - self._since
        if self._seen and seconds > 0:
            found[EXAMPLES_PER_SECOND] = self._seen / seconds
            self._since, self._seen = self._clock(), 0
        values = [tf1.Summary.Value(tag=tag, simple_value=one) for tag, one in found.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)
        self._last = step


def rows_of(features: Any) -> Any:
    """Returns how many rows a batch has: a number where that is static, else a tensor."""
    for leaf in tf.nest.flatten(features, expand_composites=False):
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if tf.is_tensor(leaf) and leaf.shape.rank != 0:
            static = None if leaf.shape.rank is None else leaf.shape.as_list()[0]
            return tf.shape(leaf)[0] if static is None else static
    return 0


def rate_of(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate, a number or a tensor; None where it has none.

    A tensor that something else than the weights goes into, such as the input, is left alone:
    to read it would be to take a batch away from training.
    """
    inner = getattr(optimizer, "_optimizer", optimizer)  # of a loss scale
    found = getattr(inner, "_learning_rate", None)
    if found is None:
        found = getattr(inner, "_lr", None)
    found = found() if callable(found) else found
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if not tf.is_tensor(found) or found.graph is not tf1.get_default_graph():
        return None
    is_scalar = found.shape.rank == 0 and found.dtype.is_floating
    behind = ancestry.executed_by([found]) if is_scalar else ()
    takes_input = any(op.type.startswith(("Iterator", "Placeholder", "Queue")) for op in behind)
    return found if is_scalar and not takes_input else None
