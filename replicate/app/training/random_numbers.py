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
    """Returns the states of what a training step draws, once the step is built.

    A function of the scaffold that sets initial values finds them set.
    """
    graph, keys, scaffold = tf1.get_default_graph(), tf1.GraphKeys, spec.scaffold
    variables = [*tf1.global_variables(), *tf1.local_variables(), *tf1.model_variables()]
    first = [variable.initializer for variable in variables]
    first += graph.get_collection(keys.TABLE_INITIALIZERS)
    given = (scaffold.init_op, scaffold.local_init_op, scaffold.ready_op)
    first += [op for op in tf.nest.flatten(given) if op is not None]
    step = [spec.loss, spec.train_op, *graph.get_collection(keys.SUMMARIES)]
    states = random_states.RandomStates(graph, step, first)
    initialize = scaffold.init_fn
    if initialize is not None:

        def initialize_with_states(session: tf1.Session) -> None:
            states.write(session)
            initialize(session)

        scaffold._init_fn = initialize_with_states
    return states


class RestoringHook(tf1.train.SessionRunHook):
    """Sets the states as the checkpoint has them that a session begins with.

    Args:
        states: Those of the graph.
        model_dir: Where the checkpoints are.
        say: Is told what begins again, where a training continues.
        start: The step that the training begins at.
        is_of_chief: Whether the checkpoint tells the counts of another worker, the chief.
    """

    def __init__(
        self,
        states: random_states.RandomStates,
        model_dir: str,
        say: Callable[[str], None],
        start: int,
        is_of_chief: bool = False,
    ):
        self._states = states
        self._model_dir = model_dir
        self._say = say
        self._start = start
        self._is_of_chief = is_of_chief

    def after_create_session(self, session: tf1.Session, coord: tf.train.Coordinator) -> None:
        """See base class."""
        path = checkpoints.path_in(self._model_dir)
        drawn = {} if path is None else _counts(atomic_files.read_json(path + _RECORD))
        self._states.write(session, drawn)
        if self._is_of_chief and self._start and self._states.names:
            self._say(
                "random numbers continue from the chief's counts, which are this worker's only "
                "where all workers have as many rows; random_numbers: one_device makes them exact"
            )
        again = sorted({*self._states.left, *(self._states.names - drawn.keys())})
        if again and self._start:
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
        """See base class; beside the checkpoint that a session began with nothing is changed."""
        path = f"{self._prefix}-{global_step_value}"
        if self._states.names and checkpoints.path_in(os.path.dirname(path)) != path:
            atomic_files.write_json(path + _RECORD, self._states.read(session))

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
