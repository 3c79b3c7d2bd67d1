"""Progress from Python: one line on a terminal while an Estimator trains or evaluates.

Models of `replicate_model_fn` show it by themselves; after `show(False)` they do not.
"""

import contextlib
import math
import shutil
import sys
import threading
import time
import weakref
from typing import TextIO

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages

_EVERY_ON_TERMINAL, _EVERY_ELSEWHERE = 0.1, 10.0  # seconds between two states
_LABELS = {types.TRAIN: "train", types.EVAL: "evaluate"}
_graphs: "weakref.WeakSet[tf.Graph]" = weakref.WeakSet()  # those of which a line is shown


def show(wanted: bool) -> None:
    """Says whether models of `replicate_model_fn` show progress by themselves: at first they do.

    Args:
        wanted: Whether they do, on a terminal.
    """
    messages.show_progress(wanted)


class ProgressHook(tf1.train.SessionRunHook):
    """Shows the step, the loss and the speed in one line.

    On a terminal the line changes; elsewhere the first step and the last have a line, and those
    between them one in ten seconds. Of several in one session the first one shows it. Name it
    where there is no terminal, or to say where a training ends:
    `model.train(input_fn, hooks=[ProgressHook(1000)], max_steps=1000)`.

    Args:
        total: The last step; None: not known.
        mode: The mode key: `"train"` or `"eval"`.
        file: Where it is shown; None: stderr.
    """

    def __init__(
        self, total: int | None = None, mode: str = types.TRAIN, file: TextIO | None = None
    ):
        self._total = "" if total is None else f"/{total}"
        self._mode = mode
        self._file: TextIO | None = sys.stderr if file is None else file
        self._is_on_terminal = messages.is_terminal(self._file)
        self._every = _EVERY_ON_TERMINAL if self._is_on_terminal else _EVERY_ELSEWHERE

    def begin(self) -> None:
        """See base class; the loss of a training is the last one that the Estimator has noted."""
        graph = tf1.get_default_graph()
        self._is_shown = graph not in _graphs
        _graphs.add(graph)
        self._fetched: list[tf.Tensor] = []
        if self._is_shown and self._mode == types.TRAIN:
            losses = tf1.get_collection(tf1.GraphKeys.LOSSES)
            self._fetched = [tf1.train.get_global_step(), *losses[-1:]]
        self._count, self._began, self._told = 0, 0.0, -math.inf
        self._step, self._shown_step, self._is_open = 0, -1, False

    def after_create_session(self, session: tf1.Session, coord: tf.train.Coordinator) -> None:
        """See base class; the line ends with the session, also where that fails.

        NOTE: no hook is told of a failure, but the session waits for threads.
        """
        if self._is_shown and self._is_on_terminal:
            thread = threading.Thread(target=self._end_with, args=(coord,), daemon=True)
            thread.start()
            coord.register_thread(thread)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        """See base class."""
        return tf1.train.SessionRunArgs(self._fetched)

    def after_run(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        """See base class."""
        if not self._is_shown:
            return
        now = time.monotonic()
        if self._count == 0:  # the first step prepares what the others use
            self._began = now
        self._count += 1
        before, *loss = run_values.results or [self._count - 1]
        self._step = int(before) + 1
        self._loss = f"  loss {loss[0]:.4g}" if loss else ""
        if now - self._told >= self._every:
            self._told = now
            self._show(now)

    def end(self, session: tf1.Session) -> None:
        """See base class."""
        if self._count:
            if self._fetched:
                self._step = session.run(self._fetched[0])
            if self._is_on_terminal or self._step != self._shown_step:
                self._show(self._told if self._count == 1 else time.monotonic())
            self._end_line()

    def _show(self, now: float) -> None:
        seconds = now - self._began
        speed = f"  {(self._count - 1) / seconds:.1f} steps/s" if seconds else ""
        text = f"{_LABELS[self._mode]} {self._step}{self._total}{self._loss}{speed}"
        self._shown_step = self._step
        if self._is_on_terminal:
            self._is_open = True
            self._write(messages.CLEAR_LINE + text[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(f"{text}\n")

    def _end_with(self, coord: tf.train.Coordinator) -> None:
        coord.wait_for_stop()
        self._end_line()

    def _end_line(self) -> None:
        if self._is_open:
            self._is_open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            self._file.write(text)
            self._file.flush()


def added(spec: types.EstimatorSpec, mode: str) -> types.EstimatorSpec:
    """Returns a spec that shows progress, where that is wanted and there is a terminal.

    Args:
        spec: The EstimatorSpec.
        mode: The mode key.
    """
    if not messages.shows_progress() or mode not in _LABELS:
        return spec
    name = "training_hooks" if mode == types.TRAIN else "evaluation_hooks"
    return spec._replace(**{name: (*getattr(spec, name), ProgressHook(mode=mode))})
