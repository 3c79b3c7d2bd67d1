"""The optimizer that a config describes: made in the model's graph, and scaled.

Half precision, `train.mixed_precision`: TensorFlow rewrites graphs of version 1 as sessions begin
to run them: on GPUs to float16, which needs a loss scale around the optimizer; on CPUs that can, to
bfloat16, whose exponents reach as far as those of float32. Weights stay float32. What is set here
is what `tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` sets, but for one run
in place of the whole process.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from replicate import errors
from replicate.app.config import functions, optimizer_config
from replicate.compat.tensorflow import tf, tf1
from replicate.training import weight_decay

OptimizerFn: TypeAlias = Callable[..., tf1.train.Optimizer]
"""What `replicate_model_fn` takes as optimizer_fn; may name `params`."""

BFLOAT16, FLOAT16 = "bfloat16", "float16"
_REWRITES = {FLOAT16: "auto_mixed_precision", BFLOAT16: "auto_mixed_precision_onednn_bfloat16"}
_ON = 1  # RewriterConfig.ON


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
            with tf1.name_scope(None):
                tf1.summary.scalar("learning_rate", arguments["learning_rate"])
        if described.name == "AdagradDA":
            arguments["global_step"] = tf1.train.get_or_create_global_step()
        own = getattr(weight_decay, described.name, None)
        return (own or getattr(tf1.train, f"{described.name}Optimizer"))(**arguments)

    return make


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


def kind_for(device_names: Sequence[str]) -> str:
    """Returns the type that towers on these devices compute in, in half precision."""
    return FLOAT16 if any("GPU" in name for name in device_names) else BFLOAT16


def halved(make: OptimizerFn, session_config: tf1.ConfigProto, kind: str) -> OptimizerFn:
    """Has sessions with this config rewrite their graphs to half precision.

    Args:
        make: The config's optimizer function.
        session_config: Of the sessions.
        kind: What is computed in.

    Returns:
        An optimizer function whose optimizer keeps small gradients from vanishing: with a loss
        scale, which bfloat16 does not need.
    """
    setattr(session_config.graph_options.rewrite_options, _REWRITES[kind], _ON)
    if kind != FLOAT16:
        return make

    def make_scaled(params: Any) -> tf1.train.Optimizer:
        made = functions.call_with_named(make, {"params": params}, "optimizer")
        if isinstance(made, tf1.mixed_precision.MixedPrecisionLossScaleOptimizer):
            raise errors.RunError(
                "train.mixed_precision: must be false where the optimizer has a loss scale "
                "already. Remove one."
            )
        return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(made, "dynamic")

    return make_scaled
