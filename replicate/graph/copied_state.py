"""What of a model's state each tower has, all towers share, or cannot be copied.

Operations without a state are copied as they are. Random operations draw for each tower by a
seed of its own, unless the model fixed one. Variables, tables and placeholders are shared.
What holds another state, as a queue or an iterator does, is made once where the model is
called once, and each call would have its own: such a model is called for each tower.
"""

from typing import Any

from replicate import errors
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.graph import copied_functions

# Operations with a state that are copied: each tower's acts on what it is given.
_COPIED = (
    "Assert",
    "Assign",
    "If",
    "Case",
    "CheckNumerics",
    "DisableCopyOnRead",
    "RestoreV2",
    "SaveV2",
    "LookupTableFind",
    "LookupTableSize",
    "While",
    "StatefulPartitionedCall",
    "Print",
    "PyFunc",
    "ReadVariableOp",
    "ResourceApply",
    "ResourceGather",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
    "Stack",
    "TensorArray",
    "VarIsInitializedOp",
    "VariableShape",
)
# Operations that TensorFlow does not call stateful, though they write.
_FILLING = ("InitializeTable", "LookupTableImport")
_WRITING = (*_FILLING, "LookupTableInsert", "LookupTableRemove")
# Operations with a state whose running alone changes nothing for others, or that run anyway.
_PASSIVE = (
    "FIFOQueue",
    "Iterator",
    "LookupTableFind",
    "LookupTableSize",
    "OneShotIterator",
    "PaddingFIFOQueue",
    "QueueDequeue",
    "RandomShuffleQueue",
    "ReadVariableOp",
    "ResourceGather",
    "VarHandleOp",
    "VarIsInitializedOp",
    "VariableShape",
)
# In control flow of version 1, waits and identities say what is alive, and in which iteration.
_FLOW = ("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch")
_STEP = 1 << 20  # between the seeds of two towers
_TOWERS = (1 << 11) - 1  # so many have seeds of their own


def count_from(graph: tf.Graph, tower: int) -> None:
    """Lets a graph count its seeds from those of a later tower on."""
    seeds = tfc.random_seed._graph_to_seed_dict
    if tower:
        seeds[graph] = seeds.get(graph, 0) + tower % _TOWERS * _STEP


def count_alike(graph: tf.Graph, other: tf.Graph) -> None:
    """Lets a graph count its seeds from where another one is."""
    seeds = tfc.random_seed._graph_to_seed_dict
    seeds[graph] = int(seeds.get(other, 0))


def refusal(reason: str) -> errors.TowerMismatchError:
    """Returns what is raised where a tower cannot be copied.

    Args:
        reason: Why it cannot.
    """
    return errors.TowerMismatchError(
        "Towers can be copied from the first one where all build the same and hold no state of "
        f"their own: {reason}. Let the model be called for each tower: tower_building='call'."
    )


class State:
    """Tells what becomes of an operation where towers are copied.

    Args:
        graph: The graph that is copied within.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._types: dict[str, str | None] = {}
        self._differing: dict[str, bool] = {}
        self._counted: dict[int, tuple[int, int]] = {}
        self._fixed: dict[tf.Operation, bool] = {}

    # Seeds.

    def count_seeds(self) -> None:
        """Notes from now on which seeds the graph counts: the model has fixed the others."""
        seeds = tfc.random_seed._graph_to_seed_dict
        seeds[self._graph] = _Counted(seeds.get(self._graph, 0), self._note_seed)

    def count_no_more(self) -> None:
        """Ends what `count_seeds` began."""
        seeds = tfc.random_seed._graph_to_seed_dict
        seeds[self._graph] = int(seeds[self._graph])

    def _note_seed(self, seed: int) -> None:
        self._counted[seed] = (self._graph.seed, self._graph.version)

    def _is_fixed(self, op: tf.Operation, seeds: tuple[int, int]) -> bool:
        """Whether a model has fixed an operation's seeds; else the graph has counted them."""
        if op not in self._fixed:
            self._fixed[op] = not self._has_counted(op, seeds)
        return self._fixed[op]

    def _has_counted(self, op: tf.Operation, seeds: tuple[int, int]) -> bool:
        """Whether the graph has counted the seeds just before, and no other has taken them."""
        graph_seed, since = self._counted.get(seeds[1], (None, 0))
        made_at = op._id - 2
        if graph_seed != seeds[0] or not 0 <= made_at - since < 16:
            return False
        between = self._graph.get_operations()[since:made_at]
        return all(_seeds(other.node_def) != seeds for other in between)

    # What becomes of an operation.

    def is_shared(self, op: tf.Operation) -> bool:
        """Whether all towers use one operation: it is fed, or makes a resource."""
        if op.type == "Placeholder":
            return True
        if op.type == "PlaceholderWithDefault":
            return op.inputs[0].op.type == "Const"
        is_made = bool(op.outputs) and all(t.dtype == tf.resource for t in op.outputs)
        is_passed = op.type.startswith(("TensorArray", "Stack"))
        return is_made and not op.inputs and not is_passed

    def is_once(self, op: tf.Operation) -> bool:
        """Whether an operation runs for the first tower alone, as a summary does."""
        return "Summary" in op.type

    def require_copied(self, op: tf.Operation) -> None:
        """Refuses an operation that cannot be copied.

        Raises:
            TowerMismatchError: Names the operation, and the way out.
        """
        reason = self.reason_against(op)
        if reason is not None:
            raise refusal(reason)

    def reason_against(self, op: tf.Operation) -> str | None:
        """Returns why an operation cannot be copied; None: it can."""
        if op.type == "EagerPyFunc" and not any(t.dtype.is_floating for t in op.outputs):
            return None
        if op.type.startswith(_FILLING) and _is_of_constants(op):
            return None  # the one table is filled once, before the first step
        reason = self._reason_against_type(op.type)
        if reason is not None:
            return f"{op.name} {reason}"
        if not self.may_differ(op):
            return None
        for definition in copied_functions.called(self._graph, op):
            for node in definition.node_def:
                reason = self._reason_against_type(node.op)
                if reason is not None:
                    return f"{node.name} in {op.name} {reason}"
        return None

    def _reason_against_type(self, kind: str) -> str | None:
        if kind not in self._types:
            self._types[kind] = _reason_against(kind)
        return self._types[kind]

    def may_differ(self, op: tf.Operation) -> bool:
        """Whether the towers' definitions of an operation may differ by more than devices."""
        if op.type not in self._differing:
            names = {attr.name for attr in op.op_def.attr}
            differs = not names.isdisjoint(("frame_name", "seed2"))
            self._differing[op.type] = differs or copied_functions.may_call(op)
        return self._differing[op.type]

    def change(self, i: int, op: tf.Operation, node: Any) -> None:
        """Gives the copy of tower i a seed of its own, and loops of its own."""
        if "frame_name" in node.attr:
            node.attr["frame_name"].s = f"tower_{i}/".encode() + node.attr["frame_name"].s
        seeds = _seeds(node)
        if seeds not in (None, (0, 0)) and not self._is_fixed(op, seeds):
            node.attr["seed2"].i = (seeds[1] + i * _STEP) % (1 << 31)


def _seeds(node: Any) -> tuple[int, int] | None:
    """Returns the seeds of a random operation's definition; of another operation's, None."""
    if "seed" not in node.attr or "seed2" not in node.attr:
        return None
    return node.attr["seed"].i, node.attr["seed2"].i


def _reason_against(kind: str) -> str | None:
    if kind.startswith(_WRITING):
        return f"({kind}) writes what all towers share"
    definition = tfc.op_def_registry.get(kind)
    if definition is None:
        return None  # a function of the graph
    if any(argument.is_ref for argument in definition.input_arg):
        return f"({kind}) writes to a reference"
    if not definition.is_stateful or kind.startswith(_COPIED) or "Summary" in kind:
        return None
    return None if _is_random(definition) else f"({kind}) holds a state"


def _is_of_constants(op: tf.Operation) -> bool:
    """Whether an operation is given nothing but resources and constants."""
    return all(t.dtype == tf.resource or tf.get_static_value(t) is not None for t in op.inputs)


def _is_random(definition: Any) -> bool:
    return definition is not None and {"seed", "seed2"} <= {a.name for a in definition.attr}


class Waits:
    """Tells for which operations it matters that others wait for them.

    It does where something with an effect lies behind, through values or other waits: an
    assignment, an assertion, a call of Python.
    """

    def __init__(self):
        self._known: dict[tf.Operation, bool] = {}
        self._types: dict[str, bool] = {}

    def end(self, op: tf.Operation) -> None:
        """Lets nobody look behind an operation: it runs in any case, as what towers are given."""
        self._known.setdefault(op, False)

    def matters(self, op: tf.Operation) -> bool:
        """Whether it matters when, or that, an operation runs."""
        waiting = [] if op in self._known else [op]
        while waiting:
            last = waiting[-1]
            if last not in self._known:
                self._known[last] = self._is_effect(last)  # loops pass operations that are
                if not self._known[last]:
                    waiting.extend(o for o in _before(last) if o not in self._known)
                    continue
            waiting.pop()
            self._known[last] |= any(self._known.get(o, False) for o in _before(last))
        return self._known[op]

    def _is_effect(self, op: tf.Operation) -> bool:
        if op.type not in self._types:
            definition = tfc.op_def_registry.get(op.type)
            is_stateful = definition is None or definition.is_stateful
            is_passive = op.type.startswith(_PASSIVE) or _is_random(definition)
            is_flow = op.type.removeprefix("Ref") in _FLOW
            self._types[op.type] = is_flow or (is_stateful and not is_passive)
        return self._types[op.type]


def _before(op: tf.Operation) -> list[tf.Operation]:
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


class _Counted(int):
    """The number of a graph's next seed, which tells when it is taken."""

    def __new__(cls, value, note):
        """Makes the number; `note` is called with each one that is taken."""
        made = super().__new__(cls, value)
        made.note = note
        return made

    def __add__(self, other):
        self.note(int(self))
        return _Counted(int(self) + other, self.note)
