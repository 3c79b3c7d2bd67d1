"""One evaluation of one checkpoint, with its progress."""

from collections.abc import Callable
from typing import Any

from replicate import errors
from replicate.app.config import config
from replicate.app.console import interrupts, progress
from replicate.app.data import reading
from replicate.app.training import session_hooks
from replicate.compat.tensorflow import tf

__all__ = ["evaluate"]


def evaluate(
    made: Any,
    input_fn: Callable[[], tf.data.Dataset],
    settings: config.Config,
    display: progress.Display,
    stop: interrupts.StopRequest | None = None,
    checkpoint: str | None = None,
    is_of_run: bool = False,
) -> dict[str, Any]:
    """Evaluates a checkpoint.

    Args:
        made: The Estimator.
        input_fn: The data.
        settings: The config.
        display: Where progress goes.
        stop: Asks to stop; None: nobody does.
        checkpoint: Its path; None: the newest one, whose metrics are the curve in `eval`.
            Others have a curve of their own in `eval_checkpoints`.
        is_of_run: Whether a checkpoint with a path is of that first curve as well.

    Returns:
        Metrics by name, with `loss` and `global_step`.

    Raises:
        RunError: If there is nothing to evaluate on.
    """
    task = display.task("evaluate", settings.eval.steps, every=1000)
    try:
        hook = session_hooks.EvaluationHook(task, stop)
        with reading.naming(settings, "eval", checkpoint):
            found = made.evaluate(
                input_fn,
                steps=settings.eval.steps,
                hooks=[hook],
                checkpoint_path=checkpoint,
                name=None if checkpoint is None or is_of_run else "checkpoints",
            )
        if not hook.done:
            raise errors.RunError("eval.input: must have rows, has none. Check its files.")
        return found
    finally:
        task.finish()
