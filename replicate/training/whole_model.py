"""A model_fn called once, on the whole batch, in a graph that is one device's."""

from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat import generators, keras
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, isolation
from replicate.strategy import base, context
from replicate.training import optimizer as optimizers
from replicate.training import step as steps
from replicate.training import towers


def build(
    strategy: base.DistributionStrategy,
    call: towers.ModelCall,
    features: Any,
    labels: Any,
    factory: optimizers.OptimizerFactory | None,
    step: steps.GradientStep,
) -> Any:
    """Calls a model_fn, and returns its spec with the optimizer's step.

    Args:
        strategy: One of a single tower; its scope is entered.
        call: The model_fn.
        features: The features of the whole batch.
        labels: Its labels.
        factory: Makes the optimizer in mode TRAIN; None: the model_fn uses its own.
        step: What is done with gradients before the update.
    """
    step = step.alone()
    step.is_silent = factory is not None
    share = context.Share((1.0,), (True,), _Alone(step))

    def tower_fn():
        before = list(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        spec = call(features, labels)
        if factory is None:
            return spec
        step.is_silent = False
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        updates = [op for op in updates if not any(op is other for other in before)]
        return _with_step(spec, optimizers.minimize(factory.get(), spec.loss), updates)

    reductions = keras.loss_reductions(towers.keras_reduction)
    with (
        context.entered(context.current()._replace(share=share)),
        reductions,
        keras.output_names(towers.is_of_one_batch),
        generators.drawing_as_one_device(_is_alone),
    ):
        return strategy.run_towers(lambda: tower_fn)[0]


def _with_step(spec: Any, train_op: Any, updates: Sequence[Any]) -> Any:
    """Puts an optimizer's step in place of the model_fn's own, which leaves no variable behind."""
    runs = list(dict.fromkeys([train_op, *updates]))
    made = spec._replace(train_op=runs[0] if len(runs) == 1 else tf1.group(*runs, name="train"))
    summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
    running = ancestry.executed_by([*runs, *_tensors(spec), *summaries])
    replaced = ancestry.executed_by([spec.train_op]) - running
    unused = [
        variable
        for variable in tf1.global_variables()
        if not variable.trainable and _is_used(variable, replaced, running)
    ]
    for key in tf1.get_default_graph().get_all_collection_keys() if unused else ():
        isolation.remove(tf1.get_default_graph(), key, unused)
    return made


def _tensors(spec: Any) -> list[tf.Tensor]:
    """Returns what a spec has beside its step."""
    metrics = list((spec.eval_metric_ops or {}).values())
    leaves = tf.nest.flatten([spec.loss, spec.predictions, metrics], expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, (tf.Tensor, tf.Operation))]


def _is_used(variable: Any, replaced: set, running: set) -> bool:
    """Whether the model_fn's own step alone uses a variable."""
    users = set(variable.handle.consumers())
    return bool(users & replaced) and not users & running


def _is_alone() -> bool:
    """Whether the running code is one device's graph that is built for a strategy."""
    mode = context.current()
    return mode is not None and mode.share is not None and isinstance(mode.share.joiner, _Alone)


class _Alone:
    """What a single tower brings is the whole batch's.

    Args:
        step: What is done with gradients.
    """

    whole = None
    is_gathering = False

    def __init__(self, step: steps.GradientStep):
        self.step = step

    def loss(self, losses: Sequence[Any]) -> Any:
        """Returns the one loss."""
        return losses[0]

    def wrap(self, merge_fn: Callable, args: Sequence) -> tuple[Callable, Sequence]:
        """See `GradientStep.wrap`."""
        return self.step.wrap(merge_fn, args)

    def mean(self, strategy: Any, value: Any, destination: Any) -> Any:
        """Returns the value: it is of all rows."""
        del strategy, destination
        return value

    def written(self, strategy: Any, variable: Any, method: str, value: Any) -> None:
        """Leaves each write as it is."""
        del strategy, variable, method, value

    def note(self, tower_id: int, tensor: Any) -> None:
        """Takes no note: all values are whole."""
        del tower_id, tensor

    def set_loss_weights(self, denominators: Sequence[Any]) -> None:
        """Takes no weights: there is one tower."""
        del denominators

    def get_loss_reduction(self) -> str:
        """Returns that gradients of several batches are averaged."""
        return "mean"
