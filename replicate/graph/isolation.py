"""Each tower sees the graph's collections as if it were the only one.

Before the towers start, all collections are noted. From then on every tower has a
view of its own that starts from that note; one view is shown in the graph at a time.
Afterwards the first tower's view stays, with what the others must not lose.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1, variable_scope
from replicate.graph import names

# What a session needs from every tower, whichever tower's names are kept.
KEPT_FROM_ALL = (
    tf1.GraphKeys.COND_CONTEXT,
    tf1.GraphKeys.WHILE_CONTEXT,
    tf1.GraphKeys.TABLE_INITIALIZERS,
    tf1.GraphKeys.QUEUE_RUNNERS,
    tf1.GraphKeys.RESOURCES,
    tf1.GraphKeys.LOCAL_RESOURCES,
    tf1.GraphKeys.LOCAL_VARIABLES,
    tf1.GraphKeys.METRIC_VARIABLES,
    tf1.GraphKeys.ASSET_FILEPATHS,
)


class Views:
    """K views of one graph's collections, with one shown at a time.

    The store behind `get_variable` is always a tower's own, so that each tower may
    make, and reuse, variables as the first one does.

    Args:
        graph: The graph whose collections are shown.
        prefixes: What the K towers' names begin with.
        every_collection: Whether all collections are a tower's own, or only the store.
        unasked: Of a tower, see `names.Prefix`.
    """

    def __init__(
        self,
        graph: tf.Graph,
        prefixes: Sequence[str],
        every_collection: bool,
        unasked: Callable[[int], Sequence[tuple]],
    ):
        self._graph = graph
        self._every_collection = every_collection
        self._prefixes = [
            names.Prefix(
                graph,
                prefix,
                prefixes[0],
                functools.partial(self.operations, i),
                functools.partial(unasked, i),
            )
            for i, prefix in enumerate(prefixes)
            if every_collection
        ]
        self._before = self._noted()
        self._variables_before = dict(self._store()._vars)
        self._partitioned_before = dict(self._store()._partitioned_vars)
        self._views = [self._copy_of_before(i) for i in range(len(prefixes))]
        self._shown = 0
        self._operations: list[set] = [set() for _ in prefixes]
        self._assigned = len(graph.get_operations())

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """Returns what was made while the view of tower `tower_id` was shown."""
        made = self._graph.get_operations()[self._assigned :]
        self._operations[self._shown].update(made)
        self._assigned += len(made)
        return self._operations[tower_id]

    def show(self, tower_id: int) -> None:
        """Puts the view of tower `tower_id` into the graph, and keeps the one shown so far."""
        if tower_id == self._shown:
            return
        self.operations(self._shown)
        if self._every_collection:
            self._prefixes[self._shown].hide()
        self._views[self._shown] = self._noted()
        self._load(self._views[tower_id])
        self._shown = tower_id
        if tower_id > 0 and self._every_collection:
            self._prefixes[tower_id].show()
            for key, items in self._views[0].items():
                # NOTE: a later tower makes no summaries, but whoever merges all must find some.
                add_once(self._graph, key, [item for item in items if _is_summary(item)])

    def added(self, tower_id: int, key: Hashable) -> list:
        """Returns what tower `tower_id` has added to the collection `key`."""
        if tower_id == self._shown:
            now = self._graph.get_collection(key)
        else:
            now = self._views[tower_id].get(key, [])
        before = {id(item) for item in self._before.get(key, [])}
        return [item for item in now if id(item) not in before]

    def close(self) -> None:
        """Leaves the first tower's view in the graph, with what the others must not lose."""
        kept = {
            key: [item for i in range(len(self._views)) for item in self.added(i, key)]
            for key in (KEPT_FROM_ALL if self._every_collection else ())
        }
        self.show(0)
        for key, items in kept.items():
            add_once(self._graph, key, items)

    def _copy_of_before(self, tower_id: int) -> dict:
        view = {key: list(items) for key, items in self._before.items()}
        if tower_id > 0:
            store = variable_scope._VariableStore()
            store._vars = dict(self._variables_before)
            store._partitioned_vars = dict(self._partitioned_before)
            view[variable_scope._VARSTORE_KEY] = [store]
        return view

    def _store(self):
        held = self._graph.get_collection_ref(variable_scope._VARSTORE_KEY)
        if not held:
            held.append(variable_scope._VariableStore())
        return held[0]

    def _noted(self) -> dict:
        keys = [variable_scope._VARSTORE_KEY]
        if self._every_collection:
            keys += self._graph.get_all_collection_keys()
        return {key: self._graph.get_collection(key) for key in keys}

    def _load(self, view: dict) -> None:
        for key in {*self._noted(), *view}:
            self._graph.get_collection_ref(key)[:] = view.get(key, [])


def _is_summary(item: Any) -> bool:
    return isinstance(item, tf.Tensor) and "Summary" in item.op.type


def add_once(graph: tf.Graph, key: Hashable, items: Sequence) -> None:
    """Adds those of `items` to the collection `key` that it does not hold yet."""
    held = graph.get_collection_ref(key)
    known = {id(item) for item in held}
    for item in items:
        if id(item) not in known:
            known.add(id(item))
            held.append(item)


def remove(graph: tf.Graph, key: Hashable, items: Sequence) -> None:
    """Removes `items` from the collection `key`."""
    unwanted = {id(item) for item in items}
    held = graph.get_collection_ref(key)
    held[:] = [item for item in held if id(item) not in unwanted]
