"""A model_fn as it is called: with the arguments that it names, as if there were one device."""

import contextlib
import copy
import functools
import inspect
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from replicate import errors, types
from replicate.compat import gradients, keras
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.strategy import base, context
from replicate.training import optimizer as optimizers
from replicate.training import step as steps
from replicate.training import tower_optimizer

_log = logging.getLogger("replicate")
_ARGUMENTS = ("features", "labels", "mode", "params", "config")

Value = TypeVar("Value")


class Tower(NamedTuple):
    """What one call of the model_fn left behind.

    Attributes:
        spec: The EstimatorSpec that the model_fn returned.
        train_op: The optimizer's step: that of `optimizer_fn`, or the model_fn's own.
        update_ops: What the call added to the collection `UPDATE_OPS`.
    """

    spec: types.EstimatorSpec
    train_op: types.Fetch | None
    update_ops: tuple[types.Fetch, ...]


class Model:
    """A model_fn together with all its arguments but features and labels, and its optimizer.

    Args:
        model_fn: Any Estimator model_fn.
        optimizer_fn: Makes the optimizer of mode TRAIN, if the model_fn does not use its own.
        mode: The mode key.
        params: Copied for each call where it can be copied.
        config: Likewise.

    Attributes:
        mode: The mode key.
        optimizer_fn: Makes the optimizer; None: the model_fn uses its own, or does not train.
    """

    def __init__(
        self,
        model_fn: types.ModelFn,
        optimizer_fn: types.OptimizerFn | None,
        mode: str,
        params: object,
        config: types.RunConfig | None,
    ):
        self.mode = mode
        self.optimizer_fn = optimizer_fn if mode == types.TRAIN else None
        self._model_fn = model_fn
        self._params = params
        self._config = config
        self._names = argument_names(model_fn)

    @functools.cached_property
    def optimizer(self) -> tf1.train.Optimizer | None:
        """The optimizer of `optimizer_fn`, made once, in whichever tower asks first."""
        return self.optimizer_fn and optimizers.made_by(self.optimizer_fn, self._params)

    def tower(self, features: types.Nest, labels: types.Nest) -> Tower:
        """Calls the model_fn in a tower, and has the optimizer minimise its loss."""
        before = set(map(id, tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)))
        mode, share = context.required(), context.required_share()
        if self.optimizer_fn is not None:  # the model_fn's own optimizers are not run
            left_out = share._replace(step=steps.GradientStep(is_left_out=True))
            mode = mode._replace(share=left_out)
        with context.entered(mode), _watched(share.step) as computed:
            spec = self(features, labels)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        train_op = spec.train_op
        if self.optimizer is not None:
            pairs = self.optimizer.compute_gradients(spec.loss)
            global_step = tf1.train.get_or_create_global_step()
            train_op = share.step.apply_gradients(self.optimizer, pairs, global_step)
        elif self.mode == types.TRAIN:
            _require_taken(share.step, computed, train_op)
        return Tower(spec, train_op, tuple(op for op in updates if id(op) not in before))

    def step(self, towers: Sequence[Tower], updates: Sequence[types.Fetch]) -> types.Fetch:
        """Returns the step of all towers, in place of what the model_fn's own would be.

        Args:
            towers: The K towers, whose optimizers have met.
            updates: Update operations that run beside it.
        """
        runs = list(dict.fromkeys([towers[0].train_op, *updates]))
        if self.optimizer_fn is not None:
            optimizers.forget_unused([tower.spec for tower in towers], runs)
        return runs[0] if len(runs) == 1 else tf1.group(*runs, name="train")

    def __call__(self, features: types.Nest, labels: types.Nest) -> types.EstimatorSpec:
        """Calls the model_fn with the arguments it names; returns its EstimatorSpec.

        Raises:
            ValueError: If labels came and it takes none.
            TypeError: If it returned something else than an EstimatorSpec.
        """
        given = {
            "mode": self.mode,
            "params": _copied(self._params),
            "config": _copied(self._config),
        }
        given = {name: value for name, value in given.items() if name in self._names}
        if "labels" in self._names:
            given["labels"] = labels
        elif labels is not None:
            raise ValueError(
                "A model_fn that gets labels must take them: the input_fn gave labels, and "
                f"{self._model_fn!r} takes {list(self._names)}. Add the argument `labels`, or "
                "let the input_fn return features alone."
            )
        spec = self._model_fn(features=features, **given)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        if not hasattr(spec, "train_op") or not hasattr(spec, "export_outputs"):
            raise TypeError(
                "A model_fn must return an EstimatorSpec; got "
                f"{type(spec).__name__} in mode {self.mode!r}. Return replicate.estimator."
                "EstimatorSpec(mode, ...)."
            )
        return spec


def argument_names(model_fn: types.ModelFn) -> tuple[str, ...]:
    """Returns those of a model_fn's known arguments that it names.

    Raises:
        ValueError: If it does not take `features`.
    """
    parameters = inspect.signature(model_fn).parameters
    bound = model_fn.keywords if isinstance(model_fn, functools.partial) else {}
    names = tuple(name for name in _ARGUMENTS if name in parameters and name not in bound)
    if "features" not in names:
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return _ARGUMENTS  # a wrapper, which names nothing because it passes all on
        raise ValueError(
            f"A model_fn must take `features`: {model_fn!r} takes {list(parameters)}. Write "
            "def model_fn(features, labels, mode, params)."
        )
    return names


def _copied(value: Value) -> Value:
    try:
        return copy.deepcopy(value)
    except Exception as reason:  # noqa: BLE001 - whatever a user's class raises
        _log.debug("%s cannot be copied and is shared by all towers: %s", type(value), reason)
        return value


def whole(
    strategy: base.DistributionStrategy,
    model: Model,
    features: types.Nest,
    labels: types.Nest,
    share: context.Share,
) -> types.EstimatorSpec:
    """Calls a model_fn once, in a graph that is one device's; returns its spec with the step.

    Args:
        strategy: One of a single tower; its scope is entered.
        model: The model_fn.
        features: The features of the whole batch.
        labels: Its labels.
        share: The whole batch, and what is done with gradients before the update.
    """
    with entered(share):
        (tower,) = strategy.run_towers(lambda: model.tower(features, labels))
    if model.optimizer_fn is None:
        return tower.spec
    return tower.spec._replace(train_op=model.step([tower], tower.update_ops))


@contextlib.contextmanager
def entered(share: context.Share) -> Iterator[None]:
    """Enters a batch, for what is a batch's to optimizers, Keras and random numbers.

    Args:
        share: The batch.
    """
    with (
        context.entered(context.required()._replace(share=share)),
        keras.loss_reductions(_keras_reduction),
        keras.output_names(_is_of_batch),
        keras.without_strategies(_is_of_whole_batch),
        keras.asking_before_keras_3(_refuse_keras_3),
        keras.drawing_as_one_device(_is_of_whole_batch),
    ):
        yield


def _is_of_batch() -> bool:
    """Whether the running code is a tower's whose rows are a batch, or a part of one."""
    mode = context.current()
    return mode is not None and mode.tower is not None and mode.share is not None


def _refuse_keras_3() -> None:
    if _is_of_batch():
        raise TypeError(
            "A model_fn builds a graph, in which optimizers of Keras 3 do nothing: got one. Use "
            "tf_keras.optimizers.legacy.Adam, tf.compat.v1.train.AdamOptimizer, or their like."
        )


def _is_of_whole_batch() -> bool:
    """Whether the running code is that of the only tower."""
    mode = context.current()
    return mode is not None and mode.share is not None and mode.strategy.is_single_tower


def _keras_reduction(reduction: str) -> str | None:
    """Lets a Keras loss average over its tower's rows; in other code Keras decides."""
    if not _is_of_batch():
        return None
    if reduction == tf.keras.losses.Reduction.AUTO:
        return tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
    return reduction


# Gradients that a model applies by itself, where something is to be done with gradients.
# TensorFlow's optimizers let the towers meet in their step, where gradients are accumulated and
# clipped. A subclass with an `apply_gradients` of its own need not do so: it is called in such a
# step. What is assigned without an optimizer is refused.


@contextlib.contextmanager
def _watched(step: steps.GradientStep) -> Iterator[list[types.Nest]]:
    """Lets a step take gradients that optimizers apply by themselves.

    Args:
        step: What is done with gradients before the update.

    Yields:
        All gradients that are computed meanwhile, if something is to be done with gradients.
    """
    computed: list[types.Nest] = []
    if not step.changes:
        yield computed
        return
    with gradients.computed(computed.append), gradients.applied(_taken):
        yield computed


def _require_taken(step: steps.GradientStep, computed: types.Nest, train_op: types.Fetch) -> None:
    """Refuses updates by gradients that no optimizer has applied.

    Args:
        step: What is done with gradients before the update.
        computed: The gradients.
        train_op: What is run.

    Raises:
        ValueError: If there is one, and something is to be done with gradients.
    """
    leaves = tf.nest.flatten(computed, expand_composites=True)
    # An eager tensor's graph raises AttributeError.
    sources = [leaf.op for leaf in leaves if isinstance(leaf, tf.Tensor) and hasattr(leaf, "graph")]
    if not sources:
        return
    reached, executed = operations.reached_from(sources), operations.executed_by([train_op])
    for variable in tf1.trainable_variables():
        for outer, write in operations.writers(operations.copies_of(variable)[0]):
            is_run = outer in executed and (outer in reached or write in reached)
            if is_run and write not in step.made:
                raise ValueError(
                    "Gradients are accumulated and clipped where an optimizer applies them: "
                    f"got {' and '.join(step.changes)}, and {variable.name!r} is "
                    f"assigned by hand, from a gradient, by {write.name!r}, {_where(write)}. "
                    "Write a subclass of tf.compat.v1.train.Optimizer whose apply_gradients "
                    "assigns; pass an optimizer_fn; or accumulate and clip by hand as well."
                )


def _taken(optimizer: tf1.train.Optimizer) -> types.Function | None:
    """Returns what to call in place of an `apply_gradients` that a class has of its own."""
    mode, base = context.current(), tf1.train.Optimizer
    if mode is None or mode.tower is None or mode.share is None or not mode.share.step.changes:
        return None
    if type(optimizer).apply_gradients is base.apply_gradients:
        return None  # meets the other towers
    if isinstance(optimizer, tower_optimizer.TowerOptimizer):
        return None
    return functools.partial(mode.share.step.apply_gradients, optimizer)


def _where(op: tf.Operation) -> str:
    """Returns which line of a model made an operation."""
    roots = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (tf, errors))
    frames = [frame for frame in op.traceback if not frame.name.startswith("<")]
    frame = next((f for f in reversed(frames) if not f.filename.startswith(roots)), frames[-1])
    return f"{frame.filename}:{frame.lineno}, in {frame.name}"
