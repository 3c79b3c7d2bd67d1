"""What follows from a training's checkpoints: evaluations, the best one, exports.

It is the chief's part, or an evaluator's where there is one.
"""

from collections.abc import Callable
from typing import Any

from replicate.app.config import config
from replicate.app.console import interrupts, json_output, progress
from replicate.app.data import section_inputs
from replicate.app.runs import checkpoints
from replicate.app.training import best, evaluations, exports, goals, run_records

__all__ = ["Outcomes"]


class Outcomes:
    """Evaluates checkpoints, and does what the config wants to follow.

    Args:
        settings: The config.
        display: Where progress goes.
        stop: Asks to stop.
        goal: Where the training ends.
        made: The Estimator.
        took: Is called after each evaluation.
    """

    def __init__(
        self,
        settings: config.Config,
        display: progress.Display,
        stop: interrupts.StopRequest,
        goal: goals.Goal,
        made: Any,
        took: Callable[[], None] = lambda: None,
    ):
        self._settings = settings
        self._display = display
        self._stop = stop
        self._goal = goal
        self._estimator = made
        self._took = took
        self._latest: dict[str, Any] = {}  # metrics of the last evaluation
        self._eval_input = None
        if settings.eval is not None:
            self._eval_input = section_inputs.input_fn(settings, "eval")
        self._exports = None
        if settings.export is not None:
            inputs_of = section_inputs.input_fns(settings)
            self._exports = exports.Exports(settings, made, inputs_of)

    def finish(
        self, step: int, ended_by: str, checkpoint: str | None = None
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Does what follows a training that has ended; returns metrics and the export's path.

        Args:
            step: The step that it ended at.
            ended_by: What ended it, in a word.
            checkpoint: The path of its checkpoint; None: the newest one.
        """
        found = self._last_evaluation(step, checkpoint)
        path = None
        if self._exports is not None and self._settings.export.after_training:
            path = self._exports.save(checkpoint)
        if not run_records.write_metrics(self._settings.model_dir, step, found, ended_by):
            self._display.say(run_records.kept_text(self._settings.model_dir, run_records.METRICS))
        checkpoints.note_finished(self._settings.model_dir, step)
        return found, path

    def _last_evaluation(self, step: int, checkpoint: str | None) -> dict[str, Any] | None:
        if self._settings.eval is None:
            self._export(None, True, checkpoint)
            return None
        if self._latest.get("global_step") == step:
            self._export(self._latest, True, checkpoint)
            return self._latest
        return self.evaluate(checkpoint, is_final=True)

    def evaluate(self, checkpoint: str | None = None, is_final: bool = False) -> dict[str, Any]:
        """Evaluates a checkpoint, shows the metrics in one line, exports.

        Args:
            checkpoint: Its path; None: the newest one.
            is_final: Whether training is over.
        """
        found = evaluations.evaluate(
            self._estimator,
            self._eval_input,
            self._settings,
            self._display,
            self._stop,
            checkpoint,
            is_of_run=True,
        )
        step = found.get("global_step")
        self._display.say(f"evaluated at step {step}: {json_output.summary_line(found)}")
        self._latest = found
        self._judge(found, checkpoint)
        if is_final or self._goal.early_reason() is None:  # else the end of training exports
            self._export(found, is_final, checkpoint)
        self._took()
        return found

    def _judge(self, found: dict[str, Any], checkpoint: str | None) -> None:
        """Lets what compares evaluations know of one."""
        wanted = self._settings.train.keep_best
        if wanted is not None:
            path = best.keep(
                self._settings.model_dir,
                checkpoint or self._estimator.latest_checkpoint(),
                found,
                wanted.metric,
                wanted.higher_is_better,
            )
            if path is not None:
                self._display.say(f"best so far by {wanted.metric}: {path}")
        if self._goal.stopping is not None:
            self._goal.stopping.take(found)

    def _export(
        self, metrics: dict[str, Any] | None, is_final: bool, checkpoint: str | None
    ) -> None:
        if self._exports is not None:
            exported = self._exports.run_exporters(metrics, is_final, checkpoint)
            for name, path in exported.items():
                self._display.say(f"exported {name}: {path}")
