"""A tower finds what it made by the names that the model has on one device.

Tower i > 0 makes its operations behind a name prefix. Code that looks one up by its name,
or filters a collection by a literal scope, leaves the prefix out. While such a tower runs,
its graph tries the name behind the prefix first; otherwise the graph is as it was.
"""

import functools
import re
from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1

_LOOKUPS = ("as_graph_element", "get_collection")


class Prefix:
    """A name prefix that a graph's look-ups may leave out.

    Args:
        graph: The graph.
        prefix: What names of this tower begin with, such as `outer/tower_1/`.
        plain: What they begin with on one device, such as `outer/`; may be empty.
        operations: Returns what the tower has made so far. NOTE: a model may well have a
            scope of its own that is called `tower_1`.
        unasked: Returns variables that another tower has made and this one has not asked
            for, each with the collections that it is listed in.
    """

    def __init__(
        self,
        graph: tf.Graph,
        prefix: str,
        plain: str,
        operations: Callable[[], Container],
        unasked: Callable[[], Sequence[tuple]] = tuple,
    ):
        self._graph = graph
        self.prefix = prefix
        self._plain = plain
        self._operations = operations
        self._unasked = unasked
        self._before = len(graph.get_operations())
        self._is_shown = False

    def show(self) -> None:
        """Lets this graph's look-ups leave the prefix out."""
        for name in _LOOKUPS:
            setattr(self._graph, name, getattr(self, name))
        self._is_shown = True

    def hide(self) -> None:
        """Gives the graph its own look-ups back."""
        for name in _LOOKUPS if self._is_shown else ():
            delattr(self._graph, name)
        self._is_shown = False

    def as_graph_element(self, obj: Any, *args, **kwargs) -> Any:
        """Returns the operation or tensor that a name, or an object, stands for.

        Raises:
            KeyError: If there is none, or it is a variable that another tower has made and
                this one has not asked for yet: on one device it would not exist.
        """
        find = functools.partial(type(self._graph).as_graph_element, self._graph)
        if not isinstance(obj, str):
            return find(obj, *args, **kwargs)
        found = self._own(find, obj, *args, **kwargs)
        if found is None:
            found = self._twin(find(obj, *args, **kwargs))
        if not self._has(getattr(found, "op", found)):
            raise KeyError(f"The name {obj!r} is that of a variable that does not exist yet.")
        return found

    def _own(self, find: Callable, name: str, *args, **kwargs) -> Any:
        """Returns what the tower itself has made under a name of one device, or None."""
        if not name.startswith(self._plain):
            return None
        try:
            found = find(self.prefix + name.removeprefix(self._plain), *args, **kwargs)
        except (KeyError, ValueError):
            return None
        return found if getattr(found, "op", found) in self._operations() else None

    def _twin(self, found: Any) -> Any:
        """Returns what the tower has made in place of what another has made, if it is plain.

        What is made outside of the tower's prefix, as by importing a graph under no name, is
        told from the first tower's by a number that TensorFlow adds.
        """
        op = getattr(found, "op", found)
        numbered = r"(_\d+)?/".join(map(re.escape, op.name.split("/"))) + r"(_\d+)?"
        own = self._operations()
        twins = [made for made in own if re.fullmatch(numbered, made.name) and made.type == op.type]
        if op in own or len(twins) != 1:
            return found
        return twins[0] if found is op else twins[0].outputs[found.value_index]

    def _has(self, op: tf.Operation) -> bool:
        """Whether an operation makes no variable, or one that this tower has asked for."""
        if op.type != "VarHandleOp" or op in self._graph.get_operations()[: self._before]:
            return True
        keys = (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.LOCAL_VARIABLES)
        listed = [variable for key in keys for variable in self.get_collection(key)]
        members = [member for item in listed for member in getattr(item, "members", (item,))]
        return any(op is member.handle.op for member in members if hasattr(member, "handle"))

    def get_collection(self, name: Hashable, scope: str | None = None) -> list:
        """Returns what a collection holds, or those items whose names match a scope.

        A scope is one of one device's; where nothing is found, one that the tower was given.
        """
        held = type(self._graph).get_collection(self._graph, name)
        used = self._used(name, held)
        if used:
            held = self._in_order([*held, *used])
        if scope is None:
            return held
        matches = re.compile(scope).match
        named = [item for item in held if hasattr(item, "name")]
        found = [item for item in named if matches(self._plain_name(item))]
        return found or [item for item in named if matches(item.name)]

    def _used(self, name: Hashable, held: list) -> list:
        """Returns what a collection lacks of the variables that the tower uses, unasked.

        A layer that is kept outside of the model_fn makes its variables in the first tower,
        and has them in the others.
        """
        if name not in (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.TRAINABLE_VARIABLES):
            return []
        own, known = None, {id(item) for item in held}
        found = []
        for variable, keys in self._unasked():
            if name in keys and id(variable) not in known:
                own = self._operations() if own is None else own
                members = getattr(variable, "members", (variable,))
                if any(user in own for member in members for user in member.handle.consumers()):
                    found.append(variable)
        return found

    def _in_order(self, variables: list) -> list:
        """Returns variables in the order in which the first tower has made them."""
        made = {op: i for i, op in enumerate(self._graph.get_operations())}
        places = [getattr(item, "members", (item,))[0] for item in variables]
        places = [made.get(getattr(getattr(p, "handle", p), "op", None), -1) for p in places]
        return [variables[i] for i in sorted(range(len(variables)), key=places.__getitem__)]

    def _plain_name(self, item: Any) -> str:
        """Returns the name that a tensor or operation has on one device; a variable's own."""
        if isinstance(item, (tf.Tensor, tf.Operation)) and item.name.startswith(self.prefix):
            return self._plain + item.name.removeprefix(self.prefix)
        return item.name
