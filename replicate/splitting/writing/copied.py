"""What each device makes for itself of values that all devices have whole.

Each later device has a copy of a mirrored variable of its own. The first one has the variable. It
reads its copy, makes what is made of such reads and of sums, and writes its copy as the variable is
written, from the same values. A copy is made where a device needs it; a write is, on all devices:
the write of the variable waits for those of the copies, so that whoever runs it, or waits for it,
does so of them as well.

NOTE: on GPUs a `ResourceScatterAdd` adds entries of one row in any order, as in TensorFlow's own
mirrored variables: there copies may differ by rounding.
"""

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.states import COPIED, WHOLE
from replicate.splitting.structure import definitions, kinds, order
from replicate.splitting.structure.nodes import (
    Attributes,
    Reference,
    Shapes,
    Waited,
    attributes_of,
    output,
    shapes_of,
)

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


class Holder(NamedTuple):
    """New operations for a device's copy of a variable, by name.

    Attributes:
        name: What holds the copy.
        read: What a session reads it by.
        check: What tells whether it has a value.
    """

    name: str
    read: str
    check: str


Holders: TypeAlias = dict[tf.Operation, list[Holder]]
"""What holds later devices' copies of variables, by the operations that hold these."""


class Copied:
    """Writes what is copied, for a `Writer`.

    Args:
        writer: The writer.

    Attributes:
        holders: The operations that hold copies of variables.
    """

    def __init__(self, writer: "writers.Writer"):
        self._writer = writer
        self._nodes = writer.nodes
        self._structure = writer.structure
        self._how = writer.analysis.how
        self._mirrored = writer.analysis.mirrored
        self._devices = writer.devices
        self._later = writer.later_devices
        self._asked: set[tuple[tf.Operation, int]] = set()
        self._reads: dict[tuple[Hashable, ...], tf.Operation] = {}
        self._definitions: dict[tf.Operation, tuple[Attributes, Shapes]] = {}  # shared by copies
        self.holders: Holders = {op: self._hold(op) for op in self._mirrored.handles}
        self._touching = self._find_touching()

    # The copies.

    def _hold(self, handle: tf.Operation) -> list[Holder]:
        """Makes what holds a variable's copies, and what a session reads of them."""
        found = []
        kind = tf.as_dtype(handle.get_attr("dtype"))
        for k in self._later:
            device, name = self._devices[k], self._writer.copy_name(handle, k)
            node = self._nodes.copy(handle, name, device, attributes_of(handle))
            for key in ("shared_name", "debug_name"):
                if key in node.attr:
                    node.set(key, name)
            read = self._nodes.add("ReadVariableOp", [name], device, dtype=kind)
            check = self._nodes.add("VarIsInitializedOp", [name], device)
            self._writer.run_aside.update((read, check))
            found.append(Holder(name, read, check))
        return found

    def view(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns a copied value as device k has it."""
        k = self._writer.first_part(k)
        if not k:
            return self._writer.whole(tensor)
        if tensor.op in self.holders:
            return self.holders[tensor.op][self._later.index(k)].name
        return output(self._want(tensor.op, k), tensor.value_index)

    def _want(self, op: tf.Operation, k: int) -> str:
        """Has an operation copied to a later device; returns the copy's name.

        A device reads a copy of a variable once for all reads that wait for the same.
        """
        if op.type == "ReadVariableOp":
            place = op._get_control_flow_context()
            key = (op.inputs[0].ref(), place, frozenset(op.control_inputs))
            op = self._reads.setdefault(key, op)
        if (op, k) not in self._asked:
            self._asked.add((op, k))
            self._writer.later(functools.partial(self._copy, k=k), op)
        return self._writer.copy_name(op, k)

    def _copy(self, op: tf.Operation, k: int) -> None:
        if op not in self._definitions:
            self._definitions[op] = attributes_of(op), shapes_of(op)
        attributes, shapes = self._definitions[op]
        if definitions.is_call(op.type):
            attributes = attributes_of(op)
            for value in attributes.values():
                self._mirrored.functions.change(value, k)
        name = self._writer.copy_name(op, k)
        node = self._nodes.copy(op, name, self._devices[k], attributes, shapes)
        is_branch = op.type in (*definitions.BRANCHES, *definitions.CASES)
        decides = 1 if op.type == "Switch" else 0 if is_branch else None
        # NOTE: a branch is taken on all devices or on none; and whoever runs a write that no step
        # runs, as an initializer, may feed its value.
        is_fed = self._writer.is_finishing and self._mirrored.is_repeated(op)
        for n, tensor in enumerate(op.inputs):
            is_home = n == decides or (is_fed and tensor.dtype not in kinds.HANDLES)
            read = self._writer.whole(tensor) if is_home else self._writer.view(tensor, WHOLE, k)
            node.input.append(self._nodes.name(read))
        waits = [
            each for control in order.as_made(op.control_inputs) for each in self.waits(control, k)
        ]
        node.input.extend(dict.fromkeys(map(self._nodes.wait, waits)))

    def writes(self, op: tf.Operation) -> list[str]:
        """Returns the copies of an operation that writes variables; of any other one, nothing."""
        is_repeated = self._mirrored.is_repeated(op)
        return [self._want(op, k) for k in self._later if is_repeated]

    # What waits for what.

    def waits(self, control: tf.Operation, k: int) -> list[Waited]:
        """Returns what device k waits for, if the first one waits for an operation."""
        writer = self._writer
        if writer.analysis.has_copies(control):
            if not control.outputs or self._structure.own_loop(control) is not None:
                return []
            writer.want_copies(control)
            return [writer.copy_name(control, k)]
        is_touching, k = control in self._touching, self._writer.first_part(k)
        if k and is_touching and (control.type == "NoOp" or self._how.get(control) is COPIED):
            return [self._want(control, k)]
        is_constant = control.type == "Const" and control._get_control_flow_context() is None
        if is_constant and not control.control_inputs:
            return []
        before = order.as_made(control.control_inputs) if is_touching and k else []
        if before and control.type == "Identity":
            before += [tensor.op for tensor in control.inputs]
        found = [each for op in before if op in self._touching for each in self.waits(op, k)]
        writer.want_whole(control)
        return [*found, control]

    def _find_touching(self) -> set[tf.Operation]:
        """Returns what is waited for since it is, or waits for, reads and writes of copies."""
        found = set()
        for op in [op for op, how in self._how.items() if how is COPIED and self.holders]:
            if op.type in kinds.READS_OF_VALUES or self._mirrored.is_repeated(op):
                found.add(op)
        waiting = list(found)
        while waiting:
            op = waiting.pop()
            users = [user for tensor in op.outputs for user in tensor.consumers()]
            users = [user for user in users if user.type == "Identity"]
            for user in {*users, *op._control_outputs} - found:
                if not (kinds.uses_handle(user.type) and kinds.changes_state(user.type)):
                    found.add(user)
                    waiting.append(user)
        return found

    # What is run.

    def value(self, tensor: tf.Tensor) -> Reference:
        """Returns an output of an operation that runs once, when copies are written too.

        NOTE: of a function only what its outputs that are read need runs.
        """
        if not (self._mirrored.is_repeated(tensor.op) and definitions.called(tensor.op.node_def)):
            return tensor
        waits = []
        for k in self._later:
            read, device = self.view(tensor, k), self._devices[k]
            waits.append(self._nodes.add("Identity", [read], device, T=tensor.dtype))
        home = self._writer.home
        return self._nodes.add("Identity", [tensor], home, controls=waits, T=tensor.dtype)
