"""What all variables with one copy per device have in common.

To TensorFlow each is one resource variable: in a tower or an update it is the copy of
the tower or device, across towers it is what all copies together stand for.
"""

import copy
import functools
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from replicate import devices as device_names
from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import context, conversion
from replicate.strategy.variables import checkpoint, copies, values

_ON_READ = tf.VariableSynchronization.ON_READ

_SLICE = "slice_assign"  # how a write to a slice is called on its way to the copies
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def write(
    member: tf.Variable, method: str, value: types.Nest, kwargs: types.Arguments
) -> types.Nest:
    """Calls a method of one copy that writes it.

    Args:
        member: The copy.
        method: The name of the method.
        value: What is written.
        kwargs: The method's further arguments.
    """
    if method == _SLICE:
        return member._strided_slice_assign(value=value, **kwargs)
    return getattr(member, method)(value, **kwargs)


_Tensor: Any = tfc.core_types.Tensor


class DistributedVariable(checkpoint.Persistent, tf.Variable, _Tensor):
    """One variable to the user, K copies underneath.

    Args:
        strategy: The strategy that made it, if one did.
        members: K resource variables of one shape and dtype.
        devices: The K devices they live on.
        aggregation: How values of several towers become one.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        conversion.unconverted(cls)

    is_distributed_variable = True  # NOTE: TensorFlow's optimizers ask for this name.

    def __init__(
        self,
        strategy: context.Strategy | None,
        members: Sequence[tf.Variable],
        devices: Sequence[str],
        aggregation: tf.VariableAggregation,
    ):
        if aggregation == tf.VariableAggregation.MEAN and not (
            members[0].dtype.is_floating or members[0].dtype.is_complex
        ):
            raise ValueError(
                "A mean needs a floating dtype: variable "
                f"{members[0].name} has aggregation=MEAN and dtype {members[0].dtype.name}. "
                "Use SUM or ONLY_FIRST_REPLICA, or a floating dtype."
            )
        super().__init__(members)
        self._strategy = strategy
        self._devices = tuple(devices)
        self._aggregation = aggregation
        self._element: tf.Tensor | None = None
        self._reference: checkpoint.Reference | None = None
        # NOTE: TensorFlow sets the next two where a variable starts from a checkpoint.
        self._initializer_op = None
        self._initial_value = None
        for member in self._members:
            member._distributed_container = weakref.ref(self)
            member.handle._distributed_container = weakref.ref(self)

    # Which copy, and which of the three kinds of code is asking.

    @property
    def devices(self) -> tuple[str, ...]:
        """The K devices of the copies."""
        return self._devices

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """How values of several towers become one."""
        return self._aggregation

    @property
    def distribute_strategy(self) -> tf.distribute.Strategy | None:
        """The strategy, as `tf.distribute` asks for it."""
        return self._strategy

    _distribute_strategy = distribute_strategy

    def get(self, device: str | None = None) -> tf.Variable:
        """Returns the copy on `device`; without one, the copy of the running code."""
        if device is None:
            return self._member()
        place = device_names.canonical_or_same(device)
        if place in self._devices:
            return self._members[self._devices.index(place)]
        raise ValueError(
            f"Variable {self.name} has no copy on {device!r}; its copies are on {self._devices}."
        )

    def _tower(self) -> context.TowerContext | None:
        """Returns the tower context of the running code, if it is one of our strategy's."""
        mode = context.current()
        if mode is None or mode.tower is None or mode.strategy is not self._strategy:
            return None
        return mode.tower

    def _member(self) -> tf.Variable:
        mode = context.current()
        if mode is not None and mode.update_device in self._devices:
            return self._members[self._devices.index(mode.update_device)]
        tower = self._tower()
        if tower is not None and len(self._members) > 1:
            return self._members[tower.position]
        return self._members[0]

    def _get_on_device_or_primary(self) -> tf.Variable:
        """The copy, under the name by which TensorFlow's optimizers ask for a slot's."""
        return self._member()

    # Reading.

    def _is_across(self) -> bool:
        mode = context.current()
        return self._tower() is None and (mode is None or mode.update_device is None)

    def value(self) -> tf.Tensor:
        """Returns the copy's value in a tower or update, the aggregate across towers."""
        return self.read_across() if self._is_across() else self._member().value()

    def read_value(self) -> tf.Tensor:
        """Returns `value()`, read now rather than from a cache."""
        return self.read_across() if self._is_across() else self._member().read_value()

    def numpy(self) -> npt.NDArray[Any]:
        """Returns `value()` as an array; eager only."""
        return self.value().numpy()

    def eval(self, session: tf1.Session | None = None) -> npt.NDArray[Any]:
        """Evaluates the variable in a session."""
        return self.value().eval(session=session)

    def initialized_value(self) -> tf.Tensor:
        """Returns the value, after initialization where that has not run yet."""
        return self._member().initialized_value()

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """Returns whether every copy has a value: a bool of shape []."""
        if len(self._members) == 1:
            return self._members[0].is_initialized(name)
        return tf.reduce_all([m.is_initialized() for m in self._members], name=name)

    def load(self, value: npt.ArrayLike, session: tf1.Session | None = None) -> None:
        """Writes a value to every copy, in a session.

        Raises:
            ValueError: If there is no session.
        """
        session = session or tf1.get_default_session()
        if session is None:
            raise ValueError(
                f"A session loads a value into {self.name}, and none is the default one. Pass it: "
                "load(value, session)."
            )
        starts = [member.initializer.inputs[1] for member in self._members]
        session.run(self.initializer, dict.fromkeys(starts, value))

    @property
    def initializer(self) -> tf.Operation:
        """One operation that initializes every copy."""
        if self._initializer_op is None:
            first, *others = [member.initializer for member in self._members]
            with copies.outermost():
                self._initializer_op = tf1.group(first, *others) if others else first
        return self._initializer_op

    @property
    def initial_value(self) -> tf.Tensor:
        """The tensor from which every copy starts."""
        first = self._members[0].initial_value
        return first if self._initial_value is None else self._initial_value

    def _dense_var_to_tensor(
        self, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
    ) -> tf.Tensor:
        if as_ref:
            return self._as_reference()
        read = tf.convert_to_tensor(self.value(), dtype=dtype, name=name)
        if not self._is_across() and not tf.executing_eagerly():
            # NOTE: embedding_lookup converts what is no variable of TensorFlow's own kind, and
            # would copy the whole table; tf.gather asks a tensor for this name first.
            read.sparse_read = self._member().sparse_read
        return read

    def _as_reference(self) -> tf.Tensor:
        """Returns the tensor through which a Saver of a dict writes every copy."""
        if not self._members[0]._in_graph_mode:
            raise ValueError(f"Variable {self.name} has no reference: it is of no graph.")
        if self._reference is None:  # one only: a Saver refuses the same one under two names
            with copies.outermost():
                # The graph keeps the tensor it has: this is another object, of its operation.
                self._reference = copy.copy(self.read_across())
                self._reference.__class__ = checkpoint.Reference
                self._reference.variable = self
        return self._reference

    def _as_graph_element(self) -> tf.Tensor:
        if not self._is_across():
            return self._member()._as_graph_element()
        if self._element is None:
            with copies.outermost():
                self._element = self._make_element()
        return self._element

    def _make_element(self) -> tf.Tensor:
        """Returns what a session fetches for the variable."""
        return self.read_across()

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return int(self.numpy().__index__())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        del copy  # the array is a new one
        return np.asarray(self.numpy(), dtype=dtype)

    # Writing.

    def _write(
        self, method: str, value: types.Nest, read_value: bool = True, **kwargs: Any
    ) -> types.Nest:
        mode = context.current()
        if method.startswith("assign"):
            kwargs["read_value"] = read_value
        if mode is not None and mode.update_device in self._devices:
            return write(self._member(), method, value, kwargs)
        tower = self._tower()
        if tower is not None:
            return self._write_in_tower(tower, method, value, kwargs)
        return self._write_across(method, value, kwargs)

    def _write_in_tower(
        self, tower: context.TowerContext, method: str, value: types.Nest, kwargs: types.Arguments
    ) -> types.Nest:
        raise NotImplementedError

    def _write_across(self, method: str, value: types.Nest, kwargs: types.Arguments) -> types.Nest:
        """Writes every copy: one value, or a distributed one's copy for each."""
        parts = [values.select_device(device, i, value) for i, device in enumerate(self._devices)]
        return self._write_members(method, parts, kwargs)

    def _write_members(
        self, method: str, parts: Sequence[types.Nest], kwargs: types.Arguments
    ) -> types.Nest:
        read_value = kwargs.get("read_value", True)
        if "read_value" in kwargs:
            kwargs = {**kwargs, "read_value": False}
        written = []
        for member, part in zip(self._members, parts, strict=True):
            if part is not None:
                with tf.device(member.device):
                    written.append(write(member, method, part, kwargs))
        if tf1.executing_eagerly_outside_functions():
            return self if read_value else None
        written = [getattr(op, "op", op) for op in written]
        if not read_value:
            return tf1.group(*written)
        with tf1.control_dependencies(written):
            return tf.identity(self.read_across())

    def _strided_slice_assign(
        self,
        begin: tf.Tensor,
        end: tf.Tensor,
        strides: tf.Tensor,
        value: types.Nest,
        name: str | None,
        *masks: int,
        **named: Any,
    ) -> types.Nest:
        """Assigns `variable[begin:end:strides]`; see `assign`."""
        named.update(zip(_MASKS, masks, strict=False))
        return self._write(_SLICE, value, begin=begin, end=end, strides=strides, name=name, **named)

    def _lazy_read(self, op: tf.Operation) -> tf.Variable:
        """Called once an operation on the handle of one copy has been made, or has run."""
        is_own = self.synchronization == _ON_READ and not self._is_across()
        if len(self._members) == 1 or is_own or not (self._is_across() or self._tower()):
            return self._member()._lazy_read(op)
        if tf.executing_eagerly() and self.synchronization != _ON_READ:
            if self._is_across():
                self._copy_member(self._members[0])  # what has run on the first copy
                return self
            others = [member for member in self._members if member is not self._member()]
            self._copy_member(others[0])  # as if nothing had run
        name = getattr(op, "name", "an eager one")
        raise RuntimeError(
            f"An operation on the handle of {self.name} writes one copy of "
            f"{len(self._members)}: got {name}. Use the variable's own scatter methods, or "
            "strategy.update."
        )

    def _copy_member(self, source: tf.Variable) -> None:
        """Gives all copies the value of one of them."""
        for member in self._members:
            if member is not source:
                with tf.device(member.device):
                    member.assign(tf.identity(source.value()), read_value=False)

    # Everything else is the current copy's.

    @property
    def handle(self) -> tf.Tensor:
        """The resource of the tower's copy; across towers, of the first."""
        return self._member().handle

    @property
    def op(self) -> tf.Operation:
        """The operation that made the copy; in a tower the first copy's, for its name."""
        return self._members[0].op if self._tower() is not None else self._member().op

    @property
    def device(self) -> str:
        """The device of the copy."""
        return self._member().device

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        """ON_WRITE for mirrored variables, ON_READ for tower-local ones."""
        return self._members[0].synchronization

    def __tf_tracing_type__(self, tracing_context: object) -> values.VariableTraceType:
        del tracing_context
        return values.VariableTraceType(self)

    def __tf_experimental_restore_capture__(
        self, concrete_function: Any, internal_capture: tf.Tensor
    ) -> "DistributedVariable":
        # A function of a SavedModel that is loaded in a scope reads this variable: at each
        # call TensorFlow asks for its handle, which is that of the copy of who calls.
        concrete_function.graph.replace_capture(self, internal_capture)
        return self

    def _should_act_as_resource_variable(self) -> None:
        """Present so that TensorFlow takes the resource paths."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype.name} "
            f"copies={len(self._members)}>"
        )


def _delegated(name: str, of_first: bool) -> property:
    def get(self: DistributedVariable) -> Any:
        return getattr(self._members[0] if of_first else self._member(), name)

    return property(get, doc=f"The `{name}` of the {'first' if of_first else 'current'} copy.")


for _name in (
    "dtype",
    "shape",
    "graph",
    "constraint",
    "trainable",
    "get_shape",
    "set_shape",
    "create",
    "_in_graph_mode",
    "_graph_key",
    "_unique_id",
    "_handle_name",
    "_trainable",
    "_get_xla_sharding",
):
    setattr(DistributedVariable, _name, _delegated(_name, of_first=True))
for _name in (
    "sparse_read",
    "gather_nd",
    "read_value_no_copy",
    "_read_variable_op",
    "_cached_value",
):
    setattr(DistributedVariable, _name, _delegated(_name, of_first=False))


def _writing(name: str) -> types.Function:
    theirs = getattr(tfc.resource_variable_ops.BaseResourceVariable, name)
    signature = inspect.signature(theirs)

    @functools.wraps(theirs, assigned=("__name__",))
    def write(*args: Any, **kwargs: Any) -> types.Nest:
        (_, variable), (_, value), *others = signature.bind(*args, **kwargs).arguments.items()
        return variable._write(name, value, **dict(others))

    write.__doc__ = f"Applies `{name}` to the copies; see the class for who may, and how."
    return write


for _name in (
    *("assign", "assign_add", "assign_sub", "batch_scatter_update"),
    *(f"scatter_{kind}" for kind in "add sub update max min mul div".split()),
    *(f"scatter_nd_{kind}" for kind in "add sub update max min".split()),
):
    setattr(DistributedVariable, _name, _writing(_name))


def _refuse_in_place(variable: DistributedVariable, value: object) -> NoReturn:
    raise RuntimeError(
        f"A variable is not changed in place, as by += or *=: {variable.name}. Use assign, "
        "assign_add or assign_sub, or write w = w + x where a new tensor is meant."
    )


# NOTE: Python would make a new tensor, and the variable would stay as it was.
for _name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"):
    setattr(DistributedVariable, _name, _refuse_in_place)

conversion.unconverted(DistributedVariable)

tf.register_tensor_conversion_function(
    DistributedVariable,
    lambda v, dtype=None, name=None, as_ref=False: v._dense_var_to_tensor(dtype, name, as_ref),
)
