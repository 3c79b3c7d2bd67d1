"""K calls of a model_fn, each as if it were the only one."""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat import gradients as gradient_calls
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry
from replicate.strategy import base, context, default, sharing, values
from replicate.strategy import cloning as clones
from replicate.training import copied_towers
from replicate.training import optimizer as optimizers
from replicate.training.joining import Joining

_log = logging.getLogger("replicate")
_ARGUMENTS = ("features", "labels", "mode", "params", "config")


class Tower(NamedTuple):
    """What one call of the model_fn left behind.

    Attributes:
        tower_id: From 0 to K - 1.
        device: Where it computes.
        spec: The EstimatorSpec that the model_fn returned.
        train_op: The optimizer step, where `optimizer_fn` made one; else None.
        update_ops: What the tower added to the collection `UPDATE_OPS`.
        of_optimizers: Variables that the model_fn made once it had taken gradients, none of
            which is trained: those of its own optimizers.
    """

    tower_id: int
    device: str
    spec: Any
    train_op: Any
    update_ops: tuple
    of_optimizers: tuple


class ModelCall:
    """A model_fn together with all its arguments but features and labels.

    Args:
        model_fn: Any Estimator model_fn.
        mode: The mode key.
        params: Copied for each call where it can be copied.
        config: Likewise.
        join: Makes one nest of K, which a `graph.whole.Whole` joins; with a name for errors.
    """

    def __init__(self, model_fn: Callable, mode: str, params: Any, config: Any, join: Callable):
        self._model_fn = model_fn
        self._join = join
        self.mode = mode
        self._params = params
        self._config = config
        self._names = argument_names(model_fn)

    @property
    def model_fn(self) -> Callable:
        """The model_fn itself."""
        return self._model_fn

    def __call__(self, features: Any, labels: Any) -> Any:
        """Calls the model_fn with the arguments it names; returns its EstimatorSpec.

        Raises:
            ValueError: If labels came and it takes none.
            TypeError: If it returned something else than an EstimatorSpec.
        """
        given = {
            "mode": self.mode,
            "params": _copied(self._params),
            "config": _copied(self._config),
        }
        given = {name: value for name, value in given.items() if name in self._names}
        if "labels" in self._names:
            given["labels"] = labels
        elif labels is not None:
            raise ValueError(
                "A model_fn that gets labels must take them: the input_fn gave labels, and "
                f"{self._model_fn!r} takes {list(self._names)}. Add the argument `labels`, or "
                "let the input_fn return features alone."
            )
        spec = self._model_fn(features=features, **given)
        if hasattr(spec, "as_estimator_spec"):  # at once: its host calls are its class's
            spec = self._with_joined_host_call(spec).as_estimator_spec()
        if not hasattr(spec, "train_op") or not hasattr(spec, "export_outputs"):
            raise TypeError(
                "A model_fn must return an EstimatorSpec; got "
                f"{type(spec).__name__} in mode {self.mode!r}. Return replicate.estimator."
                "EstimatorSpec(mode, ...)."
            )
        return spec

    def _with_joined_host_call(self, spec: Any) -> Any:
        """Gives a host call what one device gives it: all rows, and numbers of all rows."""
        share = context.current().share
        has_host_call = getattr(spec, "host_call", None) is not None
        if not has_host_call or share is None or len(share.weights) == 1:
            return spec
        fn, tensors = spec.host_call

        def across(strategy, merged):
            nests = [values.select_tower(i, merged) for i in range(strategy.num_towers)]
            return self._join(nests, share.joiner.whole, "host_call")

        joined = default.get_tower_context().merge_call(across, tensors)
        fields = {name: getattr(spec, name) for name in spec._fields}
        return type(spec)(**{**fields, "host_call": (fn, joined)})


def argument_names(model_fn: Callable) -> tuple[str, ...]:
    """Returns those of a model_fn's known arguments that it names.

    Raises:
        ValueError: If it does not take `features`.
    """
    parameters = inspect.signature(model_fn).parameters
    bound = model_fn.keywords if isinstance(model_fn, functools.partial) else {}
    names = tuple(name for name in _ARGUMENTS if name in parameters and name not in bound)
    if "features" not in names:
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return _ARGUMENTS  # a wrapper, which names nothing because it passes all on
        raise ValueError(
            f"A model_fn must take `features`: {model_fn!r} takes {list(parameters)}. Write "
            "def model_fn(features, labels, mode, params)."
        )
    return names


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as reason:  # noqa: BLE001 - whatever a user's class raises
        _log.debug("%s cannot be copied and is shared by all towers: %s", type(value), reason)
        return value


def build(
    strategy: base.DistributionStrategy,
    call: ModelCall,
    features: Any,
    labels: Any,
    factory: optimizers.OptimizerFactory | None,
    creations: sharing.Creations,
    joining: Joining,
    cloning: clones.Cloning | None = None,
    update_ops: str = "first",
) -> list[Tower]:
    """Builds the model once per tower; gradients and optimizers let the towers meet.

    Args:
        strategy: Runs the towers; its scope is entered.
        call: The model_fn.
        features: PerDevice of the K shards of the features.
        labels: PerDevice of the K shards of the labels.
        factory: Makes the optimizer in mode TRAIN; None where the model_fn has its own.
        creations: The log of the towers' variables.
        joining: Joins what the towers bring.
        cloning: Copies the later towers; None: the model is called for each.
        update_ops: Whose update operations run; see `specs.train`.

    Returns:
        K towers.

    Raises:
        TowerMismatchError: If the towers did not build the same model.
    """

    def tower_fn(features, labels):
        tower = default.get_tower_context()
        before = set(map(id, tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)))
        train_op = None
        with gradient_calls.taken_by(joining.gradients.taker(tower)):
            spec = call(features, labels)
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
            made = joining.gradients.made_since()
            if factory is not None:
                train_op = optimizers.minimize(factory.get(), spec.loss)
        device = strategy.worker_devices[tower.position]
        number = strategy.first_tower + tower.position
        _log.info("Built tower %d of %d on %s.", number, strategy.all_towers, device)
        own = tuple(update for update in updates if id(update) not in before)
        return Tower(tower.position, device, spec, train_op, own, made)

    joining.whole.cloning = creations.cloning = cloning
    given = (features, labels)
    towers = strategy.run_towers(lambda: tower_fn, given, None, False, True, creations, cloning)
    if len(towers) == strategy.num_towers:
        joining.whole.cloning = creations.cloning = None
        _require_same_variables(towers, creations)
        return towers
    _log.info("The model is called once, and copied for %d more towers.", strategy.num_towers - 1)
    devices = strategy.worker_devices
    return [*towers, *copied_towers.of(towers[0], call.mode, devices, cloning, update_ops)]


def is_of_one_batch() -> bool:
    """Whether the running code is a tower's whose rows are a part of one batch."""
    mode = context.current()
    return mode is not None and mode.tower is not None and mode.tower.is_of_one_batch


def keras_reduction(reduction: Any) -> Any:
    """Lets a Keras loss average over its tower's rows: towers are the parts of one batch."""
    if not is_of_one_batch():
        return None
    if reduction == tf.keras.losses.Reduction.AUTO:
        reduction = tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
    tf1.get_default_graph()._last_loss_reduction = reduction  # as `tf.compat.v1.losses` do
    return reduction


def _require_same_variables(towers: Sequence[Tower], creations: sharing.Creations) -> None:
    """Refuses towers that left out a variable that the first one made for its model."""
    for tower in towers[1:]:
        missing = [
            request
            for request, variable in creations.untaken(tower.tower_id)
            if is_metric_variable(variable) or (request.trainable and not _uses(tower, variable))
        ]
        if missing:
            raise errors.TowerMismatchError(
                "Every tower must create the same variables in the same order: tower "
                f"{tower.tower_id} did not create {missing[0]}, and does not use it; tower 0 did. "
                "Look for a branch on the tower."
            )


def _uses(tower: Tower, variable: Any) -> bool:
    """Whether what a tower returned depends on a variable that it did not ask for.

    A layer that is made once and kept outside of the model_fn has its variables in every
    tower, though the first alone asked for them.
    """
    handles = {member.handle.op for member in getattr(variable, "members", (variable,))}
    spec = tower.spec
    returned = [t for t in tf.nest.flatten([spec.loss, spec.predictions]) if tf.is_tensor(t)]
    return not handles.isdisjoint(ancestry.made_from(returned))


def is_metric_variable(variable: Any) -> bool:
    """Whether a variable is in the collections of local or metric variables."""
    keys = (tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES)
    return any(variable is item for key in keys for item in tf1.get_collection(key))
