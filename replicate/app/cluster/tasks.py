"""Which task of a cluster this process is, and so which part of a training.

All workers make the steps, together. What follows from them is the chief's, and nobody else
writes to model_dir: the lock, the run's records, checkpoints, summaries, evaluations, the best
checkpoint, exports. A worker that is no chief only makes steps. An evaluator takes the
evaluations, and what follows from these, off the chief. See `training.trainings`.
"""

from replicate import errors
from replicate.app.config import config
from replicate.strategy.cluster import cluster as clusters


def of(settings: config.Config) -> clusters.Cluster:
    """Returns the cluster of `TF_CONFIG`, of which this process is a task.

    Args:
        settings: The config.

    Raises:
        ConfigError: If `TF_CONFIG` is malformed, or the config is none for such a cluster.
    """
    found = clusters.of()
    has_evaluator = settings.cluster.evaluator or found.has_evaluator
    if found.own.job == "evaluator" and not has_evaluator:
        raise errors.ConfigError(
            "cluster.evaluator: must be true if TF_CONFIG has an evaluator, as this task is one; "
            "got false. Set it in the config of all tasks, or the chief evaluates as well."
        )
    settings.require_cluster(found.size, len(found.servers))
    return found._replace(has_evaluator=has_evaluator)
