"""The optimizer that a config describes: made in the model's graph, scaled, its rate read.

Half precision, `train.mixed_precision`: TensorFlow rewrites graphs of version 1 as sessions begin
to run them: on GPUs to float16, which needs a loss scale around the optimizer; on CPUs that can, to
bfloat16, whose exponents reach as far as those of float32. Weights stay float32. What is set here
is what `tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` sets, but for one run
in place of the whole process.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from replicate import errors
from replicate.app.config import functions, optimizer_config
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.training import weight_decay

OptimizerFn: TypeAlias = Callable[..., tf1.train.Optimizer]
"""What `replicate_model_fn` takes as optimizer_fn; may name `params`."""

BFLOAT16, FLOAT16 = "bfloat16", "float16"
_REWRITES = {FLOAT16: "auto_mixed_precision", BFLOAT16: "auto_mixed_precision_onednn_bfloat16"}
_ON = 1  # RewriterConfig.ON
_KEY = "train.mixed_precision"


def optimizer_fn(described: optimizer_config.Optimizer | str | None) -> OptimizerFn | None:
    """Returns the optimizer function of a config; None where it has none.

    Raises:
        RunError: If a function that the config names cannot be found.
    """
    if described is None:
        return None
    if isinstance(described, str):
        return functions.load(described, "optimizer")

    def make() -> tf1.train.Optimizer:
        arguments = dict(described.arguments)
        rate = arguments["learning_rate"]
        if isinstance(rate, optimizer_config.Schedule):
            arguments["learning_rate"] = _scheduled(rate)
        if described.name == "AdagradDA":
            arguments["global_step"] = tf1.train.get_or_create_global_step()
        own = getattr(weight_decay, described.name, None)
        return (own or getattr(tf1.train, f"{described.name}Optimizer"))(**arguments)

    return make


def recorded(make: OptimizerFn, into: list[tf1.train.Optimizer]) -> OptimizerFn:
    """Returns an optimizer function that adds what it makes to a list."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> tf1.train.Optimizer:
        into.append(make(*args, **kwargs))
        return into[-1]

    return made


def learning_rate(
    described: optimizer_config.Optimizer | str | None, made: Sequence[tf1.train.Optimizer]
) -> tf.Tensor | float | None:
    """Returns the learning rate as the global step has it; None where nobody knows it.

    Args:
        described: The config's optimizer.
        made: The optimizers that were made of it.
    """
    if isinstance(described, optimizer_config.Optimizer):
        rate = described.arguments["learning_rate"]
        if not isinstance(rate, optimizer_config.Schedule):
            return rate
        with tf1.name_scope("shown_learning_rate"):
            return _scheduled(rate)
    return next((rate for rate in map(_rate_of, made) if rate is not None), None)


def _scheduled(rate: optimizer_config.Schedule) -> tf.Tensor:
    """Returns the learning rate as a tensor that follows the global step."""
    step = tf1.train.get_or_create_global_step()
    if not rate.warmup_steps:
        return _decayed(rate, step)
    found = _decayed(rate, tf.maximum(step - rate.warmup_steps, 0))
    return found * tf.minimum(tf.cast(step, found.dtype) / rate.warmup_steps, 1)


def _decayed(rate: optimizer_config.Schedule, step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate at a step of its schedule."""
    arguments = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in rate.arguments.items()
        if name != "warmup_steps"
    }
    if rate.name == "constant":
        return tf.constant(arguments["learning_rate"], tf.float32)
    if rate.name == "inverse_sqrt_decay":
        passed = tf.cast(step, tf.float32) / arguments["decay_steps"]
        return arguments["learning_rate"] * tf.math.rsqrt(1 + passed)
    if rate.name == "piecewise_constant":
        return tf1.train.piecewise_constant(step, **arguments)
    return getattr(tf1.train, rate.name)(global_step=step, **arguments)


def _rate_of(optimizer: tf1.train.Optimizer) -> tf.Tensor | float | None:
    """Returns an optimizer's learning rate; None where it has none.

    A tensor that something else than the weights goes into, such as the input, is left alone:
    to read it would be to take a batch away from training.
    """
    inner = getattr(optimizer, "_optimizer", optimizer)  # of a loss scale
    found: Any = getattr(inner, "_learning_rate", None)
    if found is None:
        found = getattr(inner, "_lr", None)
    found = found() if callable(found) else found
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if not tf.is_tensor(found) or found.graph is not tf1.get_default_graph():
        return None
    is_scalar = found.shape.rank == 0 and found.dtype.is_floating
    behind = operations.executed_by([found]) if is_scalar else ()
    takes_input = any(op.type.startswith(("Iterator", "Placeholder", "Queue")) for op in behind)
    return found if is_scalar and not takes_input else None


def kind_for(device_names: Sequence[str]) -> str:
    """Returns the type that towers on these devices compute in, in half precision."""
    return FLOAT16 if any("GPU" in name for name in device_names) else BFLOAT16


def set_rewrite(session_config: tf1.ConfigProto, kind: str) -> None:
    """Has sessions with this config rewrite their graphs to half precision.

    Raises:
        RunError: If this TensorFlow cannot.
    """
    options = session_config.graph_options.rewrite_options
    name = _REWRITES[kind]
    if name not in options.DESCRIPTOR.fields_by_name:
        raise errors.RunError(
            f"{_KEY}: must be false with this TensorFlow, which has no rewrite to {kind} "
            f"({name} in its RewriterConfig). Remove it, or take another TensorFlow."
        )
    setattr(options, name, _ON)


def scaled(make: OptimizerFn | None, kind: str) -> OptimizerFn:
    """Returns an optimizer function whose optimizer keeps small gradients from vanishing.

    Args:
        make: The config's.
        kind: What is computed in; bfloat16 needs no loss scale.

    Raises:
        RunError: If the config has no optimizer, or, when it is made, it has a loss scale.
    """
    if make is None:
        raise errors.RunError(
            f"{_KEY}: must be false where model_fn has an optimizer of its own, which only "
            "model_fn itself can give a loss scale. Name the optimizer in the config, or scale "
            "the loss in model_fn."
        )
    if kind != FLOAT16:
        return make

    def make_scaled(params: Any) -> tf1.train.Optimizer:
        made = functions.call_with_named(make, {"params": params}, "optimizer")
        if isinstance(made, tf1.mixed_precision.MixedPrecisionLossScaleOptimizer):
            raise errors.RunError(
                f"{_KEY}: must be false where the optimizer has a loss scale already. Remove one."
            )
        return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(made, "dynamic")

    return make_scaled
