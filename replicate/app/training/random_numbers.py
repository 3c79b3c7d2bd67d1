"""A training that continues draws the numbers that follow those of the run before.

Beside each checkpoint is a file that tells how many numbers each random operation has drawn.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from replicate import estimator
from replicate.app.runs import atomic_files, checkpoints
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.lowering import random_states

_RECORD = ".random.json"  # behind a checkpoint's path
_MAX_NAMED = 3
_MAX_DRAWN = 2**56  # by then the counter of a state begins again


def states_of(spec: estimator.EstimatorSpec) -> random_states.RandomStates:
    """Returns the states of what a training step draws, once the step is built."""
    graph = tf1.get_default_graph()
    summaries = graph.get_collection(tf1.GraphKeys.SUMMARIES)
    return random_states.RandomStates(graph, [spec.loss, spec.train_op, *summaries])


class RestoringHook(tf1.train.SessionRunHook):
    """Sets the states as the checkpoint has them that a session begins with.

    Args:
        states: Those of the graph.
        model_dir: Where the checkpoints are.
        say: Is told what begins again.
    """

    def __init__(
        self, states: random_states.RandomStates, model_dir: str, say: Callable[[str], None]
    ):
        self._states = states
        self._model_dir = model_dir
        self._say = say

    def after_create_session(self, session: tf1.Session, coord: tf.train.Coordinator) -> None:
        """See base class."""
        path = checkpoints.path_in(self._model_dir)
        drawn = {} if path is None else _counts(atomic_files.read_json(path + _RECORD))
        self._states.write(session, drawn)
        again = sorted({*self._states.left, *(self._states.names - drawn.keys())})
        if again and path is not None and checkpoints.step_in(path):
            more = len(again) - _MAX_NAMED
            listed = ", ".join(again[:_MAX_NAMED]) + (f", and {more} more" if more > 0 else "")
            self._say(f"random numbers begin again, as at step 0: {listed}")


class SavingListener(tf1.train.CheckpointSaverListener):
    """Writes the states down with each checkpoint.

    Args:
        states: Those of the graph.
        model_dir: Where the checkpoints are.
    """

    def __init__(self, states: random_states.RandomStates, model_dir: str):
        self._states = states
        self._prefix = os.path.join(model_dir, "model.ckpt")

    def before_save(self, session: tf1.Session, global_step_value: int) -> None:
        """See base class."""
        if self._states.names:
            path = f"{self._prefix}-{global_step_value}{_RECORD}"
            atomic_files.write_json(path, self._states.read(session))

    def after_save(self, session: tf1.Session, global_step_value: int) -> None:
        """See base class; records of checkpoints that were deleted are deleted, too."""
        for record in tf.io.gfile.glob(f"{self._prefix}-*{_RECORD}"):
            if not tf.io.gfile.exists(f"{record.removesuffix(_RECORD)}.index"):
                tf.io.gfile.remove(record)


def _counts(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns what a record says, without what is no count."""
    return {
        name: count
        for name, count in record.items()
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MAX_DRAWN
    }
