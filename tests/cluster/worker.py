"""One worker of a cluster, in a process of its own: `worker.py FILE NUMBER SIZE WORKS...`.

The address of each worker is chosen by the system: a worker writes down its own, and waits
for the others'. One whose number is SIZE is the evaluator. What comes out is written to files
beside these. A work is the name of a case, or of a function below. Environment variables say
how many TOWERS each worker has, for how many seconds one WAITED for another, the number of the
worker that is KILLED in its fifth step of `lasting`, of the one that is LOST in that of `losing`,
and of the one that comes LATE.
"""

import contextlib
import functools
import json
import logging
import os
import pathlib
import signal
import socket
import sys
import time
from typing import Any, NamedTuple

import numpy as np

import replicate
from replicate import errors, estimator
from replicate.compat.tensorflow import tf, tf1
from tests.cluster import cases

KILLED = {"lasting": "KILLED", "losing": "LOST"}  # the variables that say who is killed
_MANY, _WARM = 300, 30  # steps, and after how many of these all threads that stay are there
_LATE = 30.0  # seconds at most until the late one comes


class Worker(NamedTuple):
    """What a work is given.

    Attributes:
        folder: Where files go.
        number: Which worker this is.
        strategy: The strategy.
        cases: The cases, by name.
    """

    folder: pathlib.Path
    number: int
    strategy: Any
    cases: dict


def main(folder: pathlib.Path, number: int, size: int, works: list[str]) -> None:
    """Does the works that are named, one after the other."""
    addresses = _addresses(folder, number, size)
    job, index = ("worker", number) if number < size else ("evaluator", 0)
    task = {"type": job, "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    if os.environ.get("LATE") == str(number):
        _await_word(folder, f"waits for worker:{number}")

    logging.getLogger("replicate").addHandler(logging.StreamHandler())
    tf1.disable_eager_execution()
    towers = int(os.environ.get("TOWERS", "2"))
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * towers
    )
    strategy = replicate.MultiWorkerStrategy(
        devices=towers, timeout=float(os.environ.get("WAITED", "30")), communication="ring"
    )
    worker = Worker(folder, number, strategy, cases.cases_of(size))
    for name in works:
        begun = time.monotonic()
        globals().get(name, train)(worker, name)
        print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)


def train(worker: Worker, name: str) -> None:
    """Trains a case, and evaluates where it says so."""
    case = worker.cases[name]
    seen = _Seen()
    given = _batches(worker, name)
    estimator = _estimator(worker, name, case)
    listeners = [_Slow()] if case.is_evaluated and worker.strategy.is_chief else None
    estimator.train(given, hooks=[seen], saving_listeners=listeners)
    found = {}
    if case.is_evaluated:
        found["saved"] = int((estimator.latest_checkpoint() or "-0").rpartition("-")[2])
        metrics = estimator.evaluate(given)
        found.update({f"metric {key}": value for key, value in metrics.items()})
    np.savez(worker.folder / f"{name}-{worker.number}.npz", **seen.variables, **found)


class _Slow(tf1.train.CheckpointSaverListener):
    """Makes each checkpoint take its time."""

    def before_save(self, session, global_step_value):
        time.sleep(0.5)


def _batches(worker: Worker, name: str) -> Any:
    case = worker.cases[name]
    given = cases.batches_of(case, worker.number)
    return lambda: cases.dataset(case, given)


def _estimator(
    worker: Worker, name: str, case: Any, model: Any = None, saves: int | None = None, **options
) -> Any:
    config = worker.strategy.run_config(
        model_dir=str(worker.folder / name),
        log_step_count_steps=None,
        save_summary_steps=2,
        save_checkpoints_steps=saves or (1000 if case.is_evaluated else None),
        save_checkpoints_secs=None,
    )
    return estimator.Estimator(
        replicate.replicate_model_fn(
            model or cases.model_of(case, estimator.EstimatorSpec),
            case.optimizer,
            strategy=worker.strategy,
            **{**case.options, **options},
        ),
        config=worker.strategy.evaluating_together(config),
    )


def losing(worker: Worker, name: str) -> None:
    """The same, without the evaluator."""
    if worker.strategy.cluster.position is not None:
        lasting(worker, name)


def lasting(worker: Worker, name: str) -> None:
    """Trains eight steps, unless a worker is killed, and goes on where it was stopped."""
    case = cases.STEADY
    given = cases.batches_of(case, worker.number % len(case.rows))

    def each(number, context):
        if number == 5 and os.environ.get(KILLED[name]) == str(worker.number):
            os.kill(os.getpid(), signal.SIGKILL)

    seen = _Seen(each)
    estimator.train_and_evaluate(
        _estimator(worker, name, case, saves=2),
        estimator.TrainSpec(lambda: cases.dataset(case, given).repeat(), 8, hooks=[seen]),
        estimator.EvalSpec(lambda: cases.dataset(case, given), start_delay_secs=0, throttle_secs=0),
    )
    np.savez(worker.folder / f"{name}-{worker.number}.npz", **seen.variables)


def _steady(worker: Worker, name: str, each: Any, **options) -> "_Seen":
    """Trains on a batch that comes again and again."""
    case, seen = cases.STEADY, _Seen(each)
    given = cases.batches_of(case, worker.number)
    _estimator(worker, name, case).train(
        lambda: cases.dataset(case, given).repeat(), hooks=[seen], **options
    )
    return seen


def leaving(worker: Worker, name: str) -> None:
    """Has a hook of one worker stop it after two steps; the others' input has no end."""

    def each(number, context):
        if number == 2 and worker.number == 1:
            context.request_stop()

    seen = _steady(worker, name, each)
    np.savez(worker.folder / f"{name}-{worker.number}.npz", **seen.variables)


def many(worker: Worker, name: str) -> None:
    """Trains many quick steps, and writes down how many threads there are at first and at last."""
    found = []

    def each(number, context):
        if number in (_WARM, _MANY):
            found.extend(_threads())

    _steady(worker, name, each, max_steps=_MANY)
    (worker.folder / f"{name}-{worker.number}.json").write_text(json.dumps(found))


def refusals(worker: Worker, name: str) -> None:
    """Tries to begin with what differs between workers, and writes down how that is refused."""
    case = worker.cases["sgd"]
    number, said = worker.number, {}

    plain = cases.model_of(case, estimator.EstimatorSpec)

    def other_model(features, labels, mode):
        tf1.get_variable("other" if number else "same", [2])
        return plain(features, labels, mode)

    @contextlib.contextmanager
    def noted(what):
        worker.strategy.compared.clear()
        try:
            yield
        except errors.ClusterError as error:
            said[what] = str(error)

    with noted("config"):
        worker.strategy.compared.update({"optimizer.learning_rate": 0.1 * (1 + number)})
        _estimator(worker, name, case).train(_batches(worker, "sgd"))
    with noted("model"):
        _estimator(worker, name, case, other_model).train(_batches(worker, "sgd"))
    with noted("options"):
        _estimator(worker, name, case, accumulate_steps=1 + number).train(_batches(worker, "sgd"))
    worker.strategy.compared.clear()
    (worker.folder / f"{name}-{number}.json").write_text(json.dumps(said))


def exporting(worker: Worker, name: str) -> None:
    """Exports a checkpoint in each worker, by TensorFlow's function and by ours."""

    def model(features, labels, mode):
        return estimator.EstimatorSpec(mode, {"y": cases.dense(features)})

    def receiver():
        x = tf1.placeholder(tf.float64, [None, cases.WIDTH])
        return estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    trained, said = _estimator(worker, cases.SAVED, worker.cases[cases.SAVED], model), []
    ours = functools.partial(replicate.export_saved_model, trained)
    for kind, export in {"theirs": trained.export_saved_model, "ours": ours}.items():
        place = worker.folder / f"{kind}-{worker.number}"
        try:
            said.append(export(str(place), receiver).decode())
        except replicate.errors.RunError as error:
            said.append(str(error))
    (worker.folder / f"{name}-{worker.number}.json").write_text(json.dumps(said))


def core(worker: Worker, name: str) -> None:
    """Uses the strategy without a model_fn."""
    strategy, number = worker.strategy, worker.number
    values = tf.VariableAggregation
    with tf.Graph().as_default(), strategy.scope():
        v = tf1.get_variable("v", initializer=10.0 + number)  # the first worker's is everybody's
        w = tf1.get_variable("w", initializer=10.0)
        own = tf1.get_variable(
            "own",
            initializer=0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=values.SUM,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )

        def across(strategy, x, slices):
            means = strategy.batch_reduce(values.MEAN, [(x, v), (x, w)])
            total = strategy.reduce(values.SUM, x, v)
            updated = strategy.update(v, lambda copy, by: copy.assign_add(by), total)
            together = strategy.unwrap(strategy.reduce(values.SUM, slices, w))[0]
            return total, means[1], strategy.group(updated), tf.convert_to_tensor(together)

        def tower():
            context = replicate.get_tower_context()
            x = tf.constant(1.0 + context.tower_id)
            place = tf.constant([context.tower_id])
            slices = tf.IndexedSlices(tf.reshape(x, [1]), place, tf.constant([4]))
            found = context.merge_call(across, x, slices)
            step = tf1.train.GradientDescentOptimizer(1.0).minimize(w * x)
            replica = tf.distribute.get_replica_context()
            return (*found, own.assign_add(x), step, replica.num_replicas_in_sync)

        made = strategy.call_for_each_tower(tower)
        total, mean, updated, dense, added, step, count = made
        with tf1.control_dependencies([strategy.group(added)]):
            read = strategy.read_var(own)
        fetched = {"sum": total, "mean": mean, "slices": dense, "read": read, "begun with": v}
        fetched["broadcast"] = strategy.broadcast(tf.constant(3.0))
        fetched = {key: strategy.unwrap(value)[0] for key, value in fetched.items()}
        steps = [strategy.group(updated), strategy.group(step)]
        begin = strategy.begin()
        config = tf1.ConfigProto()
        strategy.configure(config)
        with tf1.Session(strategy.start(), config=config) as session:
            strategy.agree({"what the test builds": "the same"})
            session.run(tf1.local_variables_initializer())
            if strategy.is_chief:
                session.run(tf1.global_variables_initializer())
            session.run(begin)
            found = session.run(fetched)
            session.run(steps)
            found.update(session.run({"v": v, "w": w}), count=count)
    np.savez(worker.folder / f"{name}-{number}.npz", **found)


def ending(worker: Worker, name: str) -> None:
    """Meets behind a step that has failed in all workers, again and again."""
    strategy = worker.strategy
    with tf.Graph().as_default(), strategy.scope():
        workers = strategy.workers
        (found,) = workers.sum([tf.constant([1])])
        failing = tf.debugging.Assert(found[0] > 2, ["all have come"])
        meeting = workers.meeting()
        config = tf1.ConfigProto()
        strategy.configure(config)
        threads = []
        with tf1.Session(strategy.start(), config=config) as session:
            for number in range(_MANY):
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    session.run(failing)
                session.run(meeting)
                session.run(found)
                threads += _threads() if number in (_WARM, _MANY - 1) else []
    (worker.folder / f"{name}-{worker.number}.json").write_text(json.dumps(threads))


def _threads() -> list[int]:
    """Returns how many threads there are, where that can be told."""
    return [len(os.listdir("/proc/self/task"))] if sys.platform == "linux" else []


class _Seen(tf1.train.SessionRunHook):
    """Looks on: the variables after the last step, and what is done after each step.

    Args:
        each: Is called after each step with its number, and the context of the run.
    """

    def __init__(self, each=lambda number, context: None):
        self._each, self._steps = each, 0
        self.variables: dict = {}

    def begin(self):
        self._variables = {
            f"{variable.op.name.replace('/', '|')} of tower {i}": copy.read_value()
            for variable in tf1.global_variables()
            for i, copy in enumerate(getattr(variable, "members", (variable,)))
        }

    def after_run(self, context, values):
        self._steps += 1
        self._each(self._steps, context)

    def end(self, session):
        self.variables = session.run(self._variables)


def _addresses(folder: pathlib.Path, number: int, size: int) -> list[str]:
    """Returns the addresses of all workers, of which each has chosen its own."""
    if number < size:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            own = f"127.0.0.1:{listening.getsockname()[1]}"
        (folder / f"{number}.part").write_text(own)
        (folder / f"{number}.part").rename(folder / f"{number}.address")
    files = [folder / f"{i}.address" for i in range(size)]
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise SystemExit("no address of another worker has come")
        time.sleep(0.05)
    return [file.read_text() for file in files]


def _await_word(folder: pathlib.Path, word: str) -> None:
    """Waits until the first worker has said something."""
    deadline = time.monotonic() + _LATE
    while time.monotonic() < deadline and word not in (folder / "0.log").read_text():
        time.sleep(0.1)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
