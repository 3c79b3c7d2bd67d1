"""Loops of version 1 whose bodies are split: each device has a loop of its own.

A device's loop is in a frame of its own. It has copies of what is split, and of what is whole:
condition, counters, constants, stacks. What a loop reads from outside enters each device's. If the
body would need a value that all devices make together, the loop is whole.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import analysis as analyses
from replicate.splitting.states import COPIED, FLOW, SIZE, WHOLE, ListOf, Partial, Rows
from replicate.splitting.structure import kinds, loops, nodes
from replicate.splitting.structure.nodes import Reference

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers

_OF_LOOPS = "Enter Exit LoopCond Merge NextIteration StackPopV2 StackPushV2 Switch".split()
_MANY = 200


class LoopCopies:
    """Writes what devices' own loops need, for a `Writer`.

    Args:
        writer: The writer.
    """

    def __init__(self, writer: "writers.Writer"):
        self._writer = writer
        self._nodes = writer.nodes
        self._analysis = writer.analysis
        self._structure = writer.structure
        self._devices = writer.devices
        self._memo: dict[tuple[object, ...], str] = {}
        self._copied: set[tf.Operation] = set()
        self._is_inside = False

    # Whole values on a device.

    def whole(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns a whole value as device k's own loop has it; outside of loops, the value."""
        op, state = tensor.op, self._analysis.state(tensor)
        if state is COPIED:
            return self._writer.own(tensor, k)
        loop = self._structure.loop(op)
        if loop is None:
            is_exit = op.type in kinds.EXITS and self._is_inside
            if not is_exit or self._is_in_whole_loop(op):
                return self._writer.whole(tensor)
        elif self._is_in_whole_loop(op):
            return self._writer.whole(tensor)
        is_apart = isinstance(state, (Partial, ListOf)) or state is FLOW
        is_rows = isinstance(state, Rows) and not self._analysis.is_at_hand(tensor)
        if is_apart or is_rows:
            raise loops.LoopWholeError(op, f"{op.type} is wanted whole")
        if state is SIZE and op.type in analyses.LEAVES:
            return self._whole_size(tensor, k)
        if state is SIZE and op.type == "TensorListElementShape":
            shape, after = self._analysis.facts.literal(tensor), self._writer.own(tensor, k)
            return self._nodes.constant(shape, self._devices[k], after)
        self._want(op)
        return self._output(tensor, k)

    def _is_in_whole_loop(self, op: tf.Operation) -> bool:
        root = self._structure.root(op)
        return root is not None and self._analysis.assumptions.is_whole(root)

    def _output(self, tensor: tf.Tensor, k: int) -> Reference:
        return nodes.output(self.name(tensor.op, k), tensor.value_index)

    @staticmethod
    def name(op: tf.Operation, k: int) -> str:
        """Returns the name of the copy that makes an operation's whole values on device k."""
        return f"tower_{k}/whole/{op.name}"

    def _want(self, op: tf.Operation) -> None:
        if op not in self._copied:
            self._copied.add(op)
            self._writer.later(self._copy, op)

    def _copy(self, op: tf.Operation) -> None:
        if kinds.is_stateful(op.type) and op.type not in _OF_LOOPS:
            raise loops.LoopWholeError(op, f"{op.type} has a state")
        self.before_copies(op)
        attributes, shapes = nodes.attributes_of(op), nodes.shapes_of(op)
        for k, device in enumerate(self._devices):
            node = self._nodes.copy(op, self.name(op, k), device, attributes, shapes)
            self.set_frame(node, k)
            with self._entered_part():
                for tensor in op.inputs:
                    is_handle = tensor.dtype == tf.resource
                    found = self._stack(op, tensor, k) if is_handle else self.whole(tensor, k)
                    node.input.append(self._nodes.name(found))
            node.input.extend(self.controls(op, k))
        if op.type == "StackPopV2":
            self._want(self._structure.push_of(op))

    def _whole_size(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns the whole shape, size or rank of what has rows, in device k's own loop."""
        op = tensor.op
        given = op.inputs[tensor.value_index if op.type == "ShapeN" else 0]
        state = self._analysis.state(given)
        if state is WHOLE or self._analysis.is_at_hand(given):
            self._want(op)
            return self._output(tensor, k)
        if op.type == "Rank" or isinstance(state, Partial):
            return self._writer.own(tensor, k)
        facts = self._analysis.facts
        multiple = facts.multiple(given, state.axis) if isinstance(state, Rows) else None
        if not isinstance(state, Rows) or not multiple or op.type == "Size":
            raise loops.LoopWholeError(op, "the number of all rows is wanted")
        key = ("size", tensor.ref(), k)
        if key not in self._memo:
            self._memo[key] = self._scaled_up(tensor, state, multiple, k)
        return self._memo[key]

    def _scaled_up(self, tensor: tf.Tensor, state: Rows, multiple: int, k: int) -> str:
        own, dtype, device = self._writer.own(tensor, k), tensor.dtype, self._devices[k]
        total = self._writer.joins.total(state.space, dtype)
        total = self.entered(total, dtype, self._structure.loop(tensor.op), k)
        mask = (
            np.arange(self._writer.joins.rank(tensor.op.inputs[tensor.value_index])) == state.axis
        )
        multiples = (mask * multiple).astype(dtype.as_numpy_dtype)
        scale = self._nodes.constant(multiples, device, own)
        everything = self._nodes.add("Mul", [scale, total], device, T=dtype)
        is_rows = self._nodes.constant(mask, device, own)
        return self._nodes.add("SelectV2", [is_rows, everything, own], device, T=dtype)

    # Lists and stacks.

    def handle(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns device k's own TensorArray or stack."""
        op = tensor.op
        if self._analysis.is_split(op) and op.type in ("TensorArrayV3", "TensorArrayGradV3"):
            return self._writer.own_copies(tensor)[k]
        return self._own_handle(tensor, k, "", self.handle)

    def _stack(self, op: tf.Operation, tensor: tf.Tensor, k: int) -> Reference:
        """Returns device k's own stack of whole values, for an operation of a loop."""
        maker = loops.handle_of(tensor)
        if maker.type != "StackV2":
            raise loops.LoopWholeError(op, f"a loop's body uses {maker.type}")
        return self._own_handle(tensor, k, "whole/", functools.partial(self._stack, op))

    def _own_handle(
        self, tensor: tf.Tensor, k: int, kind: str, of: Callable[[tf.Tensor, int], Reference]
    ) -> Reference:
        op = tensor.op
        key = ("handle", op, k, kind)
        if key not in self._memo:
            name = f"tower_{k}/handle/{kind}{op.name}"
            node = self._nodes.copy(op, name, self._devices[k], nodes.attributes_of(op))
            self.set_frame(node, k)
            for given in op.inputs:
                is_handle = given.dtype == tf.resource
                found = of(given, k) if is_handle else self.whole(given, k)
                node.input.append(self._nodes.name(found))
            node.input.extend(self.controls(op, k))
            if op.type == "StackV2":
                node.set("stack_name", node.attr["stack_name"].s + f"/{kind}{k}".encode())
            self._memo[key] = node.name
        return nodes.output(self._memo[key], tensor.value_index)

    # Frames.

    def set_frame(self, node: nodes.Node, k: int) -> None:
        """Puts what enters a loop into device k's own."""
        if node.op in kinds.ENTERS:
            node.set("frame_name", node.attr["frame_name"].s + f"/tower_{k}".encode())

    def entered(
        self, reference: Reference, dtype: tf.DType, loop: loops.Context | None, k: int
    ) -> Reference:
        """Returns a value from outside of all loops as it is in device k's own loop.

        Args:
            reference: The value.
            dtype: Its dtype.
            loop: The loop, if any.
            k: The device.
        """
        if loop is None:
            return reference
        key = ("enter", self._nodes.name(reference), id(loop), k)
        if key not in self._memo:
            outer = self.entered(reference, dtype, self._structure.outer(loop), k)
            frame = self._structure.frame_name(loop) + f"/tower_{k}".encode()
            self._memo[key] = self._nodes.add(
                "Enter",
                [outer],
                self._devices[k],
                T=dtype,
                frame_name=frame,
                is_constant=True,
                parallel_iterations=loop.parallel_iterations,
            )
        return self._memo[key]

    @contextlib.contextmanager
    def inside(self, op: tf.Operation) -> Iterator[None]:
        """While the inputs of an operation's copies are made: they are in a loop if it is."""
        before, self._is_inside = self._is_inside, self._structure.loop(op) is not None
        yield
        self._is_inside = before

    @contextlib.contextmanager
    def _entered_part(self) -> Iterator[None]:
        before, self._is_inside = self._is_inside, True
        yield
        self._is_inside = before

    # What waits for what.

    def before_copies(self, op: tf.Operation) -> None:
        """Has what waits for a push to a stack made as well, and the push before a pop."""
        if op.type == "StackPushV2":
            for waiting in op._control_outputs:
                if self._writer.has_copies(waiting):
                    raise loops.LoopWholeError(op, "a copy waits for a push to a stack")
                self._want(waiting)
        if op.type == "StackPopV2" and self._analysis.how.get(op) is not None:
            self._writer.want_copies(self._structure.push_of(op))

    def controls(self, op: tf.Operation, k: int) -> list[str]:
        """Returns the control inputs of a copy on device k."""
        found = []
        for control in op.control_inputs:
            if control.type == "StackPushV2":
                continue
            has_copies = self._writer.has_copies(control)
            is_effect = self._structure.behind_effects.asks_for(op, control)
            is_of_loop = self._structure.own_loop(control) is not None
            if is_of_loop and not self._is_in_whole_loop(control):
                if has_copies:
                    self._writer.want_copies(control)
                    found.append("^" + self._writer.copy_name(control, k))
                else:
                    self._want(control)
                    found.append("^" + self.name(control, k))
            elif has_copies:
                if is_effect:
                    self._writer.want_copies(control)
                if control in self._writer.run_split:
                    found.append("^" + self._writer.copy_name(control, k))
            elif is_effect or is_waited_for(control):
                found += map(self._nodes.wait, self._writer.copied.waits(control, k))
        return found

    def finish(self) -> None:
        """Lets the counters of devices' loops wait for the pushes to their stacks."""
        makers = [(self._writer.run_split, self._writer.copy_name), (self._copied, self.name)]
        for ops, name in makers:
            for push in [op for op in ops if op.type == "StackPushV2"]:
                for waiting in push._control_outputs:
                    for k in range(len(self._devices)):
                        node = self._nodes.by_name.get(self.name(waiting, k))
                        if node is not None:
                            node.input.append("^" + name(push, k))


def is_waited_for(control: tf.Operation) -> bool:
    """Whether a copy waits for an operation that runs once and comes after no effect.

    It waits for pivots, and for reads of tables, which may be written later. Reads and writes of
    variables are ordered by `reads_first`.
    """
    if control._get_control_flow_context() is not None:
        return True
    found: set[tf.Operation] = set()
    waiting = [control]
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        if op.type in kinds.READS_OF_TABLES or len(found) > _MANY:
            return True
        waiting.extend(op.control_inputs)
        if op.type in ("NoOp", "Identity", "Const"):
            waiting.extend(tensor.op for tensor in op.inputs)
    return False
