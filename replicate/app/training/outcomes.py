"""What follows from a training's checkpoints: evaluations, the best one, an early end, exports."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from replicate import estimator
from replicate.app.config import sections
from replicate.app.data import reading, section_inputs
from replicate.app.runs import records
from replicate.app.training import exports, hooks, improvement, running, steps
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts, json_output

Metrics: TypeAlias = Mapping[str, Any]
"""Those of an evaluation, by name, with `loss` and `global_step`."""


def evaluate(
    run: running.Run,
    made: estimator.Estimator,
    input_fn: Callable[[], tf.data.Dataset],
    checkpoint: str,
    curve: str | None = None,
) -> Metrics:
    """Evaluates a checkpoint.

    Args:
        run: The run.
        made: Its Estimator.
        input_fn: The data.
        checkpoint: Its path.
        curve: Metrics are written to `eval_<curve>` in model_dir, by default to `eval`.

    Raises:
        RunError: If there is nothing to evaluate on.
    """
    steps = run.settings.section(sections.Eval).steps
    shown = run.display.task("evaluate", steps)
    try:
        hook = hooks.EvaluationHook(shown, run.stop)
        with reading.naming(run.settings, "eval", checkpoint):
            found = made.evaluate(
                input_fn, steps=steps, hooks=[hook], checkpoint_path=checkpoint, name=curve
            )
        if not hook.done:
            raise reading.without_rows(run.settings, "eval")
        return found
    finally:
        shown.finish()


class Outcomes(tf1.train.CheckpointSaverListener):
    """Evaluates a training's checkpoints, does what the config wants to follow, and ends it early.

    At each multiple of `eval.every_steps`, but for the last step, which an evaluation follows
    anyhow.

    Args:
        run: The run.
        goal: Where its training ends.
        training: The steps.
    """

    def __init__(self, run: running.Run, goal: running.Goal, training: steps.Steps):
        self._run = run
        self._goal = goal
        self._training = training
        self._latest: Metrics = {}  # of the last evaluation
        self._input_fn = self._save = None
        if run.settings.eval is not None:
            self._input_fn = section_inputs.input_fn(run.settings, "eval")
        if run.settings.export is not None:
            self._save = exports.saver(run.settings, training.estimator)
        every = run.settings.evaluated_every
        self._every = math.inf if every is None else every
        self._rounds = goal.start // self._every
        early = run.settings.section(sections.Train).early_stopping
        if early is not None:  # which misses none
            known = improvement.evaluations(run.model_dir, early.metric, goal.start)
            self._rounds = (known[-1][0] if known else 0) // self._every

    def after_save(self, session: tf1.Session | None, global_step_value: int) -> bool:
        """Returns whether training is to end."""
        step = int(global_step_value)
        is_last = self._goal.end is not None and step >= self._goal.end
        is_due = step // self._every > self._rounds and not is_last
        self._rounds = max(self._rounds, step // self._every)
        if is_due:
            try:
                self._evaluate()
            except interrupts.Interrupted:
                if self._run.task.size == 1:
                    raise
                return True  # as a session ends, so that the other workers are told
            self._training.pause()
        return not is_last and self._goal.early_reason(step) is not None

    def _evaluate(self) -> None:
        """Evaluates the newest checkpoint if the config wants that, and shows its metrics.

        NOTE: the evaluation is written down last, so that one that was cut off is made up for.
        """
        if self._input_fn is None:
            return
        model_dir, say, made = self._run.model_dir, self._run.display.say, self._training.estimator
        checkpoint = made.latest_checkpoint()
        found = evaluate(self._run, made, self._input_fn, checkpoint)
        say(f"evaluated at step {found[json_output.STEP]}: {json_output.summary_line(found)}")
        self._latest = found
        train = self._run.settings.section(sections.Train)
        best, early = train.keep_best, train.early_stopping
        if early is not None:
            improvement.value_of(found, early.metric, "train.early_stopping.metric")
        if best is not None and improvement.is_best(
            model_dir, found, best, "train.keep_best.metric"
        ):
            kept = improvement.keep_best(model_dir, checkpoint)
            say(f"best so far by {best.metric}: {kept}")
        improvement.note(model_dir, found)

    def finish(self, step: int, ended_by: str) -> tuple[Metrics | None, str | None]:
        """Does what follows a training that has ended; returns metrics and the export's path.

        Args:
            step: The step that it ended at.
            ended_by: What ended it, in a word.
        """
        run, path = self._run, None
        if self._latest.get(json_output.STEP) != step:
            self._evaluate()
        if self._save is not None and run.settings.section(sections.Export).after_training:
            path = self._save(self._training.estimator.latest_checkpoint())
        text = records.of_metrics(step, self._latest, ended_by)
        records.write(run.model_dir, records.METRICS, text, run.display.say)
        return self._latest or None, path
