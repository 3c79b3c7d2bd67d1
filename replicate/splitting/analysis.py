"""Gives every tensor of a graph its state, by the rules.

It is one pass over the operations behind the batch, each after what it reads. What lists and loops
hold is assumed, since only what comes later tells; if an assumption turns out to be wrong, it is
changed, and the pass goes on from the first operation that asked for it.

If something in a loop is split, each device runs the loop for itself, with copies of all that is
whole in it. What would have to be joined in there is wanted of no device: then the loop is whole.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.splitting import mirrored as mirroring
from replicate.splitting import states
from replicate.splitting.inference import facts as known
from replicate.splitting.inference import folding
from replicate.splitting.rules import registry
from replicate.splitting.states import (
    COPIED,
    OWN,
    SIZE,
    WHOLE,
    How,
    Local,
    Partial,
    RowNumbers,
    Rows,
    Space,
    Split,
    Steps,
    WholeError,
)
from replicate.splitting.structure import definitions, effects, equal, kinds, loops

LEAVES = folding.LEAVES
FILLS = ("Const", "Fill")  # of no cost
_OF_LOOPS = (
    *kinds.ENTERS,
    *kinds.EXITS,
    *kinds.MERGES,
    *kinds.SWITCHES,
    *kinds.WAYS_BACK,
    "LoopCond",
)
_OF_BRANCHES = (*kinds.MERGES, *kinds.SWITCHES)
_ON_STACKS = ("StackPopV2", "StackPushV2", "StackV2")
MOST_DIMENSIONS = 8  # of a tensor that TensorFlow cuts


class Given(NamedTuple):
    """A tensor of the batch.

    Attributes:
        tensor: The whole one.
        state: What each device holds of it: `Rows`, or SIZE for the shape of a sparse tensor.
        parts: The K parts, if they are not cut from the whole one.
    """

    tensor: tf.Tensor
    state: states.State
    parts: tuple[tf.Tensor, ...] = ()


class Analysis:
    """The states of a graph's tensors.

    Args:
        given: The tensors of the batch.
        batch: The space of its rows.
        facts: What is known for every size of the batch.
        assumptions: What is assumed of the graph's loops, stacks and lists.
        mirrored: The variables of which each device has a copy.
        random_numbers: `"one_device"` or `"per_device"`.

    Attributes:
        given: The tensors of the batch, by `ref()`.
        mirrored: As given.
        how: How operations are split, SIZE or COPIED; whole ones are not listed.
        why: Why operations with rows are whole.
    """

    def __init__(
        self,
        given: Sequence[Given],
        batch: Space,
        facts: known.Facts,
        assumptions: loops.Assumptions,
        mirrored: mirroring.Mirrored,
        random_numbers: str,
    ):
        self.given: Mapping[Hashable, Given] = {each.tensor.ref(): each for each in given}
        self.batch = batch
        self.facts = facts
        self.structure = assumptions.structure
        self.assumptions = assumptions
        self.mirrored = mirrored
        self._random_numbers = random_numbers
        self._spaces: dict[Hashable, Space] = {}
        self._aside: Set[tf.Operation] = frozenset()
        self._begin()

    def _begin(self) -> None:
        self.how: dict[tf.Operation, How] = {}
        self.why: dict[tf.Operation, str] = {}
        # NOTE: by `id`, which is fast; tensors live as long as the graph.
        self._states = {id(each.tensor): each.state for each in self.given.values()}
        self._at_hand = set(self._states)
        self._states |= {id(op.outputs[0]): COPIED for op in self.mirrored.handles}
        self._of_batch: set[tf.Operation] = set()  # what runs once on values as large as the batch
        self.assumptions.go_back(0, {})
        self.facts.begin(self.state)

    # What was found.

    def state(self, tensor: tf.Tensor) -> states.State:
        """Returns the state of a tensor."""
        return self._states.get(id(tensor), WHOLE)

    def is_at_hand(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor has rows, and its whole value is there as well."""
        return id(tensor) in self._at_hand

    @staticmethod
    def measured(leaf: tf.Tensor) -> tf.Tensor:
        """Returns the tensor of which one is the shape, size or rank."""
        return leaf.op.inputs[leaf.value_index if leaf.op.type == "ShapeN" else 0]

    def is_split(self, op: tf.Operation) -> bool:
        """Whether an operation has a copy on each device."""
        return isinstance(self.how.get(op), Split)

    def has_copies(self, op: tf.Operation) -> bool:
        """Whether devices run an operation each, rather than one device once."""
        how = self.how.get(op)
        if how is SIZE:
            return op.type in LEAVES or self.structure.own_loop(op) is not None
        return isinstance(how, Split)

    def waits_for(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the control inputs that are run for an operation's copies.

        NOTE: in loops it is the counter of turns that waits for the pushes to stacks.
        """
        found = []
        for control in op.control_inputs:
            is_asked = self.structure.behind_effects.asks_for(op, control)
            is_asked = is_asked or self.structure.own_loop(control) is not None
            if not is_asked and not self.has_copies(control):
                is_asked = effects.is_waited_for(control)
            if is_asked and control.type != "StackPushV2":
                found.append(control)
        return found

    def space_of(self, tensor: tf.Tensor) -> Space:
        """Returns the space of the rows that an operation picks, the same for equal picks."""
        key = equal.key(tensor)
        if key not in self._spaces:
            self._spaces[key] = Space(tensor.op.name, tensor)
        return self._spaces[key]

    # Finding it.

    def run(
        self,
        ops: Sequence[tf.Operation],
        aside: Set[tf.Operation],
        fetches: Sequence[types.Fetch],
    ) -> None:
        """Gives each operation's outputs a state.

        Args:
            ops: All operations behind the batch or mirrored variables, each behind what it reads.
            aside: Those that are made from variables alone, and have none of the batch's rows.
            fetches: What will be run.
        """
        self._aside = aside
        self._begin()
        elements: list[Mapping[tf.Operation, states.State]] = [{}]  # before each operation
        while (place := self.assumptions.place) <= len(ops):
            try:
                if place < len(ops):
                    self._decide(ops[place])
                else:
                    self._require_own_loops(fetches)
            except loops.AgainError as again:
                del elements[again.place + 1 :]
                self._forget(ops[again.place : place + 1])
                self.assumptions.go_back(again.place, elements[-1])
                self.facts.begin(self.state)
            else:
                known = self.assumptions.elements
                elements.append(elements[-1] if known == elements[-1] else dict(known))
                self.assumptions.place += 1
        self._copy_into_loops()

    def _forget(self, ops: Sequence[tf.Operation]) -> None:
        """Forgets what was found of operations."""
        for op in ops:
            self.how.pop(op, None)
            self.why.pop(op, None)
            self._of_batch.discard(op)
            for tensor in op.outputs:
                if tensor.ref() not in self.given:
                    self._states.pop(id(tensor), None)
                    self._at_hand.discard(id(tensor))

    def _decide(self, op: tf.Operation) -> None:
        if any(tensor.ref() in self.given for tensor in op.outputs):
            return
        inputs = [self.state(tensor) for tensor in op.inputs]
        reason = self.assumptions.why_whole(self.structure.root(op))
        if reason:
            if op.type == "Exit" or any(state is not WHOLE for state in inputs):
                self._be_whole(op, f"it is in a loop that is whole, since {reason}")
            return
        rule = registry.RULES.get(op.type)
        is_asked = rule is not None and op.type in registry.ALWAYS
        is_alike = all(state is WHOLE or state is COPIED for state in inputs)
        if self.mirrored.is_repeated(op):
            self._be_copied(op)
        elif op in self._aside and self.structure.loop(op) is None:
            if self._is_copied(op, inputs):
                self._be_copied(op)
        elif not is_asked and all(state is WHOLE for state in inputs):
            if self.structure.loop(op) is None:
                self._be_whole(op, "it is made from whole values")
        elif is_alike and not is_asked and self._is_copied(op, inputs):
            self._be_copied(op)
        elif op.type in LEAVES:
            # NOTE: of several shapes those of whole values are the same on all devices.
            measured = inputs if op.type == "ShapeN" else [SIZE]
            self._take(op, [WHOLE if each is WHOLE else SIZE for each in measured], SIZE)
        elif not is_asked and self._is_of_sizes(op, inputs):
            self._take(op, [SIZE] * len(op.outputs), SIZE)
        else:
            self._split(op, inputs, rule)

    def _is_copied(self, op: tf.Operation, inputs: Sequence[states.State]) -> bool:
        """Whether each device makes for itself what is made of values that all devices have.

        Where variables are mirrored, sums go to all devices: then what is made of sums is as well.
        """
        is_inside = self.structure.loop(op) is not None
        if op.type in _OF_LOOPS and (is_inside or op.type not in _OF_BRANCHES):
            return False
        if is_inside and op.type in LEAVES:
            return False
        if not is_inside and not self.mirrored.is_cheap(op):
            return False
        may_be_joined = bool(self.mirrored.handles) and not is_inside
        for tensor, state in zip(op.inputs, inputs, strict=True):
            is_joined = may_be_joined and (isinstance(state, Partial) or state is SIZE)
            if not (state is WHOLE or state is COPIED or is_joined):
                return False
            if tensor.op in self._of_batch and tensor.shape.rank != 0:
                return False
        if all(state is WHOLE or state is SIZE for state in inputs):
            return False
        if any(tensor.dtype in kinds.HANDLES for tensor in op.outputs):
            return op.type in ("Identity", "Switch") and inputs[0] is COPIED
        is_read = op.type in kinds.READS_OF_VALUES and inputs[0] is COPIED
        if definitions.called(op.node_def) or (kinds.is_stateful(op.type) and not is_read):
            return False
        return all(self._axis_with_rows(tensor) is None for tensor in op.outputs)

    def _split(
        self, op: tf.Operation, inputs: Sequence[states.State], rule: registry.Rule | None
    ) -> None:
        """Splits an operation by the first rule that fits, or lets it be whole."""
        of_ids = registry.OF_IDS.get(op.type, ()) if _have_ids(inputs) else ()
        attempts = [(each, inputs) for each in of_ids]
        attempts += [(rule, [_plain(each) for each in inputs])] if rule is not None else []
        if op.type not in _OF_LOOPS:  # to a rule, a copied value is a whole one
            attempts = [(each, [_as_whole(state) for state in seen]) for each, seen in attempts]
        reason = f"{op.type} has no rule"
        for each, given in attempts:
            try:
                how = self._answer(each, op, given)
            except WholeError as found:
                reason = str(found)
                continue
            gives = how.gives if isinstance(how, Split) else [SIZE] * len(op.outputs)
            self._take(op, gives, how)
            return
        if self._is_copied(op, inputs):
            self._be_copied(op)
        elif any(state is not WHOLE for state in inputs) or self.structure.loop(op) is None:
            self._be_whole(op, reason)

    def _answer(self, rule: registry.Rule, op: tf.Operation, inputs: Sequence[states.State]) -> How:
        """Returns how a rule splits an operation; raises `WholeError`."""
        known = (self.facts, self.structure, self.assumptions, self.batch)
        asked = (self.state, self.is_at_hand, self.space_of)
        found = rule(registry.Case(op, inputs, *known, *asked, self._random_numbers))
        if found is None:
            raise WholeError("its inputs do not fit its rule")
        if not isinstance(found, Split):
            return found
        if len(found.wants) != len(op.inputs) or len(found.gives) != len(op.outputs):
            raise ValueError(
                f"A rule answers for each input and output; that of {op.type} does not for "
                f"{op.name}: {found}. Correct the rule."
            )
        self._require_cuts(op, found)
        return found

    def _require_cuts(self, op: tf.Operation, found: Split) -> None:
        """Raises `WholeError` if a tensor with rows could not be cut into them."""
        pairs = zip((*op.inputs, *op.outputs), (*found.wants, *found.gives), strict=True)
        for rank in (self.facts.rank(tensor) for tensor, state in pairs if isinstance(state, Rows)):
            if rank is None:
                raise WholeError("the rank of a tensor is not known")
            if rank > MOST_DIMENSIONS:
                raise WholeError("a tensor has more dimensions than kernels cut")

    def _take(self, op: tf.Operation, outputs: Sequence[states.State], how: How) -> None:
        self.how[op] = how
        for tensor, state in zip(op.outputs, outputs, strict=True):
            self._states[id(tensor)] = state

    def _be_copied(self, op: tf.Operation) -> None:
        """Lets each device make for itself what an operation makes, of whole values.

        In a loop all devices have copies of it; else the first one runs the operation itself.
        """
        given = [COPIED] * len(op.outputs)
        if self.structure.loop(op) is not None:
            self._take(op, given, Split([OWN] * len(op.inputs), given))
            return
        for tensor in op.inputs:
            self.assumptions.wanted_whole(tensor, self.state(tensor), "each device reads it")
        self._take(op, given, COPIED)

    def _be_whole(self, op: tf.Operation, reason: str) -> None:
        """Lets an operation run once; outputs with rows count as rows at hand."""
        for tensor in op.inputs:
            self.assumptions.wanted_whole(tensor, self.state(tensor), reason)
            is_of_batch = (
                isinstance(self.state(tensor), (Rows, Local)) or tensor.op in self._of_batch
            )
            if is_of_batch and tensor.dtype != tf.resource and tensor.shape.rank != 0:
                self._of_batch.add(op)
            if isinstance(self.state(tensor), Rows):
                self.why[op] = reason
        for tensor in op.outputs:
            axis = self._axis_with_rows(tensor)
            if axis is not None:
                if op.type not in FILLS:
                    self.why[op] = reason
                self._states[id(tensor)] = Rows(axis, self.batch)
                self._at_hand.add(id(tensor))

    def _axis_with_rows(self, tensor: tf.Tensor) -> int | None:
        """Returns the first axis of a tensor that has the batch's rows, or None."""
        if tensor.op in self._aside:
            return None
        if tensor.dtype in kinds.HANDLES or tensor.dtype._is_ref_dtype:
            return None
        extents = self.facts.shape(tensor) or ()
        return next((n for n, each in enumerate(extents) if each.has_rows(self.batch)), None)

    def _is_of_sizes(self, op: tf.Operation, inputs: Sequence[states.State]) -> bool:
        """Whether an operation makes small whole numbers of sizes."""
        if not all(state in (WHOLE, COPIED, SIZE) for state in inputs):
            return False
        if op.type not in folding.FOLDED or not all(_is_number(each) for each in op.outputs):
            return False
        if op.type in ("BroadcastArgs", "BroadcastGradientArgs", "ConcatOffset"):
            # NOTE: they would compare a whole shape with a device's own.
            return all(
                state is SIZE or self._is_without_rows(tensor)
                for tensor, state in zip(op.inputs, inputs, strict=True)
            )
        return all(self._is_small(tensor) for tensor in op.outputs)

    def _is_without_rows(self, shape: tf.Tensor) -> bool:
        """Whether a shape has no entry of rows, so that it is the same on all devices."""
        if self.facts.value(shape) is None:
            return False
        return not any(entry.has_rows() for entry in self.facts.shape_entries(shape) or ())

    def _is_small(self, tensor: tf.Tensor) -> bool:
        extents = self.facts.shape(tensor)
        return (
            extents is not None and len(extents) <= 1 and all(e.size is not None for e in extents)
        )

    # Loops that each device runs for itself.

    def _in_own_loops(self) -> list[tf.Operation]:
        """Returns the operations of loops in which something is split, or that share stacks."""
        inside = self.structure.inside
        split = [root for root, ops in inside.items() if any(op in self.how for op in ops)]
        own = {each for root in split for each in self.structure.loops_sharing_stacks(root)}
        return [op for root, ops in inside.items() if root in own for op in ops]

    def _require_own_loops(self, fetches: Sequence[types.Fetch]) -> None:
        """Lets a loop be whole in which devices would need what they make together."""
        inside = self._in_own_loops()
        running = self._run_by(fetches) if inside else ()
        for op in inside:
            reason = self._why_not_own(op) if op in running else ""
            if reason:
                self.assumptions.let_loop_be_whole(op, reason)

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
            is_once = self.how.get(op, COPIED) is COPIED
            waiting += op.control_inputs if is_once else self.waits_for(op)
            if op.type == "StackPopV2":
                waiting += self.structure.pushes(op)
        return found

    def _why_not_own(self, op: tf.Operation) -> str:
        """Returns why devices cannot have copies of an operation of a loop; empty if they can."""
        how = self.how.get(op)
        if how is SIZE:
            return ""
        if not self._may_copy_into_loop(op):
            return f"{op.type} has a state"
        if op.type == "StackPopV2" and self.structure.push_of(op) is None:
            return "a stack is filled in several places"
        wants = how.wants if isinstance(how, Split) else [WHOLE] * len(op.inputs)
        reasons = map(self._why_not_in_loop, op.inputs, wants)
        return next(filter(None, reasons), "")

    def _may_copy_into_loop(self, op: tf.Operation) -> bool:
        """Whether devices' own loops may have copies of an operation, split or not."""
        return op in self.how or op.type in _OF_LOOPS + _ON_STACKS or not kinds.is_stateful(op.type)

    def _why_not_in_loop(self, tensor: tf.Tensor, want: states.View) -> str:
        """Returns why a device's own loop cannot have a view of a tensor; empty if it can."""
        state = self.state(tensor)
        if self.structure.loop(tensor.op) is None or state == want:
            return ""
        if state is SIZE:
            is_known = want is OWN or self._can_be_counted(tensor)
            return "" if is_known else "the number of all rows is wanted"
        is_there = state is WHOLE or state is COPIED or self.is_at_hand(tensor)
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
            if id(tensor) in seen or self.state(tensor) is not SIZE:
                continue
            seen.add(id(tensor))
            if op.type in LEAVES:
                if self.entries_in_loop(tensor) is None:
                    return False
            elif op.type == "StackPopV2":
                push = self.structure.push_of(op)
                waiting.extend(() if push is None else push.inputs[1:])
            elif op.type != "TensorListElementShape":
                waiting.extend(op.inputs)
        return True

    def entries_in_loop(self, leaf: tf.Tensor) -> int | None:
        """Returns how many entries of a loop's shape or the like each row makes.

        It is 0 if a device's own is that of all rows, and None if a device cannot know that one.
        """
        op, given = leaf.op, self.measured(leaf)
        state = self.state(given)
        if op.type == "Rank" or not isinstance(state, (Rows, Local)):
            return 0
        if isinstance(state, Local) or op.type == "Size":
            return None
        return self.facts.multiple(given, state.axis)

    def _copy_into_loops(self) -> None:
        """Lets devices have copies of what is whole in their loops, and their arrays and stacks."""
        for op in filter(self._may_be_copied, self._in_own_loops()):
            self._copy_into_loop(op)
        users = [op for op in self.how if op.type.startswith(("Stack", "TensorArray"))]
        seen: set[tf.Operation] = set()
        while users:
            makers = {each.op for each in users.pop().inputs if each.dtype == tf.resource} - seen
            seen |= makers
            users += makers
            for op in makers:
                self._copy_into_loop(op)

    def _copy_into_loop(self, op: tf.Operation) -> None:
        """Lets devices have copies of an operation, the same ones of what is whole."""
        self.how.setdefault(op, Split([WHOLE] * len(op.inputs), [COPIED] * len(op.outputs)))
        for tensor in op.outputs:
            if self.state(tensor) is WHOLE:
                self._states[id(tensor)] = COPIED


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype in (tf.int32, tf.int64, tf.bool)


def _have_ids(inputs: Sequence[states.State]) -> bool:
    """Whether a tensor has numbers of rows, or a value of each device's own."""
    return any(isinstance(state, (Local, RowNumbers)) for state in inputs)


def _as_whole(state: states.State) -> states.State:
    return WHOLE if state is COPIED else state


def _plain(state: states.State) -> states.State:
    """Returns a state whose values mean the same on each device."""
    return state.plain if isinstance(state, Rows) else state
