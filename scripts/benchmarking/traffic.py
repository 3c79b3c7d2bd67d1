"""Bytes that devices hold and move in a step, counted in the graph."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarking import names, tables

_HEAD = "model K strategy held share /share sent received ring /ring rows".split()


class Sizes(NamedTuple):
    """Bytes of one model on K devices under one strategy.

    Attributes:
        held: Those of weights and slots on the device that holds most.
        share: 1 / K of all weights and slots.
        sent: What the device that sends most sends in a step.
        received: What the one that receives most receives.
        ring: 2 (K - 1) / K of the weights.
        rows: Which part of what the first device sends are rows of the batch.
    """

    held: float
    share: float
    sent: float
    received: float
    ring: float
    rows: float


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
    table = [_HEAD]
    for (model, number, strategy), one in sizes(models, towers).items():
        ratios = one.held / one.share, max(one.sent, one.received) / one.ring
        of_share, of_ring = (tables.shown(ratio, 2) for ratio in ratios)
        held, share, *moved, rows = (tables.shown(size / 1e3, 1) for size in one)
        row = [model, str(number), strategy, held, share, of_share]
        table.append([*row, *moved, of_ring, rows])
    return tables.aligned(table)


def sizes(models: Sequence[str], towers: Sequence[int]) -> dict[tuple[str, int, str], Sizes]:
    """Builds each model under each strategy; returns the bytes by model, K and strategy."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # it counts on CPUs
    warnings.simplefilter("ignore")
    from replicate import devices

    devices.make_logical_cpus(max(towers))
    found = {}
    for model in models:
        for number in towers:
            for strategy in names.STRATEGIES:
                found[model, number, strategy] = _sizes(model, number, strategy)
                print(f"counted: {model} {number} {strategy}", file=sys.stderr, flush=True)
    return found


def _sizes(name: str, towers: int, strategy: str) -> Sizes:
    """Returns the bytes of one model on K devices under one strategy."""
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
    return Sizes(
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
