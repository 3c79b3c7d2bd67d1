"""What the chief and the worker of a cluster do whose variables are on parameter servers."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import replicate
from replicate.compat.tensorflow import tf, tf1
from tests.cluster import acts, task
from tests.splitting import estimators, servers_task

CASES: dict[str, dict] = {
    "momentum": {"optimizer_fn": lambda: tf1.train.MomentumOptimizer(0.1, 0.9)},
    "accumulated": {
        "optimizer_fn": lambda: tf1.train.GradientDescentOptimizer(0.1),
        "accumulate_steps": 2,
        "clip_global_norm": 0.05,
    },
    "inside": {},
    "sliced": {"optimizer_fn": lambda: tf1.train.AdagradOptimizer(0.1)},
    "one": {"optimizer_fn": lambda: tf1.train.AdamOptimizer(0.01, epsilon=1e-3), "devices": 1},
}
SIZES = ((2, 4, 1), (5, 3, 2))  # of the chief's and the worker's batches


def model_of(name: str) -> Callable:
    """Returns the model_fn of a case; its table has two parts, or is whole to the model."""
    if name == "sliced":
        return estimators.model

    def parted(features, labels, mode):
        with tf1.variable_scope("parted", partitioner=tf1.fixed_size_partitioner(2)):
            return estimators.model(features, labels, mode)

    if name != "inside":
        return parted
    return estimators.stepping(lambda: tf1.train.AdamOptimizer(0.01, epsilon=1e-3), parted)


def made(folder: pathlib.Path, name: str, **options) -> Any:
    """Returns the Estimator of a case in the cluster."""
    optimizer_fn = options.pop("optimizer_fn", None)
    options = {"devices": servers_task.DEVICES, **options}
    if name == "sliced":
        devices = options.pop("devices")
        options["strategy"] = replicate.ParameterServerStrategy(devices, slice_bytes=1)
    return acts.made(folder, name, model_of(name), optimizer_fn, tower_building="split", **options)


def serve(folder: pathlib.Path) -> None:
    """Keeps variables until the process is killed."""
    spec = acts.train_spec()
    replicate.estimator.train_and_evaluate(made(folder, "inside"), spec, acts.eval_spec())


def train(folder: pathlib.Path, job: str) -> None:
    """Trains each case alone, as the chief, and then one together with the worker."""
    company = task.Company(folder, job)
    if company.is_chief:
        for name, options in CASES.items():
            seen = acts.Seen()
            made(folder, name, **options).train(estimators.input_fn, hooks=[seen])
            told(company, name, seen)
            acts.reset()
    company.meet("together")
    # Gradients that do not depend on weights: it does not matter which step is the first.
    optimizer_fn = lambda: tf1.train.GradientDescentOptimizer(0.5)  # noqa: E731
    both = acts.made(folder, "together", linear, optimizer_fn, tower_building="split")
    sizes = SIZES[0 if company.is_chief else 1]
    seen = Stepping(lambda number, session: company.meet(f"step-{number}"))
    both.train(lambda: estimators.input_fn(sizes=sizes), hooks=[seen])
    told(company, "together", seen)
    company.meet("end")


class Stepping(acts.Seen):
    """Ends after as many steps as there are batches."""

    def after_run(self, context, values):
        super().after_run(context, values)
        if self.steps == len(SIZES[0]):
            context.request_stop()


def linear(features, labels, mode):
    """A loss that is linear in the weights."""
    w = tf1.get_variable("w", [estimators.WIDTH, 1], tf.float64, tf1.zeros_initializer())
    loss = tf.reduce_mean(features["x"] @ w)
    return replicate.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def told(company: Any, name: str, seen: Any) -> None:
    """Writes down what came of a case."""
    company.save(name, seen.values)
    operations = {kind: sorted(devices) for kind, devices in seen.operations.items()}
    company.note(
        f"{name}-{company.own}.json",
        json.dumps({"places": seen.places, "operations": operations, "steps": seen.steps}),
    )
