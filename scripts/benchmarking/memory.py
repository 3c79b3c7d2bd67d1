"""What a training step holds beside variables, by the number of micro-batches of a device."""

import logging
import multiprocessing
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarking import tables

MODELS = ("mlp", "bert", "cnn")
_STEPS = 2


class Measured(NamedTuple):
    """Some steps of one model in one process, after one that is not counted.

    Attributes:
        peak: What steps hold at most beside what is there between them, in MB.
        rate: Steps per second.
    """

    peak: float
    rate: float


def measured(models: Sequence[str], numbers: Sequence[int]) -> str:
    """Trains each model in several numbers of parts, each in a process of its own.

    Args:
        models: Some of `MODELS`.
        numbers: Of micro-batches; the first one is what others are set in ratio to.

    Returns:
        A table.
    """
    # Else allocators keep what is free, and a process never holds less than it did.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "262144", "TF_ENABLE_ONEDNN_OPTS": "0"}
    rows = [["model", "micro-batches", "MB of a step", "ratio", "steps/s", "ratio"]]
    for model in models:
        found: list[Measured] = []
        for number in numbers:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found.append(pool.apply(_measure, (model, number)))
            first, last = found[0], found[-1]
            ratios = last.peak / first.peak, last.rate / first.rate
            memory, speed = (tables.shown(ratio, 2) for ratio in ratios)
            shown = [tables.shown(last.peak, 0), memory, tables.shown(last.rate, 2), speed]
            rows.append([model, str(number), *shown])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return tables.aligned(rows)


def _measure(name: str, number: int) -> Measured:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    import replicate
    from replicate.compat.tensorflow import tf, tf1

    model_fn, batch = {"mlp": _mlp, "bert": _bert, "cnn": _cnn}[name]()
    model_fn = replicate.replicate_model_fn(model_fn, devices=["/cpu:0"], micro_batches=number)
    config = tf1.ConfigProto(allow_soft_placement=True)  # as an Estimator's
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = type(rewriting).ONE
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        batches = tf1.data.make_initializable_iterator(dataset)
        spec = model_fn(*batches.get_next(), "train")
        with tf1.Session(config=config) as session:
            session.run([tf1.global_variables_initializer(), batches.initializer])
            step = session.make_callable([spec.loss, spec.train_op])
            step()
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
            before, begun = _status("VmRSS"), time.perf_counter()
            for _ in range(_STEPS):
                step()
            seconds = time.perf_counter() - begun
            return Measured(_status("VmHWM") - before, _STEPS / seconds)


def _status(key: str) -> float:
    """Returns an entry of this process's status, in MB."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def _stepping(make_loss: Callable[[Any, Any], Any]) -> Callable:
    """Returns a model_fn of a loss, with plain gradient descent: its optimizer holds nothing."""
    from replicate import estimator
    from replicate.compat.tensorflow import tf1

    def model_fn(features, labels, mode):
        loss = make_loss(features, labels)
        step = tf1.train.get_global_step()
        train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _mlp() -> tuple[Callable, tuple]:
    """12 layers of 1,024, and a loss of some of 4,096 rows."""
    import numpy as np

    from replicate.compat.tensorflow import tf, tf1

    def loss(features, labels):
        for _i in range(12):
            start = tf1.initializers.random_normal(stddev=0.04)
            features = tf1.layers.dense(features, 1024, tf.nn.relu, kernel_initializer=start)
        logits = tf1.layers.dense(features, 10)
        weights = tf.cast(labels > 3, tf.float32)
        return tf1.losses.sparse_softmax_cross_entropy(labels, logits, weights)

    numbers = np.random.RandomState(0)
    batch = numbers.standard_normal((4096, 1024)).astype(np.float32)
    return _stepping(loss), (batch, numbers.randint(0, 10, 4096).astype(np.int32))


def _cnn() -> tuple[Callable, tuple]:
    """6 convolutions of 32 filters over 512 pictures of 32 x 32."""
    import numpy as np

    from replicate.compat.tensorflow import tf, tf1

    def loss(features, labels):
        for _ in range(6):
            features = tf1.layers.conv2d(features, 32, 3, padding="same", activation=tf.nn.relu)
        logits = tf1.layers.dense(tf.reduce_mean(features, [1, 2]), 10)
        return tf1.losses.sparse_softmax_cross_entropy(labels, logits)

    numbers = np.random.RandomState(0)
    batch = numbers.standard_normal((512, 32, 32, 3)).astype(np.float32)
    return _stepping(loss), (batch, numbers.randint(0, 10, 512).astype(np.int32))


def _bert() -> tuple[Callable, tuple]:
    """The BERT of the other commands, of 512 sentences."""
    from benchmarking import models

    model = models.MODELS["bert"]._replace(batch=512)
    return _stepping(model.make_loss), model.data()
