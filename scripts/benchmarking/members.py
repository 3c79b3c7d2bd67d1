"""One task of a cluster that is measured: a process of its own, told its part by `TF_CONFIG`.

Batches come from a `tf.data.Dataset`, each worker its rows of them; no checkpoints, no summaries.
The first task says on stdout when the timed steps begin and when they have ended, and waits each
time until somebody has taken note.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from benchmarking import formula, models, names, shapes, subjects
from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.strategy.cluster import cluster, membership
from replicate.strategy.policies import multi_worker, parameter_server

TIMEOUT = 60.0  # seconds that a worker waits for another one
BEGIN, END = "begin", "end"


def work(request: Mapping[str, Any]) -> None:
    """Trains, and writes what was measured to stdout.

    Args:
        request: subject, model, workers and servers (how many), number (this one's), warm and
            steps (how many), folder, and trace: the name of a file for a profile, or None.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TensorFlow prints is no answer

    def say(found: Mapping[str, Any]) -> None:
        if request["number"] == 0:
            print(json.dumps(found), file=answers, flush=True)

    def meet(place: str) -> None:
        say({"at": place})
        if request["number"] == 0:
            sys.stdin.readline()

    tf1.logging.set_verbosity(tf1.logging.ERROR)
    warnings.simplefilter("ignore")
    subject = names.parse(request["subject"])
    clock = _Clock(request, meet)
    train = {"ours": _ours, "mirrored": _mirrored, "one": _one, "servers": _servers}
    train["sliced"] = _servers
    train[subject.kind](request, clock)
    say(clock.found)


def _input_fn(request: Mapping[str, Any], parts: int) -> Callable:
    """Returns what makes this worker's rows of each batch, as a dataset."""
    model = models.MODELS[request["model"]]
    rows = model.batch // parts
    first = rows * request["number"] if parts > 1 else 0

    def input_fn():
        arrays = tuple(array[first : first + rows] for array in model.data())
        return tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(rows).prefetch(2)

    return input_fn


def _run_config(request: Mapping[str, Any], **options: Any) -> Any:
    return estimator.RunConfig(
        request["folder"],
        tf_random_seed=1,
        save_summary_steps=None,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
        **options,
    )


def _ours(request: Mapping[str, Any], clock: "_Clock") -> None:
    model = models.MODELS[request["model"]]
    strategy = multi_worker.MultiWorkerStrategy(
        devices=["/device:CPU:0"], timeout=TIMEOUT, communication="ring"
    )
    replicated = model_fn.replicate_model_fn(
        subjects.plain(model, has_optimizer=False), model.make_optimizer, strategy=strategy
    )
    made = estimator.Estimator(clock.noting(replicated), config=_run_config(request))
    made.train(_input_fn(request, request["workers"]), hooks=[clock], max_steps=clock.last)


def _mirrored(request: Mapping[str, Any], clock: "_Clock") -> None:
    """MultiWorkerMirroredStrategy; in clusters Estimators take it in `train_and_evaluate` alone."""
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING,
        timeout_seconds=TIMEOUT,
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    model = models.MODELS[request["model"]]
    config = _run_config(request, train_distribute=strategy)
    made = estimator.Estimator(subjects.plain(model, has_optimizer=True), config=config)
    input_fn = _input_fn(request, request["workers"])
    if request["workers"] == 1:
        made.train(input_fn, hooks=[clock], max_steps=clock.last)
        return
    estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(input_fn, max_steps=clock.last, hooks=[clock]),
        estimator.EvalSpec(input_fn, steps=1),
    )


def _servers(request: Mapping[str, Any], clock: "_Clock") -> None:
    """Parameter servers, asynchronous: each worker with batches of its own, of as many rows."""
    found = cluster.of()
    if found.position is None:
        membership.serve(found)
    model, devices = models.MODELS[request["model"]], ["/device:CPU:0"]
    options: dict[str, Any] = {"devices": devices}
    if request["subject"] == "sliced":
        slices = subjects.SLICE_BYTES
        strategy = parameter_server.ParameterServerStrategy(devices, found, slice_bytes=slices)
        options = {"strategy": strategy}
    replicated = model_fn.replicate_model_fn(
        subjects.plain(model, has_optimizer=False), model.make_optimizer, **options
    )
    made = estimator.Estimator(clock.noting(replicated), config=_run_config(request))
    # NOTE: the other workers go on until they are ended.
    made.train(_input_fn(request, request["workers"]), hooks=[clock])


def _one(request: Mapping[str, Any], clock: "_Clock") -> None:
    """One device, on the whole batch."""
    model = models.MODELS[request["model"]]
    made = estimator.Estimator(
        subjects.plain(model, has_optimizer=True), config=_run_config(request)
    )
    made.train(_input_fn(request, 1), hooks=[clock], max_steps=clock.last)


class _Clock(tf1.train.SessionRunHook):
    """Times steps, and counts what workers join.

    Attributes:
        last: After how many steps the training ends.
        found: A number for each measure that was taken.
    """

    def __init__(self, request: Mapping[str, Any], meet: Callable[[str], None]):
        self._warm, self._trace = request["warm"], request["trace"]
        self._workers, self._servers = request["workers"], request["servers"]
        self._is_alone = request["subject"] in names.ON_SERVERS  # others are not waited for
        self._step: list | None = None
        self._timed = request["steps"]
        self._meet = meet
        self._count = 0
        self._rows = models.MODELS[request["model"]].batch // request["workers"]
        self._begun = 0.0
        # NOTE: some steps more, so that no worker has ended while another one is being counted.
        self.last = self._warm + self._timed + 5
        self.found: dict[str, Any] = {}

    def noting(self, replicated: Callable) -> Callable:
        """Returns a model_fn whose step is looked at as well."""

        def noted(features, labels, mode, config):
            spec = replicated(features, labels, mode, config=config)
            self._step = [spec.train_op, spec.loss]
            return spec

        return noted

    def begin(self) -> None:
        """See base class."""
        graph = tf1.get_default_graph()
        if self._step is None:  # not ours: all that is in the graph
            joined = formula.collectives_of(graph.get_operations(), {})
        else:
            counts = shapes.row_counts(graph, self._rows)
            joined = formula.collectives_of(operations.executed_by(self._step), counts)
        figures = formula.ring(joined, self._workers)
        if self._step is not None and self._servers:
            joined, figures = [], formula.of_servers(self._step, self._workers, self._rows)
        self.found["collectives"] = len(joined)
        self.found["sent by formula"] = figures.sent
        self.found["received by formula"] = figures.received

    def before_run(self, run_context: Any) -> Any:
        """See base class."""
        if self._trace and self._count == self._warm + self._timed // 2:
            options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            return tf1.train.SessionRunArgs(None, options=options)
        return None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See base class."""
        self._count += 1
        if self._trace and run_values.run_metadata and run_values.run_metadata.ByteSize():
            with open(self._trace, "wb") as file:
                file.write(run_values.run_metadata.SerializeToString())
        if self._count == self._warm:
            self._meet(BEGIN)
            self._begun = time.perf_counter()
        elif self._count == self._warm + self._timed:
            self.found["steps"] = self._timed / (time.perf_counter() - self._begun)
            self._meet(END)
        elif self._is_alone and self._count == self.last:
            run_context.request_stop()
