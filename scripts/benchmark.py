#!/usr/bin/env python3
"""Measures what tests must not assert on: ratios of time or memory between two runs.

scripts/benchmark.py                  lists the measurements
scripts/benchmark.py embedding        runs one (or several): pairs of runs, one after the
                                      other, and the median of the pairs' ratios
"""

import argparse
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

BUILDING = """
import sys, time
from replicate.compat.tensorflow import tf, tf1
from replicate import estimator, model_fn
num_towers, strategy, reduction = int(sys.argv[1]), sys.argv[2], sys.argv[3]
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)

def deep_model_fn(features, labels, mode):
    penalty = lambda w: 0.01 * tf.nn.l2_loss(w)
    hidden = features
    for _ in range(50):
        hidden = tf1.layers.dense(hidden, 16, tf.nn.relu, kernel_regularizer=penalty)
    loss = tf.reduce_mean(tf.square(hidden - labels)) + tf1.losses.get_regularization_loss()
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

def build(towers):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        rows = tf1.placeholder(tf.float32, [None, 16])
        replicated = model_fn.replicate_model_fn(
            deep_model_fn,
            lambda: tf1.train.AdamOptimizer(),
            towers,
            strategy=strategy,
            loss_reduction=reduction,
        )
        start = time.perf_counter()
        replicated(rows, rows, "train")
        return time.perf_counter() - start

build(1)
print(build(num_towers))
"""


def run(code: str, *args: str) -> float:
    """Runs code in a process of its own and returns the number that it prints last."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
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


def building(strategy: str, reduction: str) -> tuple[float, float]:
    """Seconds that the training graph of 50 dense layers takes to build.

    Returns:
        8 towers, and one device.
    """
    return run(BUILDING, "8", strategy, reduction), run(BUILDING, "1", strategy, reduction)


MEASUREMENTS = {
    "building": lambda: building("parameter_server", "mean"),
    "building_mirrored": lambda: building("mirrored", "mean"),
    "building_sum": lambda: building("parameter_server", "sum"),
    "embedding": lambda: embedding("parameter_server"),
    "embedding_mirrored": lambda: embedding("mirrored"),
}


def main() -> None:
    """Runs the measurements that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=3, help="how many pairs of runs (3)")
    options = parser.parse_args()
    if not options.names:
        print("\n".join(MEASUREMENTS))
    for name in options.names:
        pairs = [MEASUREMENTS[name]() for _ in range(options.pairs)]
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        shown = ", ".join(f"{left:.3f} : {right:.3f}" for left, right in pairs)
        print(f"{name}: median {medians[0]:.3f} : {medians[1]:.3f}   (pairs {shown})")


if __name__ == "__main__":
    main()
