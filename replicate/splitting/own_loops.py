"""Loops that each device runs for itself, since something in them is split.

A device's loop has copies of all that is whole in it. If devices would need in there what they make
together, the loop is whole. That is known once the rest of the graph is decided.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.inference import folding
from replicate.splitting.states import COPIED, OWN, SIZE, WHOLE, Local, Rows, Split, Steps
from replicate.splitting.structure import kinds

if TYPE_CHECKING:
    from replicate.splitting import analysis as analyses

OF_LOOPS = (
    *kinds.ENTERS,
    *kinds.EXITS,
    *kinds.MERGES,
    *kinds.SWITCHES,
    *kinds.WAYS_BACK,
    "LoopCond",
)
_ON_STACKS = ("StackPopV2", "StackPushV2", "StackV2")


class OwnLoops:
    """The loops of a graph that devices run each for itself.

    Args:
        analysis: The states of the graph's tensors.
    """

    def __init__(self, analysis: "analyses.Analysis"):
        self._analysis = analysis

    def _in_own_loops(self) -> list[tf.Operation]:
        """Returns the operations of loops in which something is split, or that share stacks."""
        inside = self._analysis.structure.inside
        split = [
            root for root, ops in inside.items() if any(op in self._analysis.how for op in ops)
        ]
        own = {
            each for root in split for each in self._analysis.structure.loops_sharing_stacks(root)
        }
        return [op for root, ops in inside.items() if root in own for op in ops]

    def require(self, fetches: Sequence[types.Fetch]) -> None:
        """Lets a loop be whole in which devices would need what they make together."""
        inside = self._in_own_loops()
        running = self._run_by(fetches) if inside else ()
        for op in inside:
            reason = self._why_not_own(op) if op in running else ""
            if reason:
                self._analysis.assumptions.let_loop_be_whole(op, reason)

    def _run_by(self, fetches: Sequence[types.Fetch]) -> set[tf.Operation]:
        """Returns the operations that run, once or on each device, when `fetches` are run."""
        found: set[tf.Operation] = set()
        waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
        while waiting:
            op = waiting.pop()
            if op in found:
                continue
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
            is_once = self._analysis.how.get(op, COPIED) is COPIED
            waiting += op.control_inputs if is_once else self._analysis.waits_for(op)
            if op.type == "StackPopV2":
                waiting += self._analysis.structure.pushes(op)
        return found

    def _why_not_own(self, op: tf.Operation) -> str:
        """Returns why devices cannot have copies of an operation of a loop; empty if they can."""
        how = self._analysis.how.get(op)
        if how is SIZE:
            return ""
        if not self._may_be_copied(op):
            return f"{op.type} has a state"
        if op.type == "StackPopV2" and self._analysis.structure.push_of(op) is None:
            return "a stack is filled in several places"
        wants = how.wants if isinstance(how, Split) else [WHOLE] * len(op.inputs)
        reasons = map(self._why_not_in_loop, op.inputs, wants)
        return next(filter(None, reasons), "")

    def _may_be_copied(self, op: tf.Operation) -> bool:
        """Whether devices' own loops may have copies of an operation, split or not."""
        return (
            op in self._analysis.how
            or op.type in OF_LOOPS + _ON_STACKS
            or not kinds.is_stateful(op.type)
        )

    def _why_not_in_loop(self, tensor: tf.Tensor, want: states.View) -> str:
        """Returns why a device's own loop cannot have a view of a tensor; empty if it can."""
        state = self._analysis.state(tensor)
        if self._analysis.structure.loop(tensor.op) is None or state == want:
            return ""
        if state is SIZE:
            is_known = want is OWN or self._can_be_counted(tensor)
            return "" if is_known else "the number of all rows is wanted"
        is_there = state is WHOLE or state is COPIED or self._analysis.is_at_hand(tensor)
        if isinstance(want, Rows):
            if is_there and isinstance(want.space, Steps):
                return "steps of rows are cut"
            is_there |= isinstance(state, Rows) and state.plain == want.plain
            is_there |= isinstance(state, Local) and state.fits(want)
        is_joined = isinstance(want, Rows) or want is WHOLE or want is OWN
        return f"{tensor.op.type} is wanted whole" if is_joined and not is_there else ""

    def _can_be_counted(self, size: tf.Tensor) -> bool:
        """Whether a device can make a size of all rows in its own loop."""
        seen: set[int] = set()
        waiting = [size]
        while waiting:
            tensor = waiting.pop()
            op = tensor.op
            if id(tensor) in seen or self._analysis.state(tensor) is not SIZE:
                continue
            seen.add(id(tensor))
            if op.type in folding.LEAVES:
                if self.entries(tensor) is None:
                    return False
            elif op.type == "StackPopV2":
                push = self._analysis.structure.push_of(op)
                waiting.extend(() if push is None else push.inputs[1:])
            elif op.type != "TensorListElementShape":
                waiting.extend(op.inputs)
        return True

    def entries(self, leaf: tf.Tensor) -> int | None:
        """Returns how many entries of a loop's shape or the like each row makes.

        It is 0 if a device's own is that of all rows, and None if a device cannot know that one.
        """
        op, given = leaf.op, self._analysis.measured(leaf)
        state = self._analysis.state(given)
        if op.type == "Rank" or not isinstance(state, (Rows, Local)):
            return 0
        if isinstance(state, Local) or op.type == "Size":
            return None
        return self._analysis.facts.multiple(given, state.axis)

    def copy(self) -> None:
        """Lets devices have copies of what is whole in their loops, and their arrays and stacks."""
        for op in filter(self._may_be_copied, self._in_own_loops()):
            self._analysis.copy_into_loop(op)
        users = [op for op in self._analysis.how if op.type.startswith(("Stack", "TensorArray"))]
        seen: set[tf.Operation] = set()
        while users:
            makers = {each.op for each in users.pop().inputs if each.dtype == tf.resource} - seen
            seen |= makers
            users += makers
            for op in makers:
                self._analysis.copy_into_loop(op)
