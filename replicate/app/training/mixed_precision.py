"""Half precision where it is safe: `train.mixed_precision`.

TensorFlow rewrites graphs of version 1 as sessions begin to run them: on GPUs to float16, which
needs a loss scale around the optimizer; on CPUs that can, to bfloat16, whose exponents reach as
far as those of float32. Weights stay float32. What is set here is what
`tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite` sets, but for one run in
place of the whole process.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.app.config import functions
from replicate.compat.tensorflow import tf1

__all__ = ["BFLOAT16", "FLOAT16", "kind_for", "scaled", "set_rewrite"]

BFLOAT16, FLOAT16 = "bfloat16", "float16"
_REWRITES = {FLOAT16: "auto_mixed_precision", BFLOAT16: "auto_mixed_precision_onednn_bfloat16"}
_ON = 1  # RewriterConfig.ON
_KEY = "train.mixed_precision"


def kind_for(device_names: Sequence[str]) -> str:
    """Returns the type that towers on these devices compute in."""
    return FLOAT16 if any("GPU" in name for name in device_names) else BFLOAT16


def set_rewrite(session_config: tf1.ConfigProto, kind: str) -> None:
    """Has sessions with this config rewrite their graphs.

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


def scaled(optimizer_fn: Callable[..., Any] | None, kind: str) -> Callable[..., Any]:
    """Returns an optimizer function whose optimizer keeps small gradients from vanishing.

    Args:
        optimizer_fn: The config's.
        kind: What is computed in; bfloat16 needs no loss scale.

    Raises:
        RunError: If the config has no optimizer, or, when it is made, it has a loss scale.
    """
    if optimizer_fn is None:
        raise errors.RunError(
            f"{_KEY}: must be false where model_fn has an optimizer of its own, which only "
            "model_fn itself can give a loss scale. Name the optimizer in the config, or scale "
            "the loss in model_fn."
        )
    if kind != FLOAT16:
        return optimizer_fn
    if not hasattr(tf1, "mixed_precision"):
        raise errors.RunError(
            f"{_KEY}: must be false with this TensorFlow, which has no "
            "tf.compat.v1.mixed_precision. Remove it, or take another TensorFlow."
        )

    def make(params: Any) -> Any:
        made = functions.call_with_named(optimizer_fn, {"params": params}, "optimizer")
        if isinstance(made, tf1.mixed_precision.MixedPrecisionLossScaleOptimizer):
            raise errors.RunError(
                f"{_KEY}: must be false where the optimizer has a loss scale already. Remove one."
            )
        return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(made, "dynamic")

    return make
