"""Each tower sees its graph as if it were the only one: collections, and names.

Before the towers start, all collections are noted. From then on every tower has a
view of its own that starts from that note; one view is shown in the graph at a time.
Afterwards the first tower's view stays, with what the others must not lose.

Tower i > 0 makes its operations behind a name prefix. Code that looks one up by its name,
or filters a collection by a literal scope, leaves the prefix out. While such a tower runs,
its graph tries the name behind the prefix first; otherwise the graph is as it was.
"""

import functools
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from replicate import types
from replicate.compat.tensorflow import tf, tf1, variable_scope
from replicate.graph import operations

# The collections of variables that are each tower's own.
LOCAL = (tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES)

# What a session needs from every tower, whichever tower's names are kept.
KEPT_FROM_ALL = (
    tf1.GraphKeys.COND_CONTEXT,
    tf1.GraphKeys.WHILE_CONTEXT,
    tf1.GraphKeys.TABLE_INITIALIZERS,
    tf1.GraphKeys.QUEUE_RUNNERS,
    tf1.GraphKeys.RESOURCES,
    tf1.GraphKeys.LOCAL_RESOURCES,
    *LOCAL,
    tf1.GraphKeys.ASSET_FILEPATHS,
)

_LOOKUPS = ("as_graph_element", "get_collection")

Collections: TypeAlias = dict[Hashable, list[Any]]
"""What the collections of a graph hold, by their names."""

Listed: TypeAlias = tuple[tf.Variable, Sequence[Hashable]]
"""A variable, and the collections that it is listed in."""


class Views:
    """What K towers see that run eagerly: they have no graph."""

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """Returns what was made in the graph while tower `tower_id` was awake."""
        del tower_id
        return set()

    def show(self, tower_id: int) -> None:
        """Lets the graph be seen as tower `tower_id` sees it."""

    def close(self) -> None:
        """Leaves the first tower's view in the graph, with what the others must not lose."""


class GraphViews(Views):
    """K views of one graph's collections and names, with one shown at a time.

    The store behind `get_variable` is always a tower's own, so that each tower may
    make, and reuse, variables as the first one does.

    Args:
        graph: The graph.
        prefixes: What the K towers' names begin with, such as `outer/` and `outer/tower_1/`.
        every_collection: Whether all collections are a tower's own, and look-ups by name may
            leave its prefix out; or only the store is.
        unasked: Returns variables that another tower has made and this one has not asked
            for, each with the collections that it is listed in.
    """

    def __init__(
        self,
        graph: tf.Graph,
        prefixes: Sequence[str],
        every_collection: bool,
        unasked: Callable[[int], Sequence[Listed]],
    ):
        self._graph = graph
        self._prefixes = prefixes
        self._every_collection = every_collection
        self._unasked = unasked
        self._before = self._noted()
        self._variables_before = dict(self._store()._vars)
        self._partitioned_before = dict(self._store()._partitioned_vars)
        self._views = [self._copy_of_before(i) for i in range(len(prefixes))]
        self._shown = 0
        # NOTE: what a tower has made is noted, not told by its name: a model may well have a
        # scope of its own that is called `tower_1`.
        self._operations: list[set[tf.Operation]] = [set() for _ in prefixes]
        self._started = self._assigned = len(graph.get_operations())

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """See base class."""
        made = self._graph.get_operations()[self._assigned :]
        self._operations[self._shown].update(made)
        self._assigned += len(made)
        return self._operations[tower_id]

    def show(self, tower_id: int) -> None:
        """See base class. The view that was shown so far is kept."""
        if tower_id == self._shown:
            return
        self.operations(self._shown)
        for name in _LOOKUPS if self._shown > 0 and self._every_collection else ():
            delattr(self._graph, name)
        self._views[self._shown] = self._noted()
        self._load(self._views[tower_id])
        self._shown = tower_id
        if tower_id > 0 and self._every_collection:
            for name in _LOOKUPS:
                setattr(self._graph, name, getattr(self, name))
            for key, items in self._views[0].items():
                # NOTE: a later tower makes no summaries, but whoever merges all must find some.
                made = [item for item in items if isinstance(item, tf.Tensor)]
                add_once(self._graph, key, [item for item in made if "Summary" in item.op.type])

    def close(self) -> None:
        """See base class."""
        self.show(0)
        for key in KEPT_FROM_ALL if self._every_collection else ():
            before = set(map(id, self._before.get(key, [])))
            for view in self._views[1:]:
                items = view.get(key, [])
                add_once(self._graph, key, [item for item in items if id(item) not in before])

    def _copy_of_before(self, tower_id: int) -> Collections:
        view = {key: list(items) for key, items in self._before.items()}
        if tower_id > 0:
            store = variable_scope._VariableStore()
            store._vars = dict(self._variables_before)
            store._partitioned_vars = dict(self._partitioned_before)
            view[variable_scope._VARSTORE_KEY] = [store]
        return view

    def _store(self) -> Any:
        held = self._graph.get_collection_ref(variable_scope._VARSTORE_KEY)
        if not held:
            held.append(variable_scope._VariableStore())
        return held[0]

    def _noted(self) -> Collections:
        keys = [variable_scope._VARSTORE_KEY]
        if self._every_collection:
            keys += self._graph.get_all_collection_keys()
        return {key: self._graph.get_collection(key) for key in keys}

    def _load(self, view: Collections) -> None:
        for key in {*self._noted(), *view}:
            self._graph.get_collection_ref(key)[:] = view.get(key, [])

    # What the graph's look-ups are while a later tower is shown.

    def as_graph_element(self, obj: object, *args: bool, **kwargs: bool) -> types.Fetch:
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

    def _own(
        self, find: Callable[..., types.Fetch], name: str, *args: bool, **kwargs: bool
    ) -> types.Fetch | None:
        """Returns what the tower itself has made under a name of one device, or None."""
        plain, prefix = self._prefixes[0], self._prefixes[self._shown]
        if not name.startswith(plain):
            return None
        try:
            found = find(prefix + name.removeprefix(plain), *args, **kwargs)
        except (KeyError, ValueError):
            return None
        return found if getattr(found, "op", found) in self.operations(self._shown) else None

    def _twin(self, found: types.Fetch) -> types.Fetch:
        """Returns what the tower has made in place of what another has made, if it is plain.

        What is made outside of the tower's prefix, as by importing a graph under no name, is
        told from the first tower's by a number that TensorFlow adds.
        """
        op = getattr(found, "op", found)
        numbered = r"(_\d+)?/".join(map(re.escape, op.name.split("/"))) + r"(_\d+)?"
        own = self.operations(self._shown)
        twins = [made for made in own if re.fullmatch(numbered, made.name) and made.type == op.type]
        if op in own or len(twins) != 1:
            return found
        return twins[0] if found is op else twins[0].outputs[found.value_index]

    def _has(self, op: tf.Operation) -> bool:
        """Whether an operation makes no variable, or one that this tower has asked for."""
        if op.type != "VarHandleOp" or op in self._graph.get_operations()[: self._started]:
            return True
        keys = (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.LOCAL_VARIABLES)
        listed = [variable for key in keys for variable in self.get_collection(key)]
        members = [member for item in listed for member in operations.copies_of(item)]
        return any(op is member.handle.op for member in members if hasattr(member, "handle"))

    def get_collection(self, name: Hashable, scope: str | None = None) -> list[Any]:
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

    def _used(self, name: Hashable, held: Sequence[object]) -> list[tf.Variable]:
        """Returns what a collection lacks of the variables that the tower uses, unasked.

        A layer that is kept outside of the model_fn makes its variables in the first tower,
        and has them in the others.
        """
        if name not in (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.TRAINABLE_VARIABLES):
            return []
        own, known = None, {id(item) for item in held}
        found = []
        for variable, keys in self._unasked(self._shown):
            if name in keys and id(variable) not in known:
                own = self.operations(self._shown) if own is None else own
                members = operations.copies_of(variable)
                if any(user in own for member in members for user in member.handle.consumers()):
                    found.append(variable)
        return found

    def _in_order(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
        """Returns variables in the order in which the first tower has made them."""
        made = {op: i for i, op in enumerate(self._graph.get_operations())}
        places = [operations.copies_of(item)[0] for item in variables]
        places = [made.get(getattr(getattr(p, "handle", p), "op", None), -1) for p in places]
        return [variables[i] for i in sorted(range(len(variables)), key=places.__getitem__)]

    def _plain_name(self, item: types.Fetch | tf.Variable) -> str:
        """Returns the name that a tensor or operation has on one device; a variable's own."""
        plain, prefix = self._prefixes[0], self._prefixes[self._shown]
        if isinstance(item, (tf.Tensor, tf.Operation)) and item.name.startswith(prefix):
            return plain + item.name.removeprefix(prefix)
        return item.name


def add_once(graph: tf.Graph, key: Hashable, items: Sequence[object]) -> None:
    """Adds those of `items` to the collection `key` that it does not hold yet."""
    held = graph.get_collection_ref(key)
    known = {id(item) for item in held}
    for item in items:
        if id(item) not in known:
            known.add(id(item))
            held.append(item)


def remove(graph: tf.Graph, key: Hashable, items: Sequence[object]) -> None:
    """Removes `items` from the collection `key`."""
    unwanted = {id(item) for item in items}
    held = graph.get_collection_ref(key)
    held[:] = [item for item in held if id(item) not in unwanted]
