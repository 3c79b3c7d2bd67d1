"""A model_fn called once, on the whole batch, in a graph that is one device's."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf1
from replicate.strategy import base, context
from replicate.training import model_call
from replicate.training import optimizer as optimizers


def build(
    strategy: base.DistributionStrategy,
    call: model_call.ModelCall,
    features: Any,
    labels: Any,
    factory: optimizers.OptimizerFactory | None,
    share: context.Share,
) -> Any:
    """Calls a model_fn, and returns its spec with the optimizer's step.

    Args:
        strategy: One of a single tower; its scope is entered.
        call: The model_fn.
        features: The features of the whole batch.
        labels: Its labels.
        factory: Makes the optimizer in mode TRAIN; None: the model_fn uses its own.
        share: The whole batch, and what is done with gradients before the update.
    """

    def tower_fn():
        if factory is None:
            return call(features, labels)
        before = list(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        with optimizers.left_out():
            spec = call(features, labels)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        updates = [op for op in updates if not any(op is other for other in before)]
        return _with_step(spec, optimizers.minimize(factory.get(), spec.loss), updates)

    with context.entered(context.current()._replace(share=share)), model_call.surroundings():
        return strategy.run_towers(tower_fn)[0]


def _with_step(spec: Any, train_op: Any, updates: Sequence[Any]) -> Any:
    """Puts an optimizer's step in place of the model_fn's own, which leaves no variable behind."""
    runs = list(dict.fromkeys([train_op, *updates]))
    optimizers.forget_unused([spec], runs)
    return spec._replace(train_op=runs[0] if len(runs) == 1 else tf1.group(*runs, name="train"))
