"""Loops, branches, stacks and lists of a graph, and what is assumed of them.

`Structure` says what belongs to what: which loop an operation is in, which push fills the stack
that is read, which list a tensor may be. `Assumptions` holds what a pass over the graph takes for
granted of loops and lists before it has seen all of them.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.states import FLOW, WHOLE, ListOf
from replicate.splitting.structure import order

# What makes a list; an optional value, as branches keep for their gradients, is one like that.
NEW_LISTS = (
    *("EmptyTensorList", "TensorListReserve", "TensorListFromTensor"),
    *("OptionalFromValue", "OptionalNone"),
)

_ARRAYS = ("TensorArrayV3", "TensorArrayGradV3")
_ARRAY_WRITES = ("TensorArrayWriteV3", "TensorArrayScatterV3", "TensorArraySplitV3")
_LIST_WRITES = ("TensorListPushBack", "TensorListSetItem")
_LIST_READS = {"TensorListPopBack": 1, "TensorListGetItem": 0}
_EXITS = ("Exit", "RefExit")
_ENTERS = ("Enter", "RefEnter")
_SWITCHES = ("Switch", "RefSwitch")
_MERGES = ("Merge", "RefMerge")
_WAYS_BACK = ("NextIteration", "RefNextIteration")
_NONE = order.Behind(frozenset(), {})
_PASSING = (*_ENTERS, *_EXITS, "Identity", "StopGradient", "Switch", "NextIteration")


class AgainError(Exception):
    """An assumption was wrong and has been changed: the pass over the graph begins anew."""


class LoopWholeError(Exception):
    """A loop's body would need what all devices make together; no error reaches a user.

    Args:
        op: An operation of the loop.
        reason: Why.
    """

    def __init__(self, op: tf.Operation, reason: str):
        super().__init__(reason)
        self.op = op


class Structure:
    """The loops of version 1 of a graph, its stacks, and its lists.

    A loop is told by its control flow context. What is asked for is looked up once, so the graph
    is to be complete: functions are lowered before.

    Args:
        graph: The graph.
        behind_effects: The operations that come after one with an effect, and these.

    Attributes:
        pops: The operations that read from stacks.
        behind_effects: As given.
    """

    def __init__(self, graph: tf.Graph, behind_effects: order.Behind = _NONE):
        self._frames: dict[Any, bytes] = {}
        self._starts: list[tf.Tensor] = []
        self.pops: list[tf.Operation] = []
        self._array_writes: dict[Any, list] = collections.defaultdict(list)
        self._pushes: dict[Any, list] = collections.defaultdict(list)
        self._stack_roots: dict[Any, set] = collections.defaultdict(set)
        self._list_writes: dict[Any, list] = {}
        self._sources: dict[Any, list] = {}
        ops = graph.get_operations()
        for op in ops:
            self._note(op)
        self._find_list_writes([op for op in ops if op.type in _LIST_WRITES])
        self._branches = _of_branches(ops)
        self.behind_effects = behind_effects

    def _note(self, op: tf.Operation) -> None:
        if op.type in _ENTERS:
            self._frames.setdefault(self.own_loop(op), op.get_attr("frame_name"))
        elif op.type in ("TensorArrayV3", "EmptyTensorList", "TensorListReserve", "OptionalNone"):
            self._starts.append(op.outputs[-1])
        elif op.type in _ARRAY_WRITES:
            self._array_writes[handle_of(op.inputs[0])].append(op)
        elif op.type in ("StackPushV2", "StackPopV2"):
            stack = handle_of(op.inputs[0])
            self._stack_roots[stack].add(self.root(op))
            if op.type == "StackPushV2":
                self._pushes[stack].append(op)
            else:
                self.pops.append(op)

    def is_free(self, op: tf.Operation) -> bool:
        """Whether an operation runs in each step, for its values alone.

        Something else may stand for such a one. Of a branch that is not taken nothing may have a
        value; and what comes behind an effect is there for the effect as well.
        """
        return self._is_of_step(op) and op not in self.behind_effects

    def may_be_passed(self, op: tf.Operation) -> bool:
        """Whether an operation's first input may stand for it: it is there for nothing else."""
        others = [*op.control_inputs, *(tensor.op for tensor in op.inputs[1:])]
        return self._is_of_step(op) and not any(each in self.behind_effects for each in others)

    def _is_of_step(self, op: tf.Operation) -> bool:
        return op not in self._branches and op._get_control_flow_context() is None

    # Loops.

    @staticmethod
    def own_loop(op: tf.Operation) -> Any:
        """Returns the context of the loop that an operation belongs to; None: to none.

        An exit belongs to the loop that it leaves.
        """
        return _loop_around(op._get_control_flow_context())

    @staticmethod
    def loop(op: tf.Operation) -> Any:
        """Returns the context of the loop that an operation's outputs are in; None: in none."""
        context = op._get_control_flow_context()
        if op.type in _EXITS and context is not None and context.IsWhileContext():
            context = context.outer_context
        return _loop_around(context)

    def is_outermost(self, op: tf.Operation) -> bool:
        """Whether an operation's outputs are in no loop and in no branch."""
        if op in self._branches:
            return False
        context = op._get_control_flow_context()
        if op.type in _EXITS and context is not None and context.IsWhileContext():
            context = context.outer_context
        return context is None

    @staticmethod
    def outer(loop: Any) -> Any:
        """Returns the context of the loop around a loop; None: there is none."""
        return _loop_around(loop.outer_context)

    def root(self, op: tf.Operation) -> Any:
        """Returns the outermost of the loops that an operation belongs to; None: to none."""
        return root(op)

    def frame_name(self, loop: Any) -> bytes:
        """Returns the name of a loop's frame."""
        return self._frames[loop]

    def loops_sharing_stacks(self, root: Any) -> set:
        """Returns an outermost loop, and those that it shares stacks with, directly or not."""
        found, waiting = set(), [root]
        while waiting:
            root = waiting.pop()
            if root not in found and root is not None:
                found.add(root)
                for sharing in self._stack_roots.values():
                    if root in sharing:
                        waiting.extend(sharing)
        return found

    # Stacks and TensorArrays.

    @staticmethod
    def handle_of(tensor: tf.Tensor) -> tf.Operation:
        """See the function `handle_of`."""
        return handle_of(tensor)

    def push_of(self, op: tf.Operation) -> tf.Operation | None:
        """Returns the one push to the stack that an operation uses; None: there are several."""
        pushes = self._pushes.get(handle_of(op.inputs[0]), [])
        return pushes[0] if len(pushes) == 1 else None

    def array_writes(self, array: tf.Operation) -> Sequence[tf.Operation]:
        """Returns the operations that write to a TensorArray."""
        return self._array_writes.get(array, [])

    def with_pops(self, ops: Iterable[tf.Operation]) -> tuple[set, dict]:
        """Adds what is read from stacks to the operations that fill them.

        Args:
            ops: Operations, with all that is made from them but for what goes over stacks.

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
        """Returns the outputs of operations that make arrays and lists from no rows."""
        return list(self._starts)

    def list_writes(self, source: tf.Operation) -> Sequence[tf.Operation]:
        """Returns the operations that write to a list that an operation makes."""
        return self._list_writes.get(source, [])

    def push_backs(self, source: tf.Operation) -> list[tf.Operation]:
        """Returns the operations that append to a list that an operation makes."""
        return [op for op in self.list_writes(source) if op.type == "TensorListPushBack"]

    def list_sources(self, tensor: tf.Tensor) -> list[tf.Operation]:
        """Returns the operations that made a list, or the lists that it may be."""
        key = tensor.ref()
        if key not in self._sources:
            self._sources[key] = []  # a list is no source of itself
            self._sources[key] = self._find_sources(tensor)
        return self._sources[key]

    def _find_list_writes(self, writes: Sequence[tf.Operation]) -> None:
        """Finds what is written to each list.

        The sources of a list that is an element of another are what was written to that one, so
        lists are looked for until nothing more is found.
        """
        number = -1
        while number != (number := sum(map(len, self._list_writes.values()))):
            self._sources.clear()
            found = collections.defaultdict(list)
            for write in writes:
                for source in self.list_sources(write.inputs[0]):
                    found[source].append(write)
            self._list_writes = found
        self._sources.clear()

    def _find_sources(self, tensor: tf.Tensor) -> list[tf.Operation]:
        seen, waiting, found = set(), [tensor], []
        while waiting:
            tensor = waiting.pop()
            if tensor.ref() not in seen:
                seen.add(tensor.ref())
                is_source = tensor.op.type in NEW_LISTS
                found.extend([tensor.op] if is_source else [])
                waiting.extend([] if is_source else self._before(tensor))
        return found

    def _before(self, tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        """Returns the lists that a list may be, or may have been made from."""
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

    A loop's variable has a state before the body gives it one, and a list holds elements before
    something is written to it. So a pass assumes; and where a rule learns better, the assumption
    is changed, `AgainError` is raised, and the pass begins anew. This ends, since each change is
    made once and none is taken back: an array or a loop is split, then perhaps whole; of a list
    nothing is assumed, then a state of its elements, then perhaps that it is whole; a loop's sum
    is partial, then perhaps not. Where nothing is left to change, all arrays and lists are whole.

    Args:
        structure: The graph's loops and lists.

    Attributes:
        elements: What arrays and stacks hold, as far as this pass has seen: a state for each
            operation that makes one.
        whole_loops: The outermost loops that run once, with the reasons.
    """

    def __init__(self, structure: Structure):
        self._structure = structure
        self._lists: dict[tf.Operation, states.State] = {}
        self._whole_arrays: set[tf.Operation] = set()
        self._no_sums: set[tf.Operation] = set()
        self._has_lists = True
        self.elements: dict[tf.Operation, states.State] = {}
        self.whole_loops: dict[Any, str] = {}

    def begin(self) -> None:
        """Begins a pass."""
        self.elements = {}

    # Loops.

    def is_whole(self, root: Any) -> bool:
        """Whether an outermost loop runs once."""
        return root in self.whole_loops

    def make_loop_whole(self, op: tf.Operation, reason: str) -> None:
        """Lets the loop of an operation run once; raises nothing, but a new pass is to begin.

        Loops that share stacks with it do as well.
        """
        root = self._structure.root(op)
        if root is None or self.is_whole(root):
            raise ValueError(
                f"A loop can be whole but once; that of {op.name} should be once more, since "
                f"{reason}. This is an error in replicate; please report it."
            )
        for each in self._structure.loops_sharing_stacks(root):
            self.whole_loops.setdefault(each, f"{op.name}: {reason}")

    def may_be_sum(self, merge: tf.Operation) -> bool:
        """Whether a loop's variable may be a partial sum."""
        return merge not in self._no_sums

    def let_variable_be_joined(self, merge: tf.Operation) -> None:
        """Assumes that a loop's variable is no partial sum."""
        self._no_sums.add(merge)
        raise AgainError

    # TensorArrays.

    def is_array_whole(self, array: tf.Operation) -> bool:
        """Whether a TensorArray is one, not one for each device."""
        return not self._has_lists or _first_array(array) in self._whole_arrays

    def let_array_be_whole(self, array: tf.Operation | None, reason: str) -> None:
        """Assumes that a TensorArray, and those of its gradients, are one."""
        if array is None or self.is_array_whole(array):
            self._let_all_be_whole(reason)
        self._whole_arrays.add(_first_array(array))
        raise AgainError

    # Lists.

    def element(self, source: tf.Operation) -> states.State | None:
        """Returns the state of what a list holds; WHOLE: it is one list; None: not assumed."""
        return self._lists.get(source) if self._has_lists else WHOLE

    def want_list(self, source: tf.Operation, element: states.State) -> None:
        """Assumes what a list holds, if nothing was assumed yet."""
        if self.element(source) is None:
            self._lists[source] = element
            raise AgainError

    def want_lists(self, tensor: tf.Tensor, element: states.State) -> None:
        """Assumes what lists that a tensor may be hold, if that fits all of them."""
        sources = self._structure.list_sources(tensor)
        new = [source for source in sources if self.element(source) is None]
        fits = all(self.element(source) in (None, element) for source in sources)
        if new and fits and not any(source.type == "TensorListFromTensor" for source in new):
            self._lists.update((source, element) for source in new)
            raise AgainError

    def let_lists_be_whole(self, sources: Sequence[tf.Operation], reason: str) -> None:
        """Assumes that each of several lists is one."""
        if all(self.element(source) is WHOLE for source in sources):
            self._let_all_be_whole(reason)
        self._lists.update((source, WHOLE) for source in sources)
        raise AgainError

    def wanted_whole(self, tensor: tf.Tensor, state: states.State, reason: str) -> None:
        """Takes note that an operation that runs once reads a tensor."""
        if state is FLOW:
            self.let_array_be_whole(flow_source(tensor), reason)
        if isinstance(state, ListOf):
            self.let_lists_be_whole(self._structure.list_sources(tensor), reason)

    def _let_all_be_whole(self, reason: str) -> None:
        if not self._has_lists:
            raise ValueError(
                f"A list is on no device, but wanted whole, since {reason}. This is an error in "
                "replicate; please report it."
            )
        self._has_lists = False
        raise AgainError


def _of_branches(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns what runs only if a branch is taken."""
    ops = list(ops)
    if not any(op.type in _SWITCHES for op in ops):
        return set()
    before = {op: [*(tensor.op for tensor in op.inputs), *op.control_inputs] for op in ops}
    return in_branches(before, lambda op: op.type)


def in_branches(before: Mapping[Any, Sequence], kind: Callable[[Any], str]) -> set:
    """Returns what may be without a value, since it is in a branch that is not taken.

    Each `Switch` that is no loop's leads one branch deeper, and each `Merge` that is no loop's
    one back: what branches merge in is itself in the branch that they are in.

    Args:
        before: For each operation those that it reads, in order, and those that it waits for.
        kind: Returns an operation's kind.
    """
    depths: dict = {}
    waiting = [(each, False) for each in before]
    while waiting:
        each, is_ready = waiting.pop()
        if each in depths and not is_ready:
            continue
        others = before.get(each, ())
        if not is_ready:
            depths.setdefault(each, 0)  # of a loop's way back nothing is known yet
            waiting.append((each, True))
            waiting.extend((other, False) for other in others if other not in depths)
            continue
        depth, name = max((depths.get(other, 0) for other in others), default=0), kind(each)
        if name in _SWITCHES and (len(others) < 2 or kind(others[1]) != "LoopCond"):
            depth += 1
        if name in _MERGES and all(kind(other) not in _WAYS_BACK for other in others):
            depth -= 1
        depths[each] = max(depth, 0)
    return {each for each, depth in depths.items() if depth}


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
    """Returns the TensorArray whose operations a number orders; None: it is not known."""
    seen, waiting = set(), [tensor]
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
    """Whether a number is there for the order of a TensorArray's operations."""
    while tensor.op.type in ("Identity", "Switch", *_ENTERS, *_EXITS):
        tensor = tensor.op.inputs[0]
    return tensor.op.type in _ARRAY_WRITES or (
        tensor.op.type in _ARRAYS and tensor.value_index == 1
    )


def _first_array(array: tf.Operation) -> tf.Operation:
    """Returns the TensorArray that one is a gradient of, perhaps of a gradient."""
    while array.type == "TensorArrayGradV3":
        array = handle_of(array.inputs[0])
    return array


def root(op: tf.Operation) -> Any:
    """Returns the outermost of the loops that an operation belongs to; None: to none."""
    loop = _loop_around(op._get_control_flow_context())
    while loop is not None and _loop_around(loop.outer_context) is not None:
        loop = _loop_around(loop.outer_context)
    return loop


def _loop_around(context: Any) -> Any:
    while context is not None and not context.IsWhileContext():
        context = context.outer_context
    return context
