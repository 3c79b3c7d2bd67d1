"""A graph's functions: which of them only read, and what their outputs are made from."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import kinds, order

LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf")
CASES = ("Case", "StatelessCase")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
WRITTEN = (*LOOPS, *BRANCHES, *CALLS)
CALLING = (*WRITTEN, *CASES)

# Stateless operations that cannot be moved, or are control flow already.
_REFUSED = frozenset(
    """ControlTrigger DeviceIndex Enter Exit LoopCond Merge NextIteration Placeholder
    PyFuncStateless RefEnter RefExit RefMerge RefNextIteration RefSwitch Switch""".split()
)


class Functions:
    """The functions of a graph, and their effects.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._definitions: dict[str, Any] = {}
        self._reading: dict[str, bool] = {}
        self._with_effects: dict[tuple[str, Callable[[str], bool]], bool] = {}

    def definition(self, name: str) -> Any:
        """Returns a function's definition, or None if the graph does not have it."""
        if name not in self._definitions:
            function = self._graph._get_function(name)
            found = getattr(function, "cached_definition", None)
            if function is not None and found is None:
                found = function.definition
            self._definitions[name] = found
        return self._definitions[name]

    def can_be_written(self, node: tf1.NodeDef, branch: str = "") -> bool:
        """Whether an operation is functional control flow that can be written out.

        Args:
            node: The operation's definition.
            branch: The attribute of the branch that is taken, if that is known.
        """
        if node.op not in WRITTEN:
            return False
        # NOTE: looking up an attribute that is not there adds it.
        if "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b:
            return False
        if node.op in BRANCHES and node.attr["Tcond"].type != tf.bool.as_datatype_enum:
            return False
        names = [node.attr[branch].func.name] if branch else called(node)
        if not all(map(self.only_reads, names)):
            return False
        # NOTE: a loop that looks tables up is whole; written out, it would be on several devices.
        return node.op not in LOOPS or not self.has_effect(node, kinds.READS_OF_TABLES.__contains__)

    def has_effect(self, node: tf1.NodeDef, of_kind: Callable[[str], bool]) -> bool:
        """Whether an operation, or one in a function that it calls, has an effect.

        Args:
            node: The operation's definition.
            of_kind: Tells of kinds that call nothing whether they have it.
        """
        if not is_call(node.op):
            return of_kind(node.op)
        names = called(node) if node.op in CALLING else [node.op]
        return any(self._has_effect(name, of_kind) for name in names)

    def _has_effect(self, name: str, of_kind: Callable[[str], bool]) -> bool:
        key = (name, of_kind)
        if key not in self._with_effects:
            self._with_effects[key] = False  # recursive functions are looked at once
            definition = self.definition(name)
            nodes = () if definition is None else definition.node_def
            found = any(self.has_effect(node, of_kind) for node in nodes)
            self._with_effects[key] = found or definition is None
        return self._with_effects[key]

    def only_reads(self, name: str) -> bool:
        """Whether a function can be written out where it is called, and only reads."""
        if name not in self._reading:
            self._reading[name] = False  # recursive functions are not written out
            definition = self.definition(name)
            self._reading[name] = (
                definition is not None
                and not definition.signature.attr
                and all(self._reads(node) for node in definition.node_def)
            )
        return self._reading[name]

    def _reads(self, node: tf1.NodeDef) -> bool:
        if node.op in CALLING:
            return all(self.only_reads(name) for name in called(node))
        if node.op in _REFUSED or called(node):
            return False
        return not kinds.is_stateful(node.op) or node.op in kinds.READS or node.op in kinds.DRAWS


@functools.cache
def is_call(kind: str) -> bool:
    """Whether operations of a kind call functions."""
    return kind in CALLING or tfc.op_def_registry.get(kind) is None


def called(node: tf1.NodeDef) -> list[str]:
    """Returns the names of the functions that a node calls."""
    found = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
    for attr in node.attr.values():
        found.extend(function.name for function in attr.list.func)
    return found


def offsets(node: tf1.NodeDef) -> tuple[dict[str, int], int]:
    """Returns at which output of a node each named one begins, and how many outputs it has."""
    found, number = {}, 0
    definition = tfc.op_def_registry.get(node.op)
    defaults = {attr.name: attr.default_value for attr in definition.attr}

    def attribute(name: str) -> tf1.AttrValue:
        return node.attr[name] if name in node.attr else defaults[name]

    for output in definition.output_arg:
        found[output.name] = number
        if output.number_attr:
            number += attribute(output.number_attr).i
        elif output.type_list_attr:
            number += len(attribute(output.type_list_attr).list.type)
        else:
            number += 1
    return found, number


def used(definition: Any, nodes: Sequence[tf1.NodeDef]) -> set[str]:
    """Returns the names of what nodes of a function, and its outputs, read."""
    texts = [text for node in nodes for text in node.input]
    return {text.split(":")[0] for text in (*texts, *definition.ret.values())}


def in_order(definition: Any, returned: Sequence[str], given: set[str]) -> list[tf1.NodeDef]:
    """Returns the nodes that a function's outputs are made from, each after what it reads."""
    nodes = {node.name: node for node in definition.node_def}
    before: dict[str, list[str]] = {name: [] for name in given}
    for node in definition.node_def:
        texts = [text for text in node.input if not text.startswith("^")]
        before[node.name] = [text.split(":")[0] for text in texts]
    ordered, _ = order.in_order(before, [text.split(":")[0] for text in returned])
    return [nodes[name] for name in ordered if name not in given]
