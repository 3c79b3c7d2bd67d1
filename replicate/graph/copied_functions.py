"""Functions that copied operations call: branches and loops that name a tower's device.

In a function the devices of its operations are written down. Where one is the first tower's,
a later tower gets a function of its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicate.compat import importing
from replicate.compat.tensorflow import tf
from replicate.graph import placement

_BESIDE = b"loc:@"
_NUMBERED = re.compile(r"_\d+$")  # what TensorFlow adds to names that arguments have as well


def called(graph: tf.Graph, op: tf.Operation) -> Iterator[Any]:
    """Yields the definitions of all functions that an operation calls, and those these call."""
    known: set[str] = set()
    waiting = [name for attr in op.node_def.attr.values() for name in _names(attr)]
    while waiting:
        name = waiting.pop()
        function = None if name in known else graph._get_function(name)
        known.add(name)
        if function is not None:
            definition = _definition(function)
            yield definition
            waiting.extend(
                inner
                for node in definition.node_def
                for attr in node.attr.values()
                for inner in _names(attr)
            )


class Copied:
    """A function of a later tower, as a graph keeps it.

    Args:
        definition: What it does.
        function: What it is a copy of.
    """

    def __init__(self, definition: Any, function: Any):
        self.name = definition.signature.name
        self.definition = self.cached_definition = definition
        self.graph = function.graph
        self.children: Sequence = ()


class Functions:
    """Functions as later towers call them.

    Args:
        graph: The graph that holds them.
        devices: The K towers' devices.
        placed: By each operation that is on the first tower's device, what the user named.
    """

    def __init__(self, graph: tf.Graph, devices: Sequence[str], placed: Mapping):
        self._graph = graph
        self._devices = devices
        self._placed = placed
        self._known: dict[tuple[int, str], str] = {}
        self._made: list[Copied] = []

    def change(self, i: int, attr: Any) -> None:
        """Lets an attribute name tower i's functions; to be followed by `add`."""
        for held in _held(attr):
            held.name = self._own(i, held.name)

    def add(self) -> None:
        """Adds to the graph what was made since."""
        made, self._made = self._made, []
        importing.add_functions(made)

    def _own(self, i: int, name: str) -> str:
        if (i, name) not in self._known:
            self._known[i, name] = self._changed(i, name)
        return self._known[i, name]

    def _changed(self, i: int, name: str) -> str:
        """Returns the name of tower i's function; the same where nothing differs in it."""
        function = self._graph._get_function(name)
        if function is None:
            return name
        definition = type(_definition(function))()
        definition.CopyFrom(_definition(function))
        named = {op.name: self._placed.get(op) for op in _operations(function)}
        differs = False
        for node in definition.node_def:
            user = _named(node, named)
            if user is not None:
                node.device = placement.merged(self._devices[i], user)
                # NOTE: once functions are inlined, a name that two of them have is one group.
                node.attr.pop("_class", None)
                differs = True
            for attr in node.attr.values():
                for held in _held(attr):
                    own = self._own(i, held.name)
                    differs = differs or own != held.name
                    held.name = own
        if not differs:
            return name
        definition.signature.name = f"{name}_tower_{i}"
        self._made.append(Copied(definition, function))
        return definition.signature.name


def _named(node: Any, named: Mapping[str, str | None]) -> str | None:
    """Returns what the user named of a node's device; None: it is not the tower's.

    A node is where it says, or with those that its colocation names.
    """
    beside = [held.removeprefix(_BESIDE).decode() for held in node.attr["_class"].list.s]
    if not beside:
        del node.attr["_class"]
    names = [name for name in beside if name != node.name] or [node.name]
    plain = [_NUMBERED.sub("", name) for name in names]
    found = [named[name] for name in [*names, *plain, node.name] if named.get(name) is not None]
    return found[0] if found else None


def _operations(function: Any) -> Sequence[tf.Operation]:
    graph = getattr(function, "graph", None)
    return () if graph is None else graph.get_operations()


def _definition(function: Any) -> Any:
    return getattr(function, "cached_definition", None) or function.definition


def may_call(op: tf.Operation) -> bool:
    """Whether operations of a type have attributes that name functions."""
    return any(attr.type in ("func", "list(func)") for attr in op.op_def.attr)


def _held(attr: Any) -> list:
    """Returns the names of functions that an attribute holds, to be read and changed."""
    if attr.WhichOneof("value") == "func":
        return [attr.func]
    return list(attr.list.func) if attr.WhichOneof("value") == "list" else []


def _names(attr: Any) -> list[str]:
    return [held.name for held in _held(attr)]
