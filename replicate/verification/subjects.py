"""What is compared: the model on one device, and over K towers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate import devices as device_names
from replicate import errors, estimator, model_fn, types
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import base
from replicate.strategy.towers import lockstep
from replicate.training import model as models
from replicate.verification import runs


def worker_devices(
    devices: Sequence[str] | int | None, strategy: base.DistributionStrategy | str | None
) -> tuple[str, ...]:
    """Returns the canonical names of the towers' devices.

    Raises:
        DeviceError: If one of them does not exist: nothing can run there.
    """
    given = getattr(strategy, "worker_devices", None)
    if given is None:
        given = device_names.resolve(devices, warn_of_missing=False)
        given = given[:1] if strategy == "one_device" else given
    missing = [name for name in given if device_names.is_missing(name)]
    if missing:
        raise errors.DeviceError(
            "verify runs the towers, so their devices must exist; this machine has no "
            f"{', '.join(missing)}, but {', '.join(device_names.local_devices())}. Name "
            "others, or call replicate.devices.make_logical_cpus(n) before TensorFlow starts."
        )
    return tuple(given)


def session_config(config: types.RunConfig | None) -> tf1.ConfigProto:
    """Returns settings under which the graph runs as it was built; all else as it is given."""
    made = tf1.ConfigProto()
    given = getattr(config, "session_config", None)
    if given is not None:
        made.CopyFrom(given)
    made.allow_soft_placement = True
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    return made


def run_config(config: types.RunConfig | None, model_dir: str) -> types.RunConfig:
    """Returns the config for model_fns, with a model_dir in which they may write."""
    if config is None:
        return estimator.RunConfig(model_dir=model_dir, session_config=session_config(None))
    if not hasattr(config, "replace"):
        return config
    return config.replace(model_dir=model_dir, session_config=session_config(config))


class Subject(NamedTuple):
    """Whose numbers are compared.

    Attributes:
        model_fn: Any Estimator model_fn.
        optimizer_fn: As for `replicate_model_fn`.
        params: For the model_fn.
        config: Likewise.
    """

    model_fn: types.ModelFn
    optimizer_fn: types.OptimizerFn | None
    params: Any
    config: types.RunConfig

    def plain(self, device: str) -> runs.Build:
        """Returns the model as one device builds it, by TensorFlow alone.

        The optimizer of `optimizer_fn` steps inside of the model, together with `UPDATE_OPS`.
        """

        def build(features: types.Nest, labels: types.Nest, mode: str) -> types.EstimatorSpec:
            with tf.device(device), lockstep.explained():
                model = models.Model(
                    self.model_fn, self.optimizer_fn, mode, self.params, self.config
                )
                spec = model(features, labels)
                if model.optimizer is None:
                    return spec
                global_step = tf1.train.get_global_step()
                step = model.optimizer.minimize(spec.loss, global_step=global_step)
                updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
                return spec._replace(train_op=tf1.group(step, *updates))

        return build

    def replicated(
        self, devices: Sequence[str] | int | None, options: dict[str, Any]
    ) -> runs.Build:
        """Returns the model over towers."""
        made = model_fn.replicate_model_fn(self.model_fn, self.optimizer_fn, devices, **options)

        def build(features: types.Nest, labels: types.Nest, mode: str) -> types.EstimatorSpec:
            return made(features, labels, mode, params=self.params, config=self.config)

        return build


class Sides(NamedTuple):
    """What is compared, as functions that build it.

    Attributes:
        one: One device, by TensorFlow alone.
        alone: One device through `replicate_model_fn`, where TensorFlow alone cannot say what
            the numbers are: options that only replication has, an optimizer that the
            model_fn makes beside that of `optimizer_fn`, partitioners.
        towers: K towers.
        is_through_replication: Whether `alone` is what towers are compared with in training.
        is_split: Whether the towers are one device's graph, split; else calls of the model.
        reduction: How the losses of such calls are joined.
        update_ops: Whose `UPDATE_OPS` of them run.
    """

    one: runs.Build
    alone: runs.Build
    towers: runs.Build
    is_through_replication: bool
    is_split: bool
    reduction: types.Reduction
    update_ops: str


def sides(
    subject: Subject,
    devices: Sequence[str] | int | None,
    options: dict[str, Any],
    workers: Sequence[str],
) -> Sides:
    """Returns what is compared; options are checked here.

    A graph that is split draws what one device draws, so that this is compared as well.

    Args:
        subject: The model.
        devices: The towers', as `replicate_model_fn` takes them.
        options: Its other ones.
        workers: The canonical names of the devices.
    """
    reduction, update_ops = options.get("loss_reduction"), options.get("update_ops")
    is_call = options.get("tower_building") == "call"
    is_split = not is_call and reduction is None and update_ops is None
    if is_split:
        options = {**options, "random_numbers": "one_device"}
    on_one = {name: value for name, value in options.items() if name != "strategy"}
    return Sides(
        subject.plain(workers[0]),
        subject.replicated([workers[0]], on_one),
        subject.replicated(devices, options),
        options.get("accumulate_steps", 1) != 1 or options.get("clip_global_norm") is not None,
        is_split,
        types.reduction_from("mean" if reduction is None else reduction),
        update_ops or "first",
    )
