"""One variable to the user, one copy per replica: the TPU-style variable.

A `ReplicatedVariable` belongs to no strategy. Inside a replicated computation
(`tf.compat.v1.tpu.replicate`, or a tower of ours) it is that replica's copy; outside
of it, reads see the first copy and assignments write every copy. A replica's own
assignment is local: whoever assigns different values lets the copies drift apart.

NOTE: outside of replicated computations an optimizer updates through the handle, so
it updates the first copy. Apply gradients inside them, or assign.
"""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from replicate import errors, types
from replicate.compat import replacing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.strategy import context
from replicate.strategy.towers import sharing
from replicate.strategy.variables import copies, creation, distributed_variable

__all__ = ["ReplicatedVariable", "replicated_scope", "replicated_variable_for_optimizer"]


class ReplicatedVariable(distributed_variable.DistributedVariable):
    """A variable with one copy for each replica of a computation.

    Args:
        name: The variable's name, also in checkpoints; the copies have their own names.
        variables: K resource variables of one shape and dtype, in the order of the replicas.

    Raises:
        ValueError: If there is no copy, a copy is not a plain resource variable, or the
            copies differ in shape or dtype.
    """

    def __init__(self, name: str, variables: Sequence[tf.Variable]):
        members = tuple(variables)
        _require_alike(name, members)
        devices = [member.device for member in members]
        super().__init__(None, members, devices, tf.VariableAggregation.NONE)
        self._name = name
        self._initializer: tf.Operation | None = None

    # Which copy, and in what kind of code.

    def _is_across(self) -> bool:
        if _tpu_context() is not None or self._tower() is not None:
            return False
        mode = context.current()
        return mode is None or mode.update_device not in self._devices

    def _tower(self) -> context.TowerContext | None:
        """Returns the tower context of the running code, if there are several towers."""
        mode = context.current()
        tower = None if mode is None else mode.tower
        if tower is None or tower.distribution_strategy.num_towers == 1:
            return None
        number = tower.distribution_strategy.num_towers
        if number != len(self._members):
            raise errors.TowerMismatchError(
                "A replicated variable in a tower needs one copy per tower: "
                f"{self.name} has {len(self._members)} copies, tower {tower.position} is one of "
                f"{number}. Make it with num_replicas={number}."
            )
        return tower

    def _copy(self) -> tf.Variable:
        """Returns the copy of this tower or update; the first one elsewhere."""
        mode = context.current()
        if mode is not None and mode.update_device in self._devices:
            return self._members[self._devices.index(mode.update_device)]
        tower = self._tower()
        return self._members[0 if tower is None else tower.position]

    def _member(self) -> tf.Variable:
        """Returns the copy; under `tpu.replicate`, where no copy is known yet, a view."""
        if _tpu_context() is None:
            return self._copy()
        return tfc.resource_variable_ops.BaseResourceVariable(
            handle=self.handle,
            shape=self.shape,
            dtype=self.dtype,
            trainable=self.trainable,
            unique_id=self._unique_id,
            handle_name=f"{self._shared_name}/handle",
            in_graph_mode=True,
        )

    @property
    def handle(self) -> tf.Tensor:
        """The resource of this replica's copy; outside of replicated code, of the first."""
        tpu = _tpu_context()
        if tpu is None:
            return self._copy().handle
        return tpu.get_replicated_var_handle(
            self._shared_name, self._unique_id, list(self._members)
        )

    # Reading.

    def read_across(self) -> tf.Tensor:
        """Returns the first copy's value."""
        return self._members[0].value()

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        del no_copy  # a copy of the value is never shared here
        tfc.resource_variable_ops.variable_accessed(self)
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        value.set_shape(self.shape)
        return value

    def value(self) -> tf.Tensor:
        """Returns the value of the copy that `handle` is the resource of."""
        return self._read_variable_op()

    def read_value(self) -> tf.Tensor:
        """Returns `value()`, read now."""
        with tf1.name_scope("Read"):
            return self._read_variable_op()

    def _as_graph_element(self) -> tf.Tensor:
        if _tpu_context() is not None:
            return self._read_variable_op()
        return self._copy()._as_graph_element()

    # Writing.

    def _write(
        self, method: str, value: types.Nest, read_value: bool = True, **kwargs: Any
    ) -> types.Nest:
        # NOTE: a tower without rows writes its copy like any other. What towers agree on
        # has to reach every copy, and what is read outside is the first tower's.
        if method.startswith("assign"):
            kwargs["read_value"] = read_value
        if self._is_across():
            with _without_colocation():
                return self._write_across(method, value, kwargs)
        return getattr(self._member(), method)(value, **kwargs)

    @property
    def initializer(self) -> tf.Operation:
        """One operation that initializes every copy; made once per variable."""
        if self._initializer is None:
            with tf.init_scope(), tf1.device(None), tf1.name_scope(None):
                self._initializer = tf1.group(
                    *[m.initializer for m in self._members if m.initializer is not None],
                    name=f"{self._shared_name}/initialize_copies",
                )
        return self._initializer

    # What it is called.

    @property
    def name(self) -> str:
        """The name that the variable was given."""
        return self._name

    @property
    def op(self) -> tf.Operation:
        """The operation that made the copy."""
        return self._copy().op

    @property
    def device(self) -> str:
        """The device of the copy."""
        return self._copy().device

    @property
    def distribute_strategy(self) -> tf.distribute.Strategy | None:
        """Whichever strategy is in charge: copies per replica serve all of them."""
        return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None

    _distribute_strategy = distribute_strategy

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Returns the first copy's VariableDef, whose initializer initializes every copy."""
        proto = self._members[0].to_proto(export_scope=export_scope)
        if proto is not None and export_scope is None:
            proto.initializer_name = self.initializer.name
        return proto


def _tpu_context() -> Any:
    """Returns the context of the enclosing `tpu.replicate`, or None."""
    return None if tf.executing_eagerly() else tfc.tpu_util.enclosing_tpu_context()


def _require_alike(name: str, members: Sequence[tf.Variable]) -> None:
    """Refuses what cannot be the copies of one variable."""
    if not members:
        raise ValueError(
            f"A replicated variable needs at least one copy: {name} got none. Pass one resource "
            "variable per replica."
        )
    for i, member in enumerate(members):
        if not isinstance(member, tfc.resource_variable_ops.BaseResourceVariable):
            raise ValueError(
                f"The copies of a replicated variable are plain resource variables: copy {i} of "
                f"{name} is a {type(member).__name__}. Do not nest replicated scopes; make "
                "variables with use_resource=True."
            )
        if member.dtype != members[0].dtype or str(member.shape) != str(members[0].shape):
            raise ValueError(
                f"The copies of a replicated variable have one shape and dtype: copy {i} of {name} "
                f"is {member.dtype.name} {member.shape}, copy 0 is {members[0].dtype.name} "
                f"{members[0].shape}. Make all of them alike."
            )


@contextlib.contextmanager
def replicated_scope(
    num_replicas: int, device_pattern: str = "/device:TPU:{}"
) -> Iterator[tf1.VariableScope]:
    """Enters a variable scope whose `get_variable` makes replicated variables.

    The scope adds nothing to names. A variable `w` has the copies `w/0`, `w/1`, ...,
    which all start with the first one's initial value. Collections hold `w`, not its
    copies; its regularization loss counts once.

    Args:
        num_replicas: K, the number of copies.
        device_pattern: Device of copy i; `{}` stands for i, e.g. `/device:GPU:{}`.

    Yields:
        The variable scope.
    """
    creator = _replicating_creator(num_replicas, device_pattern)

    def get(  # TensorFlow names the first argument
        getter: types.Function, *args: Any, **kwargs: Any
    ) -> tf.Variable:
        if kwargs.get("partitioner") is not None:
            kwargs["partitioner"] = None
            name = kwargs.get("name", args[0] if args else "a variable")
            messages.warn(
                f"A replicated variable is not partitioned: {name} is made whole.",
                "api.md#values-and-variables",
            )
        kwargs["use_resource"] = True
        with tf.variable_creator_scope(creator):
            return getter(*args, **kwargs)

    store = tfc.variable_scope.get_variable_scope_store()
    with tf1.variable_scope(
        tf1.get_variable_scope(), custom_getter=get, use_resource=True, auxiliary_name_scope=False
    ) as scope:
        yield scope
        counted = dict(store.variable_scopes_count)
    # NOTE: leaving a scope that is entered again sets back the numbers of unnamed layers;
    # the names made inside are taken all the same.
    store.variable_scopes_count.update(counted)


@contextlib.contextmanager
def replicated_variable_for_optimizer(
    num_replicas: int, device_pattern: str = "/device:TPU:{}"
) -> Iterator[None]:
    """Replicates the variables that tf_keras optimizers make while it is entered.

    Slots, iterations and hyperparameters. The methods of the optimizer classes that
    make them are replaced for as long, in all threads; with one replica nothing is.

    Args:
        num_replicas: K, the number of copies.
        device_pattern: Device of copy i; `{}` stands for i, e.g. `/device:GPU:{}`.
    """
    creator = _replicating_creator(num_replicas, device_pattern)
    with contextlib.ExitStack() as stack:
        if num_replicas > 1:
            for method in _replaced_methods():
                stack.enter_context(method.by(creator))
        yield


@functools.cache
def _replaced_methods() -> list[replacing.Replaced[types.Function]]:
    """Returns the methods in which tf_keras optimizers make variables.

    NOTE: towers sleep inside, so those who enter do not leave in the opposite order. The last one
    to leave puts the method back; meanwhile the last one that entered counts.
    """
    families = []
    if tf.__version__.startswith("2.15."):  # the last whose own Keras is of version 2
        families.append(tf.keras.optimizers)
    with contextlib.suppress(ModuleNotFoundError):
        # NOTE: imported here because it is optional, and takes seconds.
        families.append(importlib.import_module("tf_keras").optimizers)
    if not families:
        raise errors.UnsupportedTensorFlowError(
            "replicated_variable_for_optimizer() works on the optimizers of tf_keras, which is "
            f"not installed beside TensorFlow {tf.__version__}. Install tf-keras."
        )
    legacy = ("add_weight", "add_slot")
    later = (
        "add_variable",
        "add_variable_from_reference",
        "_create_iteration_variable",
        "_build_learning_rate",
    )
    pairs = [(family.legacy.Optimizer, name) for family in families for name in legacy]
    pairs += [(family.Optimizer, name) for family in families for name in later]
    found = [pair for pair in dict.fromkeys(pairs) if hasattr(*pair)]
    return [_replaced(*pair) for pair in found]


def _replaced(cls: type, name: str) -> replacing.Replaced[types.Function]:
    return replacing.Replaced(lambda: cls, name, _replicating)


def _replicating(before: types.Function, creators: Sequence[types.Function]) -> types.Function:
    @functools.wraps(before)
    def replicated(owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not creators:  # it was looked up before it was put back
            return before(owner, *args, **kwargs)
        with tf.variable_creator_scope(creators[-1]):
            return before(owner, *args, **kwargs)

    return replicated


def _replicating_creator(num_replicas: int, device_pattern: str) -> types.Function:
    """Returns a variable creator that makes replicated variables."""
    if num_replicas < 1:
        raise ValueError(
            f"A replicated variable needs at least one copy: got num_replicas={num_replicas}. "
            "Pass the number of replicas."
        )
    devices = [device_pattern.format(i) for i in range(num_replicas)]

    def creator(next_creator: types.Function, **kwargs: Any) -> tf.Variable:
        mode = context.current()
        if mode is not None:
            # NOTE: the strategy's creators stand behind `next_creator`; the copies are not
            # theirs to mirror.
            next_creator = functools.partial(tfc.ref_variable.default_variable_creator, None)
        tower = None if mode is None else mode.tower
        make = functools.partial(_make, next_creator, kwargs, devices)
        made = sharing.variable_for(tower, kwargs, make)
        creation.add_to_collections(made, kwargs)
        return made

    return creator


def _make(
    next_creator: types.Function, kwargs: types.Arguments, devices: Sequence[str]
) -> ReplicatedVariable:
    """Makes a replicated variable, its copies outside of all collections."""
    members: list[tf.Variable] = []
    with tf1.name_scope(kwargs.get("name") or "Variable") as scope:
        for i, device in enumerate(devices):
            # NOTE: the slash at the end keeps TensorFlow from adding the current scope.
            copy = {**kwargs, "name": f"{scope}{i}/", "collections": [], "use_resource": True}
            if members:
                copy["initial_value"] = copies.start_of(members[0], device)
            with _without_colocation(), tf.device(device):
                members.append(next_creator(**copy))
    copies.take_from_collections(members)
    return ReplicatedVariable(scope.rstrip("/"), members)


def _without_colocation() -> contextlib.AbstractContextManager[object]:
    """Leaves the colocation in force, under which every copy would be in one place."""
    graph = None if tf.executing_eagerly() else tf1.get_default_graph()
    if graph is None or not graph._colocation_stack.peek_objs():
        return contextlib.nullcontext()
    return graph.colocate_with(None, ignore_existing=True)
