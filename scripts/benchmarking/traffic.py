"""Bytes that devices hold and move in a step, counted in the graph."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from benchmarking import names, tables

_HEAD = "model K strategy held share /share sent received ring /ring rows".split()


def counted(models: Sequence[str], towers: Sequence[int]) -> str:
    """Builds each model under each strategy, and counts.

    Args:
        models: Some of `names.MODELS`.
        towers: Numbers of devices, K, each at least 2.

    Returns:
        A table in kB: what the busiest device holds of weights and slots, beside 1 / K of them;
        the most that one sends, and that one receives, beside 2 (K - 1) / K of the weights; and
        which part of what the first one sends are rows of the batch.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    warnings.simplefilter("ignore")
    from replicate import devices

    devices.make_logical_cpus(max(towers))
    table = [_HEAD]
    for model in models:
        for number in towers:
            for strategy in names.STRATEGIES:
                sizes = _sizes(model, number, strategy)
                ratios = sizes[0] / sizes[1], max(sizes[2:4]) / sizes[4]
                of_share, of_ring = (tables.shown(ratio, 2) for ratio in ratios)
                held, share, *moved, rows = (tables.shown(size / 1e3, 1) for size in sizes)
                row = [model, str(number), strategy, held, share, of_share]
                table.append([*row, *moved, of_ring, rows])
                print(" ".join(table[-1]), file=sys.stderr, flush=True)
    return tables.aligned(table)


def _sizes(name: str, towers: int, strategy: str) -> tuple[float, ...]:
    """Returns the numbers of a row, in bytes."""
    from benchmarking import models, subjects
    from replicate.app.inspect import description
    from replicate.compat.tensorflow import tf, tf1

    model = models.MODELS[name]
    cpus = [f"/device:CPU:{number}" for number in range(towers)]
    subject = names.parse(f"ours:{strategy}")
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        with tf.device(cpus[0]):
            dataset = tf.data.Dataset.from_tensors(model.data()).repeat()
            batches = tf1.data.make_initializable_iterator(dataset)
            batch = batches.get_next()
        spec = subjects.prepare(subject, model, cpus, True).model_fn(*batch, "train")
        step = [spec.train_op, spec.loss]
        kept = [one for one in description.find_variables() if one.kind in ("weight", "slot")]
        moved = _transfers(step, [tf1.global_variables_initializer(), batches.initializer], towers)
    weights = sum(one.bytes for one in kept if one.kind == "weight")
    return (
        max(sum(one.bytes for one in kept if cpu in one.devices) for cpu in cpus),
        sum(one.bytes for one in kept) / towers,
        max(sum(one.bytes for one in moved if one.source == cpu) for cpu in cpus),
        max(sum(one.bytes for one in moved if one.target == cpu) for cpu in cpus),
        2 * (towers - 1) * weights / towers,
        sum(array.nbytes for array in model.data()) * (towers - 1) / towers,
    )


def _transfers(step: list, first: list, towers: int) -> list:
    """Returns what travels; shapes that only a run can tell are those of one step."""
    from replicate.app.inspect import traffic
    from replicate.compat.tensorflow import tf, tf1

    unknown: list[Any] = []
    if not any(one.unsized for one in traffic.transfers(step, unknown.append)):
        return traffic.transfers(step)
    shapes = []
    for tensor in unknown:
        with tf.device(tensor.device):
            shapes.append(tf.shape(tensor))
    with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": towers})) as session:
        session.run(first)
        _, sizes = session.run([step, shapes])
    known = {
        tensor.ref(): tf.TensorShape(size) for tensor, size in zip(unknown, sizes, strict=True)
    }
    found = traffic.transfers(step, lambda tensor: known.get(tensor.ref()))
    if any(one.unsized for one in found):
        raise RuntimeError(f"What travels must have a size after a step; got {found}.")
    return found
