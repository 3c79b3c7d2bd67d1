"""What follows from a training's checkpoints: evaluations, the best one, exports."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from replicate import estimator
from replicate.app.config import sections
from replicate.app.data import reading, section_inputs
from replicate.app.runs import records
from replicate.app.training import exports, hooks, improvement, running
from replicate.compat.tensorflow import tf
from replicate.console import json_output

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


class Outcomes:
    """Evaluates checkpoints, and does what the config wants to follow.

    Args:
        run: The run.
        made: Its Estimator.
    """

    def __init__(self, run: running.Run, made: estimator.Estimator):
        self._run = run
        self._estimator = made
        self._latest: Metrics = {}  # of the last evaluation
        self._input_fn = self._exports = None
        if run.settings.eval is not None:
            self._input_fn = section_inputs.input_fn(run.settings, "eval")
        if run.settings.export is not None:
            self._exports = exports.Exports(run.settings, made)

    def evaluate(self, checkpoint: str) -> None:
        """Evaluates a checkpoint if the config wants that, and shows its metrics in a line.

        NOTE: the evaluation is written down last, so that one that was cut off is made up for.
        """
        if self._input_fn is None:
            return
        model_dir, say = self._run.model_dir, self._run.display.say
        found = evaluate(self._run, self._estimator, self._input_fn, checkpoint)
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

    def finish(
        self, step: int, ended_by: str, checkpoint: str
    ) -> tuple[Metrics | None, str | None]:
        """Does what follows a training that has ended; returns metrics and the export's path.

        Args:
            step: The step that it ended at.
            ended_by: What ended it, in a word.
            checkpoint: The path of its checkpoint.
        """
        run, path = self._run, None
        if self._latest.get(json_output.STEP) != step:
            self.evaluate(checkpoint)
        if self._exports is not None and run.settings.section(sections.Export).after_training:
            path = self._exports.save(checkpoint)
        records.Records(run.model_dir, run.display.say).write_metrics(step, self._latest, ended_by)
        return self._latest or None, path
