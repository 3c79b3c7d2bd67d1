"""Distributed variables in checkpoints: written once, restored everywhere.

A checkpoint holds one value under the plain name, so that a checkpoint of any
strategy restores under any other and under none. What each copy gets of a restored
value is the variable's own rule: `DistributedVariable.spread`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from replicate import types
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def restore(variable: "Persistent", tensor: tf.Tensor) -> tf.Operation | None:
    """Assigns the value of a checkpoint to the copies of a distributed variable.

    Args:
        variable: The variable.
        tensor: Its saved value, of the variable's shape.

    Returns:
        One operation (None when eager).
    """
    assigned = []
    for member, part in zip(variable.members, variable.spread(tensor), strict=True):
        with tf.device(member.device):
            if part is not None:
                assigned.append(member.assign(tf.identity(part), read_value=False))
            elif not tf.executing_eagerly():
                assigned.append(_initialize_if_needed(member))
    if len(assigned) == 1:
        return assigned[0]
    return None if tf.executing_eagerly() else tf1.group(*assigned)


def _initialize_if_needed(member: tf.Variable) -> tf.Operation:
    """Lets a copy that a checkpoint says nothing of start, where it has not: one operation."""
    initial_value = member.initial_value

    def start() -> tf.Tensor:
        with tf1.control_dependencies([member.assign(initial_value, read_value=False)]):
            return tf.constant(True)

    return tf1.cond(member.is_initialized(), lambda: tf.constant(True), start)


def saveable(
    variable: "Persistent", name: str, part: tf.Variable.SaveSliceInfo | None = None
) -> Any:
    """Returns what a `tf.compat.v1.train.Saver` writes for a distributed variable.

    Args:
        variable: The variable.
        name: The name of its value in the checkpoint.
        part: Which part of that value it is, if it is not all of it.
    """
    first = variable.members[0]
    # A graph has that tensor already, and each more costs all who start a session.
    saved = variable.read_across if tf.executing_eagerly() else variable._as_graph_element
    cut = "" if part is None else part.spec
    spec = tfc.saveable_object.SaveSpec(saved, cut, name, dtype=first.dtype, device=first.device)

    def restore_variable(
        restored_tensors: Sequence[tf.Tensor], restored_shapes: object
    ) -> tf.Operation | None:
        del restored_shapes  # the variable knows its own
        (value,) = restored_tensors
        if len(variable.members) > 1:  # a copy of its own refuses another shape
            value = tf.ensure_shape(value, first.shape)
        return restore(variable, value)

    # NOTE: a Saver keeps one of each name, and parts of one value are several.
    own = name if part is None else variable.shared_name
    variable_saveable = tfc.saveable_object.SaveableObject(saved, [spec], own)
    variable_saveable.restore = restore_variable
    return variable_saveable


_SymbolicTensor: Any = tfc.ops.SymbolicTensor


class Reference(_SymbolicTensor):
    """The one value that a variable's copies stand for, through which all are written.

    A Saver of a dict asks each of its variables for a tensor as a reference, and writes what
    it restores to that tensor's variable, if it passes for one of version 1.

    Attributes:
        variable: The variable.
    """

    variable: "Persistent"

    @property
    def op(self) -> "_Holder":
        """The operation behind the value, which passes for one that holds a variable."""
        return _Holder(super().op)

    def assign(self, value: tf.Tensor, name: str | None = None) -> tf.Operation:
        """Restores every copy; `tf.compat.v1.assign` ends here."""
        del name  # the copies' operations are named after them
        return restore(self.variable, tf.ensure_shape(value, self.variable.members[0].shape))


class _Holder:
    """An operation, which says of itself that it holds a variable."""

    type = "VariableV2"

    def __init__(self, operation: tf.Operation):
        self._operation = operation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)


class PartOfCopies(tf.Variable.SaveSliceInfo):
    """Which part several copies are of a variable, true for what makes slots alone.

    NOTE: a Saver that finds a part restores its handle, which is the first copy's. Where it finds
    none, it asks the variable, which restores all.

    Args:
        part: The part as TensorFlow tells it.
        is_seen: Whether slots are being made.
    """

    def __init__(self, part: tf.Variable.SaveSliceInfo, is_seen: Callable[[], bool]):
        super().__init__(part.full_name, part.full_shape, part.var_offset, part.var_shape)
        self._is_seen = is_seen

    def __bool__(self) -> bool:
        return self._is_seen()


class Persistent:
    """How a distributed variable is saved, restored and exported; and how it is not.

    Args:
        members: Its K copies, device by device.
    """

    _slice: tf.Variable.SaveSliceInfo | None = None  # of a variable that a partitioner has made
    _makes_slots = False

    def __init__(self, members: Sequence[tf.Variable]):
        self._members = tuple(members)
        self._feeding: tuple[tf.Tensor, tf.Operation] | None = None

    @property
    def members(self) -> tuple[tf.Variable, ...]:
        """The K copies, device by device."""
        return self._members

    @property
    def name(self) -> str:
        """The name that the variable has on one device."""
        return self._members[0].name

    @property
    def shared_name(self) -> str:
        """The same without the number of an output."""
        return self.name.split(":")[0]

    _shared_name = shared_name  # as TensorFlow asks for it

    def read_across(self) -> tf.Tensor:
        """Returns the one value that all copies together stand for."""
        raise NotImplementedError

    def spread(self, value: tf.Tensor) -> list[tf.Tensor | None]:
        """Returns what each copy gets of `value`, None where it keeps its own."""
        return [value] * len(self._members)

    def _as_graph_element(self) -> tf.Tensor:
        raise NotImplementedError

    def _get_save_slice_info(self) -> tf.Variable.SaveSliceInfo | None:
        return self._slice

    @property
    def _save_slice_info(self) -> tf.Variable.SaveSliceInfo | None:
        return self._slice

    def _set_save_slice_info(self, save_slice_info: tf.Variable.SaveSliceInfo) -> None:
        for member in self._members:
            member._set_save_slice_info(save_slice_info)
        if len(self._members) > 1:
            save_slice_info = PartOfCopies(save_slice_info, lambda: self._makes_slots)
        self._slice = save_slice_info

    @contextlib.contextmanager
    def making_slots(self) -> Iterator[None]:
        """Shows which part it is to what makes variables beside it."""
        before, self._makes_slots = self._makes_slots, True
        try:
            yield
        finally:
            self._makes_slots = before

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Returns the first copy's VariableDef: one variable under the plain name."""
        return self._members[0].to_proto(export_scope=export_scope)

    @staticmethod
    def from_proto(variable_def: Any, import_scope: str | None = None) -> NoReturn:
        """Refused: a proto does not say which devices the copies lived on."""
        raise NotImplementedError(
            "A distributed variable cannot be made from a proto: "
            f"{variable_def.variable_name!r} does not name its copies. Build the model again "
            "under the strategy's scope and restore a checkpoint."
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"Variable {self.name} cannot be pickled: its copies belong to the devices of this "
            "process. Save a checkpoint instead."
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise NotImplementedError(
            f"Variable {self.name} cannot be copied: its copies belong to the graph that made "
            "them. Make a new variable and assign."
        )

    def _export_to_saved_model_graph(
        self,
        object_map: dict[Any, Any],
        tensor_map: dict[tf.Tensor, tf.Tensor],
        options: tf.saved_model.SaveOptions,
        **kwargs: Any,
    ) -> list[tf.Tensor]:
        first, *others = self._members
        resources = first._export_to_saved_model_graph(object_map, tensor_map, options, **kwargs)
        object_map[self] = object_map[first]
        for other in others:
            object_map[other] = object_map[first]
            tensor_map[other.handle] = tensor_map[first.handle]
            resources.append(other.handle)
        return resources

    def _write_object_proto(self, proto: Any, options: tf.saved_model.SaveOptions) -> None:
        self._members[0]._write_object_proto(proto, options)

    def _gather_saveables_for_checkpoint(self) -> dict[str, types.Function]:
        # NOTE: a Saver of version 1 takes the name from here, one of objects gives its own.
        part = self._slice
        is_cut = part is not None and list(part.var_shape) != list(part.full_shape)

        def factory(name: str | None = None) -> Any:
            if name is not None or part is None:
                return saveable(self, name or self.shared_name)
            return saveable(self, part.full_name, part if is_cut else None)

        return {tfc.trackable.VARIABLE_VALUE_KEY: factory}

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {tfc.trackable.VARIABLE_VALUE_KEY: self.read_across()}

    @property
    def _assign_placeholder(self) -> tf.Tensor:
        return self._fed()[0]

    @property
    def _assign_op(self) -> tf.Operation:
        return self._fed()[1]

    def _fed(self) -> tuple[tf.Tensor, tf.Operation]:
        """Returns a placeholder, and what sets every copy to it: for Keras, one for all towers."""
        first = self._members[0]
        if not first._in_graph_mode:
            raise AttributeError(f"Variable {self.name} is of no graph, and is not fed.")
        if self._feeding is None:
            with tf1.control_dependencies(None), tf1.name_scope(None):
                shape = None if first.shape.rank is None else [None] * first.shape.rank
                placeholder = tf1.placeholder(first.dtype, shape)
                self._feeding = (placeholder, restore(self, placeholder))
        return self._feeding

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        if self not in object_map:
            first = self._members[0]
            with tf.device("/device:CPU:0"):
                object_map[self] = tfc.resource_variable_ops.UninitializedVariable(
                    trainable=first.trainable,
                    shape=first.shape,
                    dtype=first.dtype,
                    name=self.shared_name,
                )
        with tf.device("/device:CPU:0"):
            object_map[self].assign(self.read_across(), read_value=False)

    def _restore_from_tensors(
        self, restored_tensors: Mapping[str, tf.Tensor]
    ) -> tf.Operation | None:
        return restore(self, restored_tensors[tfc.trackable.VARIABLE_VALUE_KEY])
