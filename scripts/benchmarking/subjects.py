"""Who is measured: one device, replicate, TensorFlow's strategies, a loop, the limits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import replicate
from benchmarking import models, names
from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1

PARAMETER_DEVICE = "/device:CPU:0"
SLICE_BYTES = 2**17  # of the subject ours:sliced, which is "balanced" with slices


class Built(NamedTuple):
    """A subject, ready for an Estimator.

    Attributes:
        model_fn: What the Estimator calls.
        strategy: What RunConfig gets as train_distribute; None: nothing.
    """

    model_fn: Callable
    strategy: Any = None


def prepare(
    subject: names.Subject, model: models.Model, devices: Sequence[str], is_fed: bool
) -> Built:
    """Makes a subject for a model on K devices.

    Args:
        subject: Who, with its options.
        model: What is trained.
        devices: K names.
        is_fed: Whether batches come from the input_fn; else each tower of a strategy or of
            the limit has its shard on its device already.
    """
    if subject.kind == "one":
        with_optimizer = plain(model)

        def on_one(features, labels, mode):
            with tf.device(devices[0]):
                return with_optimizer(features, labels, mode)

        return Built(on_one)
    if subject.kind == "ours":
        return Built(_ours(subject, model, devices))
    if subject.kind in ("mirrored", "central"):
        return Built(_replica(model, len(devices), is_fed), _strategy(subject.kind, devices))
    make = {"loop": _loop, "limit": _limit, "bound": _bound}[subject.kind]

    def by_hand(features, labels, mode):
        loss, train_op = make(model, features, labels, devices)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return Built(by_hand)


def plain(model: models.Model, has_optimizer: bool = True) -> Callable:
    """The model as a model_fn for one device."""

    def the_model_fn(features, labels, mode):
        if mode == estimator.ModeKeys.PREDICT:
            return estimator.EstimatorSpec(
                mode, predictions={"logits": model.make_logits(features)}
            )
        loss = model.make_loss(features, labels)
        train_op = tf.no_op()
        if has_optimizer:
            step = tf1.train.get_global_step()
            train_op = model.make_optimizer().minimize(loss, global_step=step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return the_model_fn


def _ours(subject: names.Subject, model: models.Model, devices: Sequence[str]) -> Callable:
    chosen: dict[str, Any] = {"devices": list(devices), "strategy": subject.strategy}
    if subject.strategy == "sliced":
        sliced = replicate.LocalParameterServerStrategy(
            devices, placement="balanced", slice_bytes=SLICE_BYTES
        )
        chosen = {"strategy": sliced}
    if not subject.has_nccl:
        adding = replicate.ReductionToOneDevice()
        chosen = {"strategy": replicate.MirroredStrategy(list(devices), adding)}
    if subject.tower_building is not None:
        chosen["tower_building"] = subject.tower_building
    optimizer_fn = None if subject.has_own_optimizer else model.make_optimizer
    fn = plain(model, subject.has_own_optimizer)
    return model_fn.replicate_model_fn(fn, optimizer_fn, **chosen)


def _strategy(kind: str, devices: Sequence[str]) -> Any:
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy(list(devices))
    return tf.distribute.experimental.CentralStorageStrategy(list(devices), PARAMETER_DEVICE)


def _replica(model: models.Model, num_towers: int, is_fed: bool) -> Callable:
    """The model as a model_fn that one of TensorFlow's strategies calls in each replica."""
    on_one = plain(model)

    def the_model_fn(features, labels, mode):
        if mode == estimator.ModeKeys.TRAIN and not is_fed:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            features, labels = shard(model, int(tf.get_static_value(replica)), num_towers)
        return on_one(features, labels, mode)

    return the_model_fn


def resident(*arrays: np.ndarray) -> list:
    """Returns arrays as tensors on the current device that nobody may fold into the graph."""
    return [
        tf1.placeholder_with_default(array, [None, *array.shape[1:]], name="resident")
        for array in arrays
    ]


def shard(model: models.Model, i: int, num_towers: int) -> list:
    """Returns tower i's rows, held by the current device."""
    return resident(*(np.array_split(array, num_towers)[i] for array in model.data()))


def _loop(model: models.Model, features: Any, labels: Any, devices: Sequence[str]) -> tuple:
    """The tower loop that a good engineer writes: read once, average, apply once."""
    optimizer = model.make_optimizer()
    losses, towers = [], []
    with tf.device(PARAMETER_DEVICE):
        parts = zip(_split(features, len(devices)), _split(labels, len(devices)), strict=True)
    for device, (rows, answers) in zip(devices, parts, strict=True):
        place = tf1.train.replica_device_setter(1, PARAMETER_DEVICE, device)
        scope = tf1.variable_scope(
            tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE, caching_device=PARAMETER_DEVICE
        )
        with tf1.device(place), scope:
            loss = model.make_loss(rows, answers)
            losses.append(loss)
            towers.append(optimizer.compute_gradients(loss))
    with tf.device(PARAMETER_DEVICE):
        pairs = [
            (_mean([gradient for gradient, _ in column]), column[0][1])
            for column in zip(*towers, strict=True)
        ]
        step = tf1.train.get_global_step()
        return tf.add_n(losses) / len(devices), optimizer.apply_gradients(pairs, step)


def _split(tensor: Any, count: int) -> list:
    """Cuts a batch into shards that differ by at most one row."""
    rows = tf.shape(tensor)[0]
    return [tensor[rows * i // count : rows * (i + 1) // count] for i in range(count)]


def _mean(gradients: Sequence[Any]) -> Any:
    if not isinstance(gradients[0], tf.IndexedSlices):
        return tf.add_n(gradients) / len(gradients)
    values = tf.concat([gradient.values for gradient in gradients], 0) / len(gradients)
    indices = tf.concat([gradient.indices for gradient in gradients], 0)
    return tf.IndexedSlices(values, indices, gradients[0].dense_shape)


def _alone(model: models.Model, devices: Sequence[str]) -> list[tuple]:
    """K towers with variables and rows of their own: optimizer, loss, gradients of each."""
    towers = []
    for i, device in enumerate(devices):
        with tf.device(device), tf1.variable_scope(f"alone_{i}"):
            features, labels = shard(model, i, len(devices))
            optimizer = model.make_optimizer()
            loss = model.make_loss(features, labels)
            mine = tf1.trainable_variables(f"alone_{i}/")
            towers.append((optimizer, loss, optimizer.compute_gradients(loss, mine)))
    return towers


def _limit(model: models.Model, features: Any, labels: Any, devices: Sequence[str]) -> tuple:
    """K towers and K updates, nothing between them."""
    towers = _alone(model, devices)
    updates = []
    for i, (device, (optimizer, _, pairs)) in enumerate(zip(devices, towers, strict=True)):
        with tf.device(device):
            step = tf1.train.get_global_step() if i == 0 else None
            updates.append(optimizer.apply_gradients(pairs, step))
    return towers[0][1], tf.group(*updates)


def _bound(model: models.Model, features: Any, labels: Any, devices: Sequence[str]) -> tuple:
    """K towers and one update, of the first tower; the others' gradients go nowhere."""
    (optimizer, loss, pairs), *others = _alone(model, devices)
    with tf.device(devices[0]):
        steps = [optimizer.apply_gradients(pairs, tf1.train.get_global_step())]
    for i, (device, (_, _, others_pairs)) in enumerate(zip(devices[1:], others, strict=True)):
        with tf.device(device):
            # NOTE: what nothing uses is pruned, control edges from it too. So one variable
            # keeps that the gradients are there; taking them in copies nothing.
            gradients = tf.nest.flatten(
                [gradient for gradient, _ in others_pairs], expand_composites=True
            )
            taken = tf.raw_ops.OptionalFromValue(components=gradients)
            sink = tf1.get_variable(
                f"sink_{i}", [], tf.bool, tf1.initializers.zeros(), trainable=False
            )
            steps.append(sink.assign(tf.raw_ops.OptionalHasValue(optional=taken)).op)
    return loss, tf.group(*steps)
