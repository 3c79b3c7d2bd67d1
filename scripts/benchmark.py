#!/usr/bin/env python3
"""Measures what tests must not assert on: ratios of time or memory between two runs.

scripts/benchmark.py                  lists the measurements
scripts/benchmark.py embedding        runs one (or several): pairs of runs, one after the
                                      other, and the median of the pairs' ratios
scripts/benchmark.py steps_mlp_8 --beside ../before    beside another checkout
"""

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent

EMBEDDING = """
import resource, sys
from replicate.compat.tensorflow import tf, tf1
from replicate import estimator, model_fn
num_towers, strategy = int(sys.argv[1]), sys.argv[2]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)

def embedding_model_fn(features, labels, mode):
    e = tf1.get_variable("e", [1_000_000, 64], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(e, features) - 1.0))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

with tf.Graph().as_default():
    tf1.train.create_global_step()
    replicated = model_fn.replicate_model_fn(
        embedding_model_fn,
        lambda: tf1.train.GradientDescentOptimizer(0.1),
        num_towers,
        strategy=strategy,
    )
    ids = tf.random.uniform([1024], 0, 1_000_000, tf.int32)
    spec = replicated(ids, None, "train")
    with tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(spec.train_op)  # copies that share the memory of their start part now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20):
            session.run(spec.train_op)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""

TRAINING = """
import sys, time
from replicate.compat.tensorflow import tf, tf1
from replicate import estimator, model_fn
what, model, num_towers, strategy = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
SIZES = {"mlp": (128, 784), "deep": (128, 64)}

def layers(x):
    if model == "mlp":
        for units in (256, 256):
            x = tf1.layers.dense(x, units, tf.nn.relu)
        return tf1.layers.dense(x, 10)
    for _ in range(50):
        x = x + tf1.layers.dense(x, 64, tf.nn.relu)
    return tf1.layers.dense(x, 10)

def the_model_fn(features, labels, mode):
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, layers(features))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

def built(towers):
    tf1.train.create_global_step()
    features = tf1.placeholder_with_default(tf.random.normal(SIZES[model]), [None, SIZES[model][1]])
    labels = tf1.placeholder_with_default(tf.zeros(SIZES[model][:1], tf.int32), [None])
    replicated = model_fn.replicate_model_fn(
        the_model_fn, lambda: tf1.train.AdamOptimizer(), towers, strategy=strategy,
        loss_reduction="mean" if "mean" in sys.argv else None,
    )
    start = time.perf_counter()
    spec = replicated(features, labels, "train")
    return spec, time.perf_counter() - start

with tf.Graph().as_default():
    built(1)  # what TensorFlow loads on first use
with tf.Graph().as_default():
    spec, seconds = built(num_towers)
    if what == "steps":
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            step = session.make_callable([spec.train_op, spec.loss])
            for _ in range(20):
                step()
            start, count = time.perf_counter(), 0
            while time.perf_counter() < start + 6.0:
                step()
                count += 1
            seconds = (time.perf_counter() - start) / count
print(seconds)
"""


def run(code: str, *args: str, root: pathlib.Path = ROOT) -> float:
    """Runs code in a process of its own and returns the number that it prints last."""
    environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return float(done.stdout.split()[-1])


def embedding(strategy: str) -> tuple[float, float]:
    """Peak bytes that 20 steps add, over the bytes of an embedding of 1,000,000 x 64.

    Returns:
        4 towers, and one device. A dense gradient would add 1.0 or more.
    """
    size = 1_000_000 * 64 * 4
    return run(EMBEDDING, "4", strategy) / size, run(EMBEDDING, "1", strategy) / size


def training(what: str, model: str, towers: int, strategy: str, beside: str | None) -> tuple:
    """Seconds to build a training graph, or for each of its steps.

    Args:
        what: `"building"` or `"steps"`.
        model: `"mlp"` (784-256-256-10) or `"deep"` (50 residual dense layers of 64).
        towers: K.
        strategy: A strategy's name.
        beside: Another checkout, which must be told that losses are means; None: one device.

    Returns:
        K towers here, and there (or on one device).
    """
    here = run(TRAINING, what, model, str(towers), strategy)
    if beside is None:
        return here, run(TRAINING, what, model, "1", strategy)
    root = pathlib.Path(beside).resolve()
    return here, run(TRAINING, what, model, str(towers), strategy, "mean", root=root)


MEASUREMENTS = {
    "embedding": lambda beside: embedding("parameter_server"),
    "embedding_mirrored": lambda beside: embedding("mirrored"),
}
for _what in ("building", "steps"):
    for _model in ("mlp", "deep"):
        for _towers in (2, 8):
            for _name, _strategy in (("", "parameter_server"), ("_mirrored", "mirrored")):
                MEASUREMENTS[f"{_what}_{_model}_{_towers}{_name}"] = functools.partial(
                    training, _what, _model, _towers, _strategy
                )


def main() -> None:
    """Runs the measurements that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how many pairs of runs (3)")
    parser.add_argument("--beside", help="another checkout, instead of one device")
    options = parser.parse_args()
    if not options.names:
        print("\n".join(MEASUREMENTS))
    for name in options.names:
        pairs = [MEASUREMENTS[name](options.beside) for _ in range(options.pairs)]
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        ratio = statistics.median(left / right for left, right in pairs)
        shown = ", ".join(f"{left:.4f} : {right:.4f}" for left, right in pairs)
        print(f"{name}: ratio {ratio:.3f}, medians {medians[0]:.4f} : {medians[1]:.4f}   ({shown})")


if __name__ == "__main__":
    main()
