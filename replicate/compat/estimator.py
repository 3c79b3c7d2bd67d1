"""tensorflow-estimator 2.15 on every supported TensorFlow.

tensorflow-estimator 2.15.0 is the last release, made for TensorFlow 2.15. What later
releases of TensorFlow took away and it still imports is a table of `Row`s. `add_missing`
adds what is missing, in TensorFlow's private modules only; on 2.15 it adds nothing.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat import tensorflow as tfc

_API = "tensorflow_estimator.python.estimator.api"


class Row(NamedTuple):
    """One thing that tensorflow-estimator imports and newer TensorFlow lacks.

    Attributes:
        name: Dotted name of what is missing.
        missing_since: The first TensorFlow without it.
        why: What tensorflow-estimator does with it.
        add: Adds it; called only where it is missing.
        today: What it is called today, if there is such a name.
    """

    name: str
    missing_since: str
    why: str
    add: Callable[["Row"], None]
    today: str = ""

    def is_missing(self) -> bool:
        """Whether this TensorFlow lacks it, and nobody has added it yet."""
        parent, _, last = self.name.rpartition(".")
        if self.name in sys.modules or hasattr(importlib.import_module(parent), last):
            return False
        try:
            return importlib.util.find_spec(self.name) is None
        except ModuleNotFoundError:  # the parent is no package: what is missing is no module
            return True


class _Attributes(NamedTuple):
    names: str
    constants: str


def _add_export_name(row: Row) -> None:
    """Registers the API name under which tensorflow-estimator marks its symbols."""
    tf_export = tfc.tf_export.target()
    for attributes, end in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
        attributes["estimator"] = _Attributes(
            f"_estimator_api_names{end}", f"_estimator_api_constants{end}"
        )
    setattr(tf_export, row.name.rpartition(".")[2], "estimator")


def _add_module(row: Row, **members: Any) -> None:
    """Adds a module with these members; other names say that TensorFlow lacks them.

    So TPUEstimator loads, and runs with use_tpu=False.
    """

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise errors.UnsupportedTensorFlowError(
            f"{row.name}.{name} is needed to {row.why}, and TensorFlow has none since "
            f"{row.missing_since}; this is TensorFlow {tfc.tf.__version__}. Use TensorFlow 2.15 "
            "for it."
        )

    module = ModuleType(row.name, f"Added by replicate, to {row.why}.")
    vars(module).update(members, __getattr__=missing)
    sys.modules[row.name] = module


def _add_coordinator(row: Row) -> None:
    _add_module(
        row,
        init_run_config=_init_run_config,
        should_run_distribute_coordinator=lambda config: False,
    )


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Completes a RunConfig that names a tf.distribute strategy, for one process.

    Args:
        config: The `RunConfig`, whose strategies are set.
        tf_config: The decoded `TF_CONFIG`.

    Raises:
        UnsupportedTensorFlowError: If the strategy is to run over a cluster.
        ValueError: If one strategy is given twice.
    """
    extra = config._experimental_distribute
    for name in ("train_distribute", "eval_distribute"):
        given = getattr(extra, name, None)
        if given and getattr(config, f"_{name}"):
            raise ValueError(
                f"A RunConfig has one {name}; got {name} and experimental_distribute.{name}. "
                "Leave out one of them."
            )
        if given:
            setattr(config, f"_{name}", given)
    cluster = tf_config.get("cluster", {})
    if config._train_distribute and (
        getattr(extra, "remote_cluster", None) or (cluster and "master" not in cluster)
    ):
        raise errors.UnsupportedTensorFlowError(
            "RunConfig(train_distribute=...) over a cluster needs the distribute coordinator, "
            f"which TensorFlow has no more since 2.16; this is {tfc.tf.__version__}, with the "
            f"cluster {cluster or extra.remote_cluster}. Leave out train_distribute, and pass "
            "replicate_model_fn(model_fn, strategy='multi_worker') to the Estimator."
        )
    config._distribute_coordinator_mode = None
    config._init_distributed_setting_from_environment_var(tf_config)
    config._maybe_overwrite_session_config_for_distributed_training()


_EMBEDDING_OPTIMIZERS = """AdagradParameters AdamParameters FtrlParameters MomentumParameters
    ProximalAdagradParameters RMSPropParameters StochasticGradientDescentParameters""".split()


def _add_embedding(row: Row) -> None:
    _add_module(row, **{name: type(name, (), {}) for name in _EMBEDDING_OPTIMIZERS})


ROWS = tuple(
    Row(f"tensorflow.python.{name}", "2.16", why, add)
    for name, why, add in (
        (
            "util.tf_export.ESTIMATOR_API_NAME",
            "mark each of its symbols with the name that it has in tf.estimator",
            _add_export_name,
        ),
        (
            "distribute.estimator_training",
            "set up a RunConfig with train_distribute, and run it over a cluster",
            _add_coordinator,
        ),
        ("tpu.session_support", "watch over the workers of a TPU", _add_module),
        ("tpu.tpu_embedding", "place embeddings on a TPU", _add_embedding),
        ("tpu.tpu_embedding_gradient", "train embeddings on a TPU", _add_module),
    )
)


def add_missing(rows: Sequence[Row] = ROWS) -> list[str]:
    """Adds what this TensorFlow lacks and tensorflow-estimator needs.

    Args:
        rows: What may be missing.

    Returns:
        The names that were added: none on TensorFlow 2.15, none the second time.
    """
    missing = [row for row in rows if row.is_missing()]
    for row in missing:
        row.add(row)
    return [row.name for row in missing]


def load_v2() -> ModuleType:
    """Returns the Estimator API as `tf.estimator` of TensorFlow 2.15 has it."""
    return _load("_v2")


def load_v1() -> ModuleType:
    """Returns the Estimator API as `tf.compat.v1.estimator` of TensorFlow 2.15 has it."""
    return _load("_v1")


def evaluating_on(config: Any, target: str) -> Any:
    """Returns a copy of a RunConfig whose evaluations are in sessions of a target.

    NOTE: what `TF_CONFIG` says of it, tensorflow-estimator hears for evaluators alone.
    """
    made = config.replace()
    made._evaluation_master = target
    return made


def run_config(environment: dict[str, Any], **options: Any) -> Any:
    """Returns a RunConfig of a task.

    Args:
        environment: What it reads in place of `TF_CONFIG`, the only way to tell it.
        **options: What else it is given.
    """
    before = os.environ.get("TF_CONFIG")
    os.environ["TF_CONFIG"] = json.dumps(environment)
    try:
        return load_v2().RunConfig(**options)
    finally:
        del os.environ["TF_CONFIG"]
        if before is not None:
            os.environ["TF_CONFIG"] = before


def _load(version: str) -> ModuleType:
    add_missing()
    return importlib.import_module(f"{_API}.{version}.estimator")
