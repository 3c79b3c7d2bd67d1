"""What copies wait for, and what devices' own loops of version 1 have: frames, sizes of all rows.

A device's loop is in a frame of its own. What a loop reads from outside enters each device's. A
size is made there from the device's own rows, and, where it is wanted whole, once more from the
number of all rows: by copies that begin with `tower_<k>/of_all/`.
"""

from typing import TYPE_CHECKING

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import analysis as analyses
from replicate.splitting.structure import loops
from replicate.splitting.structure.nodes import Reference

_PUSH = "StackPushV2"

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


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

    # Sizes.

    def of_all(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns what device k's copies read that make sizes of all rows, and keep these."""
        if tensor.dtype == tf.resource:
            return self._writer.own_copies(tensor, of_all=True)[k]
        return self._writer.whole_on(tensor, k)

    def size_of_all(self, size: tf.Tensor, k: int) -> Reference:
        """Returns a size of all rows in device k's own loop."""
        op = size.op
        if op.type == "TensorListElementShape":
            shape, after = self._analysis.facts.literal(size), self._writer.own(size, k)
            return self._nodes.constant(shape, self._devices[k], after)
        if op.type not in analyses.LEAVES:
            return self._writer.own_copies(size, of_all=True)[k]
        entries = self._analysis.own_loops.entries(size)
        if not entries:
            return self._writer.own(size, k)
        key = ("size", size.ref(), k)
        if key not in self._memo:
            self._memo[key] = self._scaled_up(size, entries, k)
        return self._memo[key]

    def _scaled_up(self, shape: tf.Tensor, entries: int, k: int) -> str:
        measured = self._analysis.measured(shape)
        rows, dtype, device = self._writer.joins.rows(measured), shape.dtype, self._devices[k]
        own, total = (
            self._writer.own(shape, k),
            self._writer.joins.number_of_rows(rows.space, None, dtype),
        )
        total = self.entered(total, dtype, self._structure.loop(shape.op), k)
        mask = np.arange(self._writer.joins.rank(measured)) == rows.axis
        multiples = np.array(mask * entries, dtype.as_numpy_dtype)
        scale = self._nodes.constant(multiples, device, own)
        everything = self._nodes.add("Mul", [scale, total], device, T=dtype)
        is_rows = self._nodes.constant(mask, device, own)
        return self._nodes.add("SelectV2", [is_rows, everything, own], device, T=dtype)

    # Frames.

    @staticmethod
    def frame(name: bytes, k: int) -> bytes:
        """Returns the name of the frame of device k's own loop."""
        return name + f"/tower_{k}".encode()

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
            self._memo[key] = self._nodes.add(
                "Enter",
                [outer],
                self._devices[k],
                T=dtype,
                frame_name=self.frame(self._structure.frame_name(loop), k),
                is_constant=True,
                parallel_iterations=loop.parallel_iterations,
            )
        return self._memo[key]

    # What waits for what.

    def before_copies(self, op: tf.Operation, of_all: bool) -> None:
        """Has what waits for a push to a stack made as well, and the push before a pop."""
        if op.type == _PUSH:
            for waiting in filter(self._analysis.has_copies, op._control_outputs):
                self._writer.want_copies(waiting)
        push = self._structure.push_of(op) if op.type == "StackPopV2" else None
        if push is not None:
            self._writer.want_copies(push, of_all)

    def controls(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the operations that the copies of one wait for, or for the copies of these."""
        wanted = self._analysis.waits_for(op)
        for control in filter(self._analysis.has_copies, wanted):
            self._writer.want_copies(control)
        running = [each for each in op.control_inputs if each in self._writer.run_split]
        return wanted + [each for each in running if each not in wanted and each.type != _PUSH]

    def finish(self) -> None:
        """Lets the counters of devices' loops wait for the pushes to their stacks."""
        for of_all, copied in ((False, self._writer.run_split), (True, self._writer.run_of_all)):
            for push in [op for op in copied if op.type == _PUSH]:
                for waiting in push._control_outputs:
                    for k in range(len(self._devices)):
                        node = self._nodes.by_name.get(self._writer.copy_name(waiting, k))
                        if node is not None:
                            node.input.append("^" + self._writer.copy_name(push, k, of_all))
