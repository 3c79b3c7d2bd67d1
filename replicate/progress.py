"""Progress from Python: where an Estimator trains or evaluates, in the last row of a terminal.

Models of `replicate_model_fn` show it by themselves; after `show(False)` they do not.
"""

import contextlib
import threading
import weakref
from typing import TextIO

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages, progress

_LABELS = {types.TRAIN: "train", types.EVAL: "evaluate"}
_graphs: "weakref.WeakSet[tf.Graph]" = weakref.WeakSet()  # those of which progress is shown


def show(wanted: bool) -> None:
    """Says whether models of `replicate_model_fn` show progress by themselves: at first they do.

    Args:
        wanted: Whether they do, on a terminal.
    """
    messages.show_progress(wanted)


class ProgressHook(tf1.train.SessionRunHook):
    """Shows the step, the loss and the speed.

    On a terminal they are below all else, and the last ones stay; elsewhere the first step and the
    last have a line, and those between them one in ten seconds. Of several in one session the first
    one shows it. Name it where there is no terminal, or to say where a training ends:
    `model.train(input_fn, hooks=[ProgressHook(1000)], max_steps=1000)`.

    Args:
        total: The last step; None: not known.
        mode: The mode key: `"train"` or `"eval"`.
        file: Where it is shown; None: stderr.
    """

    def __init__(
        self, total: int | None = None, mode: str = types.TRAIN, file: TextIO | None = None
    ):
        self._total, self._mode, self._file = total, mode, file

    def begin(self) -> None:
        """See base class; the loss of a training is the last one that the Estimator has noted."""
        graph = tf1.get_default_graph()
        is_first = graph not in _graphs
        _graphs.add(graph)
        self._display = progress.Display(not is_first, self._file)
        self._leave = contextlib.ExitStack()
        self._count = 0
        self._fetched: list[tf.Tensor] = []
        if is_first and self._mode == types.TRAIN:
            losses = tf1.get_collection(tf1.GraphKeys.LOSSES)
            self._fetched = [tf1.train.get_global_step(), *losses[-1:]]

    def after_create_session(self, session: tf1.Session, coord: tf.train.Coordinator) -> None:
        """See base class; what is shown ends with the session, also where that fails.

        NOTE: no hook is told of a failure, but the session waits for threads.
        """
        self._task = self._display.task(_LABELS[self._mode], self._total, every=1)
        self._leave.callback(self._task.finish)
        self._leave.enter_context(self._display)
        if self._display.has_bars:
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
        if self._display.quiet:
            return
        before, *loss = run_values.results or [self._count]
        self._count += 1
        self._task.update(int(before) + 1, *loss)

    def end(self, session: tf1.Session) -> None:
        """See base class."""
        if self._fetched and self._count:
            self._task.update(int(session.run(self._fetched[0])))
        self._leave.close()

    def _end_with(self, coord: tf.train.Coordinator) -> None:
        coord.wait_for_stop()
        self._leave.close()


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
