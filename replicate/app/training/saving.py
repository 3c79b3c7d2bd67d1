"""Checkpoints that are written once.

When a session begins, TensorFlow's hook writes again, in place, what it has just restored. Whoever
reads it meanwhile, as the other tasks of a cluster do that begin beside the chief, finds a torn
file: TensorFlow raises, or ends the process.
"""

import os
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1

__all__ = ["hooks"]


def hooks(spec: Any, config: Any) -> Sequence[tf1.train.SessionRunHook]:
    """Returns what saves checkpoints in an Estimator's place; nothing where a hook does already.

    Args:
        spec: The EstimatorSpec of mode TRAIN.
        config: The RunConfig.
    """
    given = (*spec.training_hooks, *spec.training_chief_hooks)
    is_wanted = config.save_checkpoints_secs or config.save_checkpoints_steps
    if not is_wanted or any(isinstance(one, tf1.train.CheckpointSaverHook) for one in given):
        return ()
    return (
        tf1.train.CheckpointSaverHook(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            saver=_Saver(spec.scaffold),
            save_graph_def=config.checkpoint_save_graph_def,
        ),
    )


class _Saver:
    """A scaffold's Saver, which leaves alone what is the newest checkpoint already.

    Args:
        scaffold: The scaffold; it has a Saver when its session begins.
    """

    def __init__(self, scaffold: tf1.train.Scaffold):
        self._scaffold = scaffold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaffold.saver, name)

    def save(self, session: Any, path: str, global_step: int | None = None, **options: Any) -> str:
        """See `tf.compat.v1.train.Saver.save`."""
        newest = tf.train.latest_checkpoint(os.path.dirname(path))
        if newest is not None and newest == f"{path}-{global_step}":
            return newest
        return self._scaffold.saver.save(session, path, global_step=global_step, **options)
