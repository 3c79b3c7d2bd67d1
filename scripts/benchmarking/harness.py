"""One measurement: one subject, one model, K towers, in a process that does nothing else.

Every subject goes through an Estimator, up to where it would begin to train: there the graph
is taken from it and runs in a session of ours. That takes three private names of
tensorflow-estimator 2.15.0, of which there is no later release.
"""

import os
import resource
import tempfile
import time
import warnings
from collections.abc import Sequence
from typing import Any

from benchmarking import models, names, profiling, subjects, turns
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1


def measure(request: names.Request) -> dict:
    """Measures, and returns a number for each measure."""
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    warnings.simplefilter("ignore")
    if "gpus" in request.measures:
        details = tf.config.experimental.get_device_details
        gpus = map(details, tf.config.list_physical_devices("GPU"))
        return {"gpus": [gpu.get("device_name", "GPU") for gpu in gpus]}
    devices = _devices(request.towers, request.on_cpu)
    if "turns" in request.measures:
        return {"turns": turns.measure(request.graphs, request.seconds)}
    model = models.MODELS[request.model]
    subject = names.parse(request.subject)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        _Run(subject, models.WARM, devices[:2], request, folder).train(())
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run = _Run(subject, model, devices, request, folder)
        run.train(request.measures)
        if "predict" in request.measures and subject.kind in ("one", "ours"):
            run.predict()
        if "export" in request.measures and subject.kind not in ("loop", "limit", "bound"):
            run.export()
    return {name: run.results[name] for name in request.measures if name in run.results}


def _devices(towers: int, on_cpu: bool) -> list[str]:
    """Returns K devices: GPUs where there are as many, else logical CPUs."""
    gpus = [] if on_cpu else tf.config.list_physical_devices("GPU")
    if len(gpus) >= towers:
        return [f"/device:GPU:{i}" for i in range(towers)]
    if gpus:
        raise ValueError(
            f"Towers run on GPUs where there are any: {towers} towers, {len(gpus)} GPUs. Ask for "
            "fewer towers, or for --cpu."
        )
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * towers
    tf.config.set_logical_device_configuration(cpu, logical)
    return [f"/device:CPU:{i}" for i in range(towers)]


class _Run:
    """A subject in an Estimator.

    Attributes:
        results: A number for each measure that was taken.
    """

    def __init__(
        self,
        subject: names.Subject,
        model: models.Model,
        devices: Sequence[str],
        request: names.Request,
        folder: str,
    ):
        self.results: dict[str, Any] = {}
        self._model, self._devices, self._request = model, devices, request
        self._folder, self._measures = folder, ()
        self._begun: float | None = None
        built = subjects.prepare(subject, model, devices, request.is_fed)
        self._has_dataset = request.is_fed or built.strategy is not None
        self._rows = model.batch
        if built.strategy is not None:
            self._rows //= len(devices)  # an input_fn makes the batch of one replica
        config = estimator.RunConfig(
            folder,
            tf_random_seed=1,
            train_distribute=built.strategy,
            session_config=_session_config(devices, subject.has_xla),
            save_summary_steps=None,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
        )
        self._estimator = estimator.Estimator(built.model_fn, config=config)
        self._call = self._estimator._call_model_fn
        self._estimator._call_model_fn = self._note_begin
        self._estimator._train_with_estimator_spec = self._take

    def train(self, measures: Sequence[str]) -> None:
        """Builds the training graph as the Estimator does, and measures it."""
        self._measures = measures
        self._estimator.train(self._input, steps=1)

    def _input(self) -> Any:
        if not self._has_dataset:
            return tuple(subjects.resident(*self._model.data()))
        # A strategy's replicas take one batch after the other: each gets rows of its own.
        batches = [
            array[: len(array) // self._rows * self._rows].reshape(-1, self._rows, *array.shape[1:])
            for array in self._model.data()
        ]
        return tf.data.Dataset.from_tensor_slices(tuple(batches)).repeat()

    def _note_begin(self, *args: Any, **kwargs: Any) -> Any:
        """The Estimator's call of its model_fn, once per replica of a strategy."""
        if self._begun is None:
            self._begun = time.perf_counter()
        return self._call(*args, **kwargs)

    def _take(self, spec: Any, worker_hooks: Any, hooks: Any, step: Any, listeners: Any) -> Any:
        """Runs the graph where the Estimator would."""
        self.results["build"] = time.perf_counter() - self._begun
        if set(self._measures) <= {"build"}:
            return None
        scaffold = spec.scaffold or tf1.train.Scaffold()
        creator = tf1.train.ChiefSessionCreator(scaffold, config=self._estimator._session_config)
        fetches = [spec.train_op, spec.loss]
        if "graph" in self._measures:
            turns.write(self._request.graphs[0], fetches, self._estimator._session_config)
            return None
        with tf1.train.MonitoredSession(creator, list(worker_hooks)) as monitored:
            monitored.run(fetches)
            self.results["first"] = time.perf_counter() - self._begun
            after_first = _peak()
            session = monitored._tf_sess()
            self.results["nodes"] = _nodes(session.graph)
            if {"steps", "growth"} & set(self._measures):
                self.results["steps"] = _rate(session.make_callable(fetches), self._request)
            self.results["memory"] = _peak()
            self.results["growth"] = self.results["memory"] - after_first
            if "profile" in self._measures:
                self.results["profile"] = profiling.profile(session, fetches)
            if {"checkpoint", "export"} & set(self._measures):
                begun = time.perf_counter()
                scaffold.saver.save(
                    session, os.path.join(self._folder, "model.ckpt"), global_step=1
                )
                self.results["checkpoint"] = time.perf_counter() - begun
        return None

    def predict(self) -> None:
        """Measures predictions, of the same batch again and again."""
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            features, _ = subjects.resident(*self._model.data())
            spec = self._call(features, None, "infer", self._estimator.config)
            with tf1.Session(config=self._estimator._session_config) as session:
                session.run(tf1.global_variables_initializer())
                rate = _rate(session.make_callable(spec.predictions["logits"]), self._request)
        self.results["predict"] = rate * self._model.batch

    def export(self) -> None:
        """Measures an export of what was saved."""

        def receiver() -> Any:
            fed, _ = self._model.data()
            features = tf1.placeholder(fed.dtype, [None, *fed.shape[1:]])
            return estimator.export.TensorServingInputReceiver(features, features)

        begun = time.perf_counter()
        self._estimator.export_saved_model(os.path.join(self._folder, "export"), receiver)
        self.results["export"] = time.perf_counter() - begun


def _session_config(devices: Sequence[str], has_xla: bool) -> Any:
    """The Estimator's own session settings, with all logical CPUs shown to the session."""
    config = tf1.ConfigProto(allow_soft_placement=True)
    if has_xla:
        config.graph_options.optimizer_options.global_jit_level = tf1.OptimizerOptions.ON_1
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = type(rewriting).ONE
    if "CPU" in devices[0]:
        config.device_count["CPU"] = len(devices)
    else:
        config.gpu_options.allow_growth = True
    return config


def _rate(step: Any, request: names.Request) -> float:
    """Returns runs per second, after a warm-up of a quarter of the time."""
    warm_until = time.perf_counter() + request.seconds / 4
    while time.perf_counter() < warm_until:
        step()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + request.seconds:
        step()
        count += 1
    return count / (time.perf_counter() - begun)


def _nodes(graph: tf.Graph) -> int:
    definition = graph.as_graph_def()
    inner = sum(len(function.node_def) for function in definition.library.function)
    return len(definition.node) + inner


def _peak() -> float:
    """Returns the most memory that the process ever held, in MB."""
    divisor = 2**20 if os.uname().sysname == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / divisor
