"""Gives every tensor of a graph its state, by the rules.

It is one pass over the operations behind the batch, each after what it reads. What lists and loops
hold is assumed, since only what comes later tells; if an assumption turns out to be wrong, it is
changed, and the pass goes on from the first operation that asked for it.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.splitting import mirrored as mirroring
from replicate.splitting import own_loops, states
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
    WholeError,
)
from replicate.splitting.structure import definitions, effects, equal, kinds, loops

LEAVES = folding.LEAVES
FILLS = ("Const", "Fill")  # of no cost
SPREADS = ("BroadcastTo", "Fill", "Tile")  # make many entries of few, as many as they are told
_OF_BRANCHES = (*kinds.MERGES, *kinds.SWITCHES)
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
        self.own_loops = own_loops.OwnLoops(self)
        self._begin()

    def _begin(self) -> None:
        self.how: dict[tf.Operation, How] = {}
        self.why: dict[tf.Operation, str] = {}
        # NOTE: by `id`, which is fast; tensors live as long as the graph.
        self._states = {id(each.tensor): each.state for each in self.given.values()}
        self._at_hand = set(self._states)
        joined = self.mirrored.joined
        self._states |= {id(op.outputs[0]): COPIED for op in (*self.mirrored.handles, *joined)}
        self.how |= dict.fromkeys(joined, COPIED)
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
        if tensor.op.type == "DynamicPartition":
            key = (tensor.op.type, tensor.value_index, equal.key(tensor.op.inputs[1]))
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
                    self.own_loops.require(fetches)
            except loops.AgainError as again:
                del elements[again.place + 1 :]
                self._forget(ops[again.place : place + 1])
                self.assumptions.go_back(again.place, elements[-1])
                self.facts.begin(self.state)
            else:
                known = self.assumptions.elements
                elements.append(elements[-1] if known == elements[-1] else dict(known))
                self.assumptions.place += 1
        self.own_loops.copy()

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
        is_spread = bool(self.facts.static_rows) and op.type in SPREADS
        is_asked = rule is not None and (op.type in registry.ALWAYS or is_spread)
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
        if op.type in own_loops.OF_LOOPS and (is_inside or op.type not in _OF_BRANCHES):
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
        if op.type not in own_loops.OF_LOOPS:  # to a rule, a copied value is a whole one
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

    def copy_into_loop(self, op: tf.Operation) -> None:
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
