"""Session hooks of trainings and evaluations: progress, checkpoints, the end."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from replicate import errors, estimator
from replicate.app.config import functions
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts, progress

_Context: TypeAlias = tf1.train.SessionRunContext

_MAX_IDLE_RUNS = 1000  # a loss scale that is too high may take some to come down
_REMEDY = (
    "Lower the learning rate, set clip_global_norm, or look for bad values in train.input; "
    "tf.debugging.check_numerics in model_fn names the first tensor that it is given."
)


def of_config(names: Sequence[str], offered: Mapping[str, Any]) -> list[tf1.train.SessionRunHook]:
    """Returns the hooks that functions of the config make: `train.hooks`.

    Args:
        names: `package.module:function`, each of which returns a SessionRunHook or a list of
            them.
        offered: What the functions may name.

    Raises:
        RunError: If a function cannot be found, or returns something else.
    """
    hooks = []
    for index, name in enumerate(names):
        key = f"train.hooks[{index}]"
        fn = functions.load(name, key)
        returned = functions.call_with_named(fn, offered, f"{key}: {name}")
        several = list(returned) if isinstance(returned, list | tuple) else [returned]
        for one in several:
            if not isinstance(one, tf1.train.SessionRunHook):
                raise errors.RunError(
                    f"{key}: {name} must return a SessionRunHook or a list of them, got "
                    f"{type(one).__name__}. Return what is to run, e.g. an object of a class "
                    "derived from replicate.estimator.SessionRunHook."
                )
        hooks += several
    return hooks


class TrainingHook(tf1.train.SessionRunHook):
    """Shows training steps, ends those that lead nowhere, and ends after the step when asked to.

    It goes to `Estimator.train`, whose hooks run before TensorFlow's own look at the loss.

    Args:
        shown: Where to show the steps.
        start: The global step at the begin.
        rows: How many rows a batch has; 0: nobody knows.
        stop: Asks to stop.
        folder: Where the last loss is written, which TensorFlow does not; None: nowhere.

    Attributes:
        is_waiting: Whether a step has not ended: at the end of a training, whether there was no
            batch for it any more.
        ended_at: The global step at the end of the session.
        runs: How many steps were made.
    """

    def __init__(
        self,
        shown: progress.Task,
        start: int,
        rows: int,
        stop: interrupts.StopRequest,
        folder: str | None = None,
    ):
        self.is_waiting = True
        self.ended_at = start
        self.runs = 0
        self._shown = shown
        self._rows = rows
        self._stop = stop
        self._folder = folder
        self._fetched: list[tf.Tensor] = []
        self._loss = math.nan
        self._last_step = -1
        self._idle_runs = 0

    def begin(self) -> None:
        """See base class."""
        loss = tf1.get_collection(tf1.GraphKeys.LOSSES)[-1]  # the reduced one
        self._fetched = [tf1.train.get_global_step(), loss]

    def before_run(self, run_context: _Context) -> tf1.train.SessionRunArgs:
        """See base class."""
        self.is_waiting = True
        return tf1.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: _Context, run_values: tf1.train.SessionRunValues) -> None:
        """See base class."""
        self.is_waiting = False
        before, self._loss = run_values.results
        if not math.isfinite(self._loss):
            step = run_context.session.run(self._fetched[0])
            now = f"{self._loss:g}".replace("nan", "NaN")
            raise errors.RunError(
                f"the loss must stay a finite number, but became {now} at step {step}. {_REMEDY}"
            )
        self._need_progress(int(before))
        self.runs += 1
        self._shown.update(int(before) + 1, float(self._loss), self._rows)
        if self._stop.requested:
            run_context.request_stop()

    def _need_progress(self, step: int) -> None:
        """Ends what would go on for ever: optimizers may skip a few steps, not all."""
        self._idle_runs = self._idle_runs + 1 if step == self._last_step else 0
        self._last_step = step
        if self._idle_runs >= _MAX_IDLE_RUNS:
            raise errors.RunError(
                f"model_fn: its train_op must increase the global step; it is still {step} after "
                f"{_MAX_IDLE_RUNS} runs. Pass global_step to minimize, or name an optimizer."
            )

    def end(self, session: tf1.Session) -> None:
        """See base class."""
        self.ended_at = int(session.run(self._fetched[0]))
        self._shown.update(self.ended_at)
        if self._folder is not None and self.runs:
            value = tf1.Summary.Value(tag="loss", simple_value=self._loss)
            writer = tf1.summary.FileWriterCache.get(self._folder)
            writer.add_summary(tf1.Summary(value=[value]), self.ended_at)
            writer.flush()


class EvaluationHook(tf1.train.SessionRunHook):
    """Shows evaluation steps, and leaves when stopping is asked for.

    Args:
        shown: Where to show them.
        stop: Asks to stop.

    Attributes:
        done: How many steps were made.
    """

    def __init__(self, shown: progress.Task, stop: interrupts.StopRequest):
        self.done = 0
        self._shown = shown
        self._stop = stop

    def after_run(self, run_context: _Context, run_values: tf1.train.SessionRunValues) -> None:
        """See base class."""
        self.done += 1
        self._shown.update(self.done)
        if self._stop.requested:
            raise interrupts.Interrupted("stopped in an evaluation")


def savers(
    spec: estimator.EstimatorSpec, config: estimator.RunConfig, every_steps: int | None = None
) -> Sequence[tf1.train.SessionRunHook]:
    """Returns what saves checkpoints in an Estimator's place; nothing where a hook does already.

    When a session begins, TensorFlow's hook writes again, in place, what it has just restored.
    Whoever reads it meanwhile, as the other tasks of a cluster do that begin beside the chief,
    finds a torn file: TensorFlow raises, or ends the process. Here it is written once.

    Args:
        spec: The EstimatorSpec of mode TRAIN.
        config: The RunConfig.
        every_steps: A checkpoint is saved at multiples of these steps as well.
    """
    given = (*spec.training_hooks, *spec.training_chief_hooks)
    is_wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
    if not is_wanted or any(isinstance(one, tf1.train.CheckpointSaverHook) for one in given):
        return ()
    hook = tf1.train.CheckpointSaverHook(
        config.model_dir,
        save_steps=1,  # until it has the timer below
        saver=_Saver(spec.scaffold),
        save_graph_def=config.checkpoint_save_graph_def,
    )
    steps = filter(None, (config.save_checkpoints_steps, every_steps))
    hook._timer = _Timer(config.save_checkpoints_secs, tuple(steps))
    return (hook,)


class _Timer(tf1.train.SecondOrStepTimer):
    """Says when a checkpoint is due: at multiples of some steps, wherever a run began, or by time.

    Args:
        seconds: Between two checkpoints; None: time does not matter.
        steps: At the multiples of each of these.
    """

    def __init__(self, seconds: float | None, steps: Sequence[int]):
        super().__init__(every_secs=math.inf if seconds is None else seconds)
        self._multiples_of = steps

    def should_trigger_for_step(self, step: int) -> bool:
        """See base class; of a multiple that is stepped over, the next step counts."""
        last = self.last_triggered_step()
        is_past = last is not None and any(step // n > last // n for n in self._multiples_of)
        return is_past or super().should_trigger_for_step(step)


class _Saver:
    """A scaffold's Saver, which leaves alone what is the newest checkpoint already.

    Weights that became infinite or NaN are not saved: a run would not get on from there.

    Args:
        scaffold: The scaffold; it has a Saver when its session begins.
    """

    def __init__(self, scaffold: tf1.train.Scaffold):
        self._scaffold = scaffold
        self._odd = {
            one.op.name: _not_finite(one)
            for one in tf1.trainable_variables()
            if one.dtype.is_floating
        }
        self._first: Mapping[str, int] = {}  # a mask may have -inf from its beginning

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaffold.saver, name)

    def save(
        self, session: tf1.Session, path: str, global_step: int | None = None, **options: Any
    ) -> str:
        """See `tf.compat.v1.train.Saver.save`."""
        odd = session.run(self._odd)
        self._first = self._first or odd
        if bad := ", ".join(name for name, count in odd.items() if count > self._first[name]):
            raise errors.RunError(
                f"the weights must stay finite numbers, but after step {global_step} these do not: "
                f"{bad}. {_REMEDY}"
            )
        newest = tf.train.latest_checkpoint(os.path.dirname(path))
        if newest is not None and newest == f"{path}-{global_step}":
            return newest
        return self._scaffold.saver.save(session, path, global_step=global_step, **options)


def _not_finite(weight: tf.Variable) -> tf.Tensor:
    """Returns how many numbers of a weight are infinite or NaN, found where it is."""
    with weight.op.graph.colocate_with(weight.op, ignore_existing=True):
        return tf.math.count_nonzero(~tf.math.is_finite(weight))
