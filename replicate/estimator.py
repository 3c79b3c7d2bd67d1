"""The Estimator API, on every supported TensorFlow.

Every name that `tf.estimator` of TensorFlow 2.15 has, as it is there; `v1` is
`tf.compat.v1.estimator` of that release. Names are loaded on first use.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from replicate.compat.tensorflow import tf

__all__ = """
    BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead
    CheckpointSaverHook CheckpointSaverListener DNNClassifier DNNEstimator
    DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor
    Estimator EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter FinalOpsHook
    GlobalStepWaiterHook Head LatestExporter LinearClassifier LinearEstimator LinearRegressor
    LoggingTensorHook LogisticRegressionHead ModeKeys MultiClassHead MultiHead MultiLabelHead
    NanLossDuringTrainingError NanTensorHook PoissonRegressionHead ProfilerHook RegressionHead
    RunConfig SecondOrStepTimer SessionRunArgs SessionRunContext SessionRunHook SessionRunValues
    StepCounterHook StopAtStepHook SummarySaverHook TrainSpec VocabInfo WarmStartSettings
    add_metrics classifier_parse_example_spec experimental export install
    regressor_parse_example_spec train_and_evaluate v1
""".split()


def install() -> None:
    """Sets `tf.estimator` where TensorFlow lacks it: old code runs as it is.

    That is `tf.estimator`, `tf.compat.v1.estimator` and `tf.compat.v2.estimator`, also as
    modules to import from. So are the private names that much code of Estimators imports.
    What TensorFlow has itself stays. A second call changes nothing.
    """
    _compat("old_names").add_missing()
    estimators = _compat("estimator")
    for name, parent, load in (
        ("tensorflow", tf, estimators.load_v2),
        ("tensorflow.compat.v1", tf.compat.v1, estimators.load_v1),
        ("tensorflow.compat.v2", tf.compat.v2, estimators.load_v2),
    ):
        if not hasattr(parent, "estimator"):
            parent.estimator = load()
            sys.modules.setdefault(f"{name}.estimator", parent.estimator)
            for part in ("experimental", "export", "inputs", "tpu"):
                if hasattr(parent.estimator, part):
                    sys.modules.setdefault(
                        f"{name}.estimator.{part}", getattr(parent.estimator, part)
                    )


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any) -> Any:
    """Trains and evaluates, as `tf.estimator.train_and_evaluate` does; also over workers.

    A worker of a cluster trains, beginning at once, with the server of its strategy; TensorFlow's
    function would start one that has no place for it: under `MultiWorkerStrategy`, and with
    parameter servers. These keep variables until they are ended. The evaluator, if the cluster
    has that task, evaluates and exports each checkpoint.

    Args:
        estimator: The Estimator.
        train_spec: Its `TrainSpec`.
        eval_spec: Its `EvalSpec`.
    """
    own, job = _compat("estimator").load_v2().train_and_evaluate, estimator.config.task_type
    chosen: Any = getattr(estimator._model_fn, "strategy", None)
    if job == "ps" and callable(chosen):
        from replicate.strategy.cluster import cluster, membership

        membership.serve(cluster.of())
    is_other = job == "master" or not callable(chosen)
    strategy = None if is_other else chosen("train", estimator.config)
    if strategy is None or not strategy.is_in_cluster:
        return own(estimator, train_spec, eval_spec)
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=train_spec.saving_listeners if strategy.is_chief else None,
    )
    return None


def _compat(name: str) -> ModuleType:
    """Returns a module of `replicate.compat`; this is where Estimators are loaded."""
    return importlib.import_module(f"replicate.compat.{name}")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    estimators = _compat("estimator")
    value = estimators.load_v1() if name == "v1" else getattr(estimators.load_v2(), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
