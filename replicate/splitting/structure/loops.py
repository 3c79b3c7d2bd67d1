"""Loops, branches, stacks and lists of a graph, and what is assumed of them.

`Structure` knows which loop an operation is in, which push fills a stack that is read, and which
list a tensor may be. `Assumptions` holds what a pass over the graph takes for granted of loops and
lists that it has not seen whole.
"""

import collections
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NoReturn, Protocol, TypeAlias, TypeVar

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.states import FLOW, WHOLE, ListOf
from replicate.splitting.structure import frames, kinds, order

# What makes a list. Optional values, which branches keep for their gradients, count as lists.
NEW_LISTS = (
    *("EmptyTensorList", "TensorListReserve", "TensorListFromTensor"),
    *("OptionalFromValue", "OptionalNone"),
)

_ARRAYS = ("TensorArrayV3", "TensorArrayGradV3")
_ARRAY_WRITES = ("TensorArrayWriteV3", "TensorArrayScatterV3", "TensorArraySplitV3")
_LIST_WRITES = ("TensorListPushBack", "TensorListSetItem")
_LIST_READS = {"TensorListPopBack": 1, "TensorListGetItem": 0}
_NONE = order.Behind(frozenset(), {})
_PASSING = (*kinds.ENTERS, *kinds.EXITS, "Identity", "StopGradient", "Switch", "NextIteration")

Each = TypeVar("Each")

_ByMaker: TypeAlias = dict[tf.Operation, list[tf.Operation]]


class Context(Protocol):
    """A loop, or a branch, of version 1; TensorFlow's, or one of `functions`."""

    @property
    def outer_context(self) -> "Context | None":
        """What this one is in, if it is in one."""

    @property
    def parallel_iterations(self) -> int | None:
        """How many turns of a loop may run at a time."""

    def IsWhileContext(self) -> bool:  # noqa: N802  TensorFlow's name
        """Whether this is a loop."""


class AgainError(Exception):
    """An assumption was wrong and has been changed: the pass goes back to where it was asked.

    Args:
        place: The place of the first operation that may have asked.
    """

    def __init__(self, place: int = 0):
        super().__init__(place)
        self.place = place


class Structure:
    """The loops of version 1 of a graph, its stacks, and its lists.

    A loop is identified by its control flow context.

    Args:
        graph: The graph, complete: functions are lowered before.
        behind_effects: The operations with effects, and those that come after one.

    Attributes:
        inside: The operations of each outermost loop.
        pops: The operations that read from stacks.
        behind_effects: As given.
    """

    def __init__(self, graph: tf.Graph, behind_effects: order.Behind = _NONE):
        self._frames: dict[Context | None, bytes] = {}
        self._starts: list[tf.Tensor] = []
        self.inside: dict[Context, list[tf.Operation]] = collections.defaultdict(list)
        self.pops: list[tf.Operation] = []
        self._array_writes: _ByMaker = collections.defaultdict(list)
        self._pushes: _ByMaker = collections.defaultdict(list)
        self._stack_roots: dict[tf.Operation, set[Context | None]] = collections.defaultdict(set)
        self._list_writes: _ByMaker = {}
        self._sources: dict[Hashable, list[tf.Operation]] = {}
        ops = graph.get_operations()
        for op in ops:
            self._note(op)
        self._find_list_writes([op for op in ops if op.type in _LIST_WRITES])
        self._branches = _of_branches(ops)
        self.behind_effects = behind_effects

    def _note(self, op: tf.Operation) -> None:
        root = self.root(op)
        if root is not None:
            self.inside[root].append(op)
        if op.type in kinds.ENTERS:
            self._frames.setdefault(self.own_loop(op), op.get_attr("frame_name"))
        elif op.type in ("TensorArrayV3", "EmptyTensorList", "TensorListReserve", "OptionalNone"):
            self._starts.append(op.outputs[-1])
        elif op.type in _ARRAY_WRITES:
            self._array_writes[handle_of(op.inputs[0])].append(op)
        elif op.type in ("StackPushV2", "StackPopV2"):
            stack = handle_of(op.inputs[0])
            self._stack_roots[stack].add(root)
            if op.type == "StackPushV2":
                self._pushes[stack].append(op)
            else:
                self.pops.append(op)

    def is_free(self, op: tf.Operation) -> bool:
        """Whether an operation runs in each step for its value alone, so that it may be replaced.

        What is in a branch may have no value; what comes after an effect is there for that, too.
        """
        return self._is_of_step(op) and op not in self.behind_effects

    def may_be_passed(self, op: tf.Operation) -> bool:
        """Whether an operation's first input may stand for it."""
        behind = self.behind_effects
        is_read = any(tensor.op in behind for tensor in op.inputs[1:])
        is_asked = any(behind.asks_for(op, control) for control in op.control_inputs)
        return self._is_of_step(op) and not is_read and not is_asked

    def only_waits_for_effects(self, op: tf.Operation) -> bool:
        """Whether an operation comes after effects, if at all, only as it waits for what does."""
        read = (tensor.op for tensor in op.inputs)
        return self._is_of_step(op) and not any(each in self.behind_effects for each in read)

    def _is_of_step(self, op: tf.Operation) -> bool:
        return op not in self._branches and self.own_loop(op) is None

    # Loops.

    @staticmethod
    def own_loop(op: tf.Operation) -> Context | None:
        """Returns the loop that an operation belongs to, if any: of an exit the one it leaves."""
        return _loop_around(op._get_control_flow_context())

    @staticmethod
    def loop(op: tf.Operation) -> Context | None:
        """Returns the loop that an operation's outputs are in, if any."""
        return _loop_around(_context_of_outputs(op))

    def is_outermost(self, op: tf.Operation) -> bool:
        """Whether an operation's outputs are in no loop and in no branch."""
        return op not in self._branches and self.loop(op) is None

    @staticmethod
    def outer(loop: Context) -> Context | None:
        """Returns the loop around a loop, if any."""
        return _loop_around(loop.outer_context)

    @staticmethod
    def root(op: tf.Operation) -> Context | None:
        """See the function `root`."""
        return root(op)

    def frame_name(self, loop: Context) -> bytes:
        """Returns the name of a loop's frame."""
        return self._frames[loop]

    def loops_sharing_stacks(self, root: Context) -> set[Context]:
        """Returns an outermost loop, and those that it shares stacks with, directly or not."""
        found: set[Context] = set()
        waiting: list[Context | None] = [root]
        while waiting:
            each = waiting.pop()
            if each not in found and each is not None:
                found.add(each)
                for sharing in self._stack_roots.values():
                    if each in sharing:
                        waiting.extend(sharing)
        return found

    # Stacks and TensorArrays.

    def push_of(self, op: tf.Operation) -> tf.Operation | None:
        """Returns the push to the stack that an operation uses, or None unless there is one."""
        pushes = self.pushes(op)
        return pushes[0] if len(pushes) == 1 else None

    def pushes(self, op: tf.Operation) -> Sequence[tf.Operation]:
        """Returns the pushes to the stack that an operation uses."""
        return self._pushes.get(handle_of(op.inputs[0]), [])

    def array_writes(self, array: tf.Operation) -> Sequence[tf.Operation]:
        """Returns the operations that write to a TensorArray."""
        return self._array_writes.get(array, [])

    def with_pops(
        self, ops: Iterable[tf.Operation]
    ) -> tuple[set[tf.Operation], dict[tf.Operation, list[tf.Operation]]]:
        """Adds to operations what is made from them by way of stacks.

        Args:
            ops: Operations, with all that is made from them in other ways.

        Returns:
            The operations; and for each pop from a stack the push that it comes after.
        """
        found, number = set(ops), -1
        while number != len(found):
            number = len(found)
            for pop in self.pops:
                if pop not in found and self.push_of(pop) in found:
                    found |= {pop} | order.behind(pop.outputs)
        pushes = {pop: self.push_of(pop) for pop in self.pops if pop in found}
        return found, {pop: [push] for pop, push in pushes.items() if push is not None}

    # Lists.

    def list_starts(self) -> list[tf.Tensor]:
        """Returns the outputs of operations that make empty arrays and lists."""
        return list(self._starts)

    def list_writes(self, source: tf.Operation) -> Sequence[tf.Operation]:
        """Returns the operations that write to a list that an operation makes."""
        return self._list_writes.get(source, [])

    def list_sources(self, tensor: tf.Tensor) -> list[tf.Operation]:
        """Returns the operations that made the lists that a tensor may be."""
        key = tensor.ref()
        if key not in self._sources:
            self._sources[key] = []  # a list is no source of itself
            self._sources[key] = self._find_sources(tensor)
        return self._sources[key]

    def _find_list_writes(self, writes: Sequence[tf.Operation]) -> None:
        """Finds what is written to each list.

        A list that is an element of another one is found by what is written to that one: so this
        is repeated until nothing more is found.
        """
        number = -1
        while number != (number := sum(map(len, self._list_writes.values()))):
            self._sources.clear()
            found: _ByMaker = collections.defaultdict(list)
            for write in writes:
                for source in self.list_sources(write.inputs[0]):
                    found[source].append(write)
            self._list_writes = found
        self._sources.clear()

    def _find_sources(self, tensor: tf.Tensor) -> list[tf.Operation]:
        seen: set[Hashable] = set()
        waiting, found = [tensor], []
        while waiting:
            tensor = waiting.pop()
            if tensor.ref() not in seen:
                seen.add(tensor.ref())
                is_source = tensor.op.type in NEW_LISTS
                found.extend([tensor.op] if is_source else [])
                waiting.extend([] if is_source else self._before(tensor))
        return found

    def _before(self, tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        """Returns the lists that a list may be, or may be made from."""
        op = tensor.op
        if op.type in ("Merge", "AddN"):
            return list(op.inputs)
        if _LIST_READS.get(op.type) == tensor.value_index:
            sources = self.list_sources(op.inputs[0])
            writes = [write for source in sources for write in self.list_writes(source)]
            return [write.inputs[-1] for write in writes]
        if op.type == "IdentityN":
            return [op.inputs[tensor.value_index]]
        if op.type in (*_PASSING, *_LIST_WRITES, "TensorListPopBack", "ZerosLike"):
            return [op.inputs[0]]
        return []


class Assumptions:
    """What a pass over a graph assumes of loops and lists that it has not seen whole.

    The state of a loop's variable is needed before the loop's body is seen, and that of a list's
    The state of a loop's variable is needed before the loop's body is seen, and that of a list's
    elements before what is written to it. So a pass assumes them. If a rule finds an assumption to
    be wrong, it is changed, and `AgainError` is raised: the pass goes on from the first operation
    that asked for it. This ends, since no change is undone: an array or a loop is split, then
    perhaps whole; of a list nothing is assumed, then the state of its elements, then perhaps that
    it is whole; a loop's sum is partial, then perhaps not. As a last resort, all arrays and lists
    are whole.

    Args:
        structure: The graph's loops and lists.

    Attributes:
        structure: As given.
        place: The place of the operation that the pass has come to.
        elements: The states of what arrays and stacks hold, by the operation that makes them, as
            far as this pass has seen.
        whole_loops: The outermost loops that run once, with the reasons.
    """

    def __init__(self, structure: Structure):
        self.structure = structure
        self.place = 0
        # The places where assumptions of lists, variables and loops were first asked.
        self._asked: dict[tf.Operation | Context, int] = {}
        self._lists: dict[tf.Operation, states.State] = {}
        self._whole_arrays: set[tf.Operation] = set()
        self._no_sums: set[tf.Operation] = set()
        self._has_lists = True
        self.elements: dict[tf.Operation, states.State] = {}
        self.whole_loops: dict[Context, str] = {}

    def go_back(self, place: int, elements: Mapping[tf.Operation, states.State]) -> None:
        """Lets a pass go on from an earlier operation.

        Args:
            place: The operation's place.
            elements: The `elements` as they were there.
        """
        self.place, self.elements = place, dict(elements)

    def _ask(self, about: tf.Operation | Context) -> None:
        """Notes that this operation asks what is assumed of a loop, or of what makes a list."""
        self._asked.setdefault(about, self.place)

    def _change(self, changed: Iterable[tf.Operation | Context]) -> NoReturn:
        """Lets the pass go back to the first that asked what was assumed."""
        raise AgainError(min((self._asked.get(each, self.place) for each in changed), default=0))

    # Loops.

    def why_whole(self, root: Context | None) -> str:
        """Returns why an outermost loop runs once; empty if it does not, or there is none."""
        if root is None:
            return ""
        self._ask(root)
        return self.whole_loops.get(root, "")

    def let_loop_be_whole(self, op: tf.Operation, reason: str) -> NoReturn:
        """Assumes that an operation's loop runs once, and those that share stacks with it."""
        root = self.structure.root(op)
        if root is None or root in self.whole_loops:
            raise ValueError(
                f"A loop can be whole but once; that of {op.name} should be once more, since "
                f"{reason}. This is an error in replicate; please report it."
            )
        sharing = self.structure.loops_sharing_stacks(root)
        for each in sharing:
            self.whole_loops.setdefault(each, f"{op.name}: {reason}")
        self._change(sharing)

    def may_be_sum(self, merge: tf.Operation) -> bool:
        """Whether a loop's variable may be a partial sum."""
        self._ask(merge)
        return merge not in self._no_sums

    def let_variable_be_joined(self, merge: tf.Operation) -> NoReturn:
        """Assumes that a loop's variable is no partial sum."""
        self._no_sums.add(merge)
        self._change([merge])

    # TensorArrays.

    def is_array_whole(self, array: tf.Operation) -> bool:
        """Whether a TensorArray is one, not one for each device."""
        first = _first_array(array)
        self._ask(first)
        return not self._has_lists or first in self._whole_arrays

    def let_array_be_whole(self, array: tf.Operation | None, reason: str) -> NoReturn:
        """Assumes that a TensorArray, and those of its gradients, are one."""
        if array is None or self.is_array_whole(array):
            self._let_all_be_whole(reason)
        self._whole_arrays.add(_first_array(array))
        self._change([_first_array(array)])

    # Lists.

    def element(self, source: tf.Operation) -> states.State | None:
        """Returns the state of a list's elements: WHOLE if it is one list, None if not assumed."""
        self._ask(source)
        return self._lists.get(source) if self._has_lists else WHOLE

    def want_list(self, source: tf.Operation, element: states.State) -> NoReturn:
        """Assumes the state of a list's elements, of which nothing was assumed."""
        self._lists[source] = element
        self._change([source])

    def want_lists(self, tensor: tf.Tensor, element: states.State) -> None:
        """Assumes the state of the elements of all lists that a tensor may be, if that fits."""
        sources = self.structure.list_sources(tensor)
        new = [source for source in sources if self.element(source) is None]
        fits = all(self.element(source) in (None, element) for source in sources)
        if new and fits and not any(source.type == "TensorListFromTensor" for source in new):
            self._lists.update((source, element) for source in new)
            self._change(new)

    def let_lists_be_whole(self, sources: Sequence[tf.Operation], reason: str) -> NoReturn:
        """Assumes that each of several lists is one."""
        if all(self.element(source) is WHOLE for source in sources):
            self._let_all_be_whole(reason)
        self._lists.update((source, WHOLE) for source in sources)
        self._change(sources)

    def wanted_whole(self, tensor: tf.Tensor, state: states.State, reason: str) -> None:
        """Notes that an operation that runs once reads a tensor."""
        if state is FLOW:
            self.let_array_be_whole(flow_source(tensor), reason)
        if isinstance(state, ListOf):
            self.let_lists_be_whole(self.structure.list_sources(tensor), reason)

    def _let_all_be_whole(self, reason: str) -> NoReturn:
        if not self._has_lists:
            raise ValueError(
                f"A list is on no device, but wanted whole, since {reason}. This is an error in "
                "replicate; please report it."
            )
        self._has_lists = False
        raise AgainError


def _of_branches(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns the operations that are in branches."""
    ops = list(ops)
    if not any(op.type in kinds.SWITCHES for op in ops):
        return set()
    before = {op: [*(tensor.op for tensor in op.inputs), *op.control_inputs] for op in ops}
    return frames.in_branches(before, lambda op: op.type)


def handle_of(tensor: tf.Tensor) -> tf.Operation:
    """Returns the operation that made the handle of a TensorArray or of a stack.

    Where branches give different ones this is the operation that merges them.
    """
    while tensor.op.type in (*_PASSING, "Merge"):
        op = tensor.op
        if op.type == "Merge":
            given = [each for each in op.inputs if each.op.type != "NextIteration"]
            if len({handle_of(each) for each in given}) > 1:
                return op
        tensor = op.inputs[0]
    return tensor.op


def flow_source(tensor: tf.Tensor) -> tf.Operation | None:
    """Returns the TensorArray whose operations a flow orders, or None if it is not known."""
    seen: set[tf.Operation] = set()
    waiting = [tensor]
    while waiting:
        op = waiting.pop().op
        if op in seen:
            continue
        seen.add(op)
        if op.type in _ARRAYS:
            return op
        if op.type in _ARRAY_WRITES:
            return handle_of(op.inputs[0])
        waiting.extend(each for each in reversed(op.inputs) if each.dtype == tf.float32)
    return None


def is_flow(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a flow, which orders a TensorArray's operations."""
    while tensor.op.type in ("Identity", "Switch", *kinds.ENTERS, *kinds.EXITS):
        tensor = tensor.op.inputs[0]
    return tensor.op.type in _ARRAY_WRITES or (
        tensor.op.type in _ARRAYS and tensor.value_index == 1
    )


def _first_array(array: tf.Operation) -> tf.Operation:
    """Returns the array that one is, or is a gradient of, perhaps of a gradient."""
    while array.type == "TensorArrayGradV3":
        array = handle_of(array.inputs[0])
    return array


def root(op: tf.Operation) -> Context | None:
    """Returns the outermost of the loops that an operation belongs to, if any."""
    loop = outer = _loop_around(op._get_control_flow_context())
    while outer is not None:
        loop, outer = outer, _loop_around(outer.outer_context)
    return loop


def _context_of_outputs(op: tf.Operation) -> Context | None:
    context: Context | None = op._get_control_flow_context()
    if op.type in kinds.EXITS and context is not None and context.IsWhileContext():
        return context.outer_context
    return context


def _loop_around(context: Context | None) -> Context | None:
    while context is not None and not context.IsWhileContext():
        context = context.outer_context
    return context
