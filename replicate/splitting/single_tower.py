"""One tower whose variables are where another strategy puts them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation
from replicate.strategy import base, context
from replicate.strategy.towers import lockstep
from replicate.strategy.variables import variables


class SingleTowerStrategy(base.DistributionStrategy):
    """Builds one device's graph for another strategy, which splits it.

    While it is built there is one tower. Partitioned variables stay partitioned: the other strategy
    places each part.

    Args:
        owner: The other strategy.
    """

    def __init__(self, owner: base.DistributionStrategy):
        super().__init__(owner.worker_devices[:1], owner.parameter_devices[:1])
        self._owner = owner
        self._made: list[tf.Variable] = []

    @contextlib.contextmanager
    def scope(self) -> Iterator[base.DistributionStrategy]:
        """See base class; may be entered inside of the other strategy's scope."""
        mode = context.current()
        is_inside = mode is not None and mode.strategy is self._owner and mode.tower is None
        with context.entered(None) if is_inside else contextlib.nullcontext():
            with super().scope():
                yield self

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        scope = tf1.get_variable_scope()
        with (
            tf.variable_creator_scope(self._creator),
            tf1.variable_scope(scope, use_resource=True, auxiliary_name_scope=False),
            self._default_device(),
        ):
            yield

    def _noted(self) -> contextlib.AbstractContextManager[None]:
        """See base class: a model that is split over devices is no tower to its author."""
        return lockstep.explained()

    @property
    def home(self) -> str:
        """See base class."""
        return self._owner.home

    def sum_places(self, destination: types.Nest) -> tuple[str, ...]:
        """See base class."""
        return self._owner.sum_places(destination)

    def _reduce_plain(
        self, aggregation: tf.VariableAggregation, value: types.Nest, destination: types.Nest
    ) -> types.Nest:
        if aggregation == variables.MEAN:
            return value
        places = None if destination is None else self.sum_places(destination)
        return super()._reduce_plain(aggregation, value, places)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables in the current graph that the other strategy may have copies or slices of.

        NOTE: metrics' variables are not among them: they are written once, whole.
        """
        graph = tf1.get_default_graph()
        local = {id(variable) for key in isolation.LOCAL for variable in graph.get_collection(key)}
        return [
            variable
            for variable in self._made
            if id(variable) not in local and _is_of(variable, graph)
        ]

    def _make_variable(self, next_creator: types.Function, kwargs: types.Arguments) -> tf.Variable:
        variable = super()._make_variable(next_creator, kwargs)
        self._made.append(variable)
        return variable

    def _tower_device(self, tower_id: int) -> contextlib.AbstractContextManager[object]:
        return self._owner._tower_device(tower_id)

    def _default_device(self) -> contextlib.AbstractContextManager[object]:
        return self._owner._default_device()

    def _places(self, kwargs: types.Arguments) -> Sequence[str]:
        return self._owner._places(kwargs)[:1]


def _is_of(variable: tf.Variable, graph: tf.Graph) -> bool:
    """Whether a variable is a resource of a graph."""
    handle: Any = getattr(variable, "handle", None)
    return getattr(handle, "graph", None) is graph and handle.op.type == "VarHandleOp"
