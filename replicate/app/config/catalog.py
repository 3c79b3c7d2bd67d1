"""What a config may name: optimizers, schedules, types. Literal, so no TensorFlow here.

Argument names and defaults are those of `tf.compat.v1.train`, and of the app's own optimizers; a
test compares each row with the signature of the class or function it stands for.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

REQUIRED: Final = "required"  # in place of a default

_L1_L2 = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}

_ADAM = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_DECAYED = {**_ADAM, "weight_decay": 0.01, "exclude_from_decay": ()}

OPTIMIZERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Adadelta": {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-8},
        "Adagrad": {"learning_rate": REQUIRED, "initial_accumulator_value": 0.1},
        "AdagradDA": {
            "learning_rate": REQUIRED,
            "initial_gradient_squared_accumulator_value": 0.1,
            **_L1_L2,
        },
        "Adam": _ADAM,
        "AdamW": _DECAYED,
        "Ftrl": {
            "learning_rate": REQUIRED,
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            **_L1_L2,
            "l2_shrinkage_regularization_strength": 0.0,
        },
        "GradientDescent": {"learning_rate": REQUIRED},
        "LAMB": _DECAYED,
        "Momentum": {"learning_rate": REQUIRED, "momentum": REQUIRED, "use_nesterov": False},
        "ProximalAdagrad": {
            "learning_rate": REQUIRED,
            "initial_accumulator_value": 0.1,
            **_L1_L2,
        },
        "ProximalGradientDescent": {"learning_rate": REQUIRED, **_L1_L2},
        "RMSProp": {
            "learning_rate": REQUIRED,
            "decay": 0.9,
            "momentum": 0.0,
            "epsilon": 1e-10,
            "centered": False,
        },
    }
)

_DECAY = {
    "learning_rate": REQUIRED,
    "decay_steps": REQUIRED,
    "decay_rate": REQUIRED,
    "staircase": False,
}

SCHEDULES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "constant": {"learning_rate": REQUIRED},
        "cosine_decay": {"learning_rate": REQUIRED, "decay_steps": REQUIRED, "alpha": 0.0},
        "cosine_decay_restarts": {
            "learning_rate": REQUIRED,
            "first_decay_steps": REQUIRED,
            "t_mul": 2.0,
            "m_mul": 1.0,
            "alpha": 0.0,
        },
        "exponential_decay": _DECAY,
        "inverse_sqrt_decay": {"learning_rate": REQUIRED, "decay_steps": REQUIRED},
        "inverse_time_decay": _DECAY,
        "linear_cosine_decay": {
            "learning_rate": REQUIRED,
            "decay_steps": REQUIRED,
            "num_periods": 0.5,
            "alpha": 0.0,
            "beta": 0.001,
        },
        "natural_exp_decay": _DECAY,
        "piecewise_constant": {"boundaries": REQUIRED, "values": REQUIRED},
        "polynomial_decay": {
            "learning_rate": REQUIRED,
            "decay_steps": REQUIRED,
            "end_learning_rate": 0.0001,
            "power": 1.0,
            "cycle": False,
        },
    }
)

Strategy = Literal[
    "parameter_server", "round_robin", "balanced", "mirrored", "one_device", "multi_worker"
]

Dtype = Literal[
    "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "string", "uint8"
]
DTYPES: Final = get_args(Dtype)


# Words in the names of metrics.
_MORE_IS_BETTER = frozenset(
    "acc accuracy auc bleu correlation dice f1 fbeta fscore hit hits iou jaccard kappa map mcc "
    "miou mrr ndcg precision psnr r2 recall rouge sensitivity specificity ssim true".split()
)
_LESS_IS_BETTER = frozenset(
    "bpc brier cer crossentropy deviance divergence entropy err error errors false kl logloss loss "
    "losses mae mape mse msle nll perplexity ppl rmse rmsle wer xent".split()
)
# With one of these words a name may mean the opposite.
_TURNS = frozenset("negative neg minus one inverse inv drop gap free complement".split())

OUTPUT_ENDINGS: Final = (".jsonl", ".json", ".csv", ".npz")

# What others call it, in small letters -> what it may be here.
OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("path", "paths", "files", "filename"), ("file",)),
        **dict.fromkeys(("gpus", "cpus"), ("devices",)),
        **dict.fromkeys(("lr", "rate"), ("learning_rate",)),
        **dict.fromkeys(("sep", "separator"), ("delimiter",)),
        **dict.fromkeys(("target", "labels"), ("label",)),
        **dict.fromkeys(("sgd", "gradient_descent"), ("GradientDescent",)),
        **dict.fromkeys(("int", "integer"), ("int32", "int64")),
        **dict.fromkeys(("float", "number"), ("float32", "float64")),
        **dict.fromkeys(("str", "text", "bytes", "object"), ("string",)),
        **dict.fromkeys(("gzip", "gz"), ("GZIP",)),
        **dict.fromkeys(("avg", "average"), ("mean",)),
        "type": ("kind", "dtype"),
        "format": ("kind",),
        "batch": ("batch_size",),
        "max_steps": ("steps",),
        "model": ("model_fn",),
        "nesterov": ("Momentum", "use_nesterov"),
        "long": ("int64",),
        "double": ("float64", "float32"),
        "half": ("float16",),
        "boolean": ("bool",),
        "ps": ("parameter_server",),
    }
)


def higher_is_better(metric: str) -> bool | None:
    """Tells by its name whether more of a metric is better; None: it does not say."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    is_higher, is_lower = bool(words & _MORE_IS_BETTER), bool(words & _LESS_IS_BETTER)
    return None if is_higher == is_lower or words & _TURNS else is_higher
