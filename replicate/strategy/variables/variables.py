"""Variables with one copy per device, which behave as one.

A `MirroredVariable` holds the same value in each copy. A `TowerLocalVariable` holds a
value of its own in each, aggregated when it is read across towers.
"""

from collections.abc import Callable, Sequence

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions
from replicate.strategy import context
from replicate.strategy.variables import distributed_variable, values
from replicate.strategy.variables.distributed_variable import DistributedVariable

NONE = tf.VariableAggregation.NONE
SUM = tf.VariableAggregation.SUM
MEAN = tf.VariableAggregation.MEAN
FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA

_SCOPE = "replicate_write/"  # of what joins towers' writes: no name of the model's is taken

# What towers bring to these may be added up before it is written.
_MERGEABLE = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub")


class MirroredVariable(DistributedVariable):
    """Copies that all hold the same value (synchronization ON_WRITE).

    Across towers an assignment writes every copy. In a tower all towers meet, their
    values are aggregated as `aggregation` says, and every copy is written.
    """

    def read_across(self) -> tf.Tensor:
        """Returns the first copy's value."""
        return self._members[0].value()

    def _make_element(self) -> tf.Tensor:
        return self._members[0]._as_graph_element()

    def _write_in_tower(
        self, tower: context.TowerContext, method: str, value: types.Nest, kwargs: types.Arguments
    ) -> types.Nest:
        share = context.share()
        if share is not None and self.trainable and share.step.is_left_out:
            return tf.no_op()  # of an optimizer that is not run
        if share is not None and self.trainable and self._aggregation == NONE:
            raise errors.TowerMismatchError(
                "An optimizer must meet the other towers before it updates the model: tower "
                f"{tower.position} updates {self.name} by itself. Wrap the optimizer in "
                "replicate.TowerOptimizer, or give it as optimizer_fn."
            )
        if self._aggregation == NONE:
            raise ValueError(
                "A mirrored variable that a tower assigns needs an aggregation: "
                f"{self.name} has none, in tower {tower.position}. Give it "
                "aggregation=tf.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA when it is "
                "made, or assign in merge_call."
            )

        if self._aggregation != FIRST and method not in _MERGEABLE:
            raise ValueError(
                f"Towers' calls of {method} cannot be joined into one: variable {self.name} has "
                f"aggregation={self._aggregation.name}, in tower {tower.position}. Use one of "
                f"{', '.join(_MERGEABLE)}, ONLY_FIRST_REPLICA, or merge_call."
            )

        def write(strategy: context.Strategy, merged: types.Nest) -> types.Nest:
            return self._write_across(method, self.aggregate(strategy, merged), kwargs)

        return tower.merge_call(write, value)

    def _write_across(self, method: str, value: types.Nest, kwargs: types.Arguments) -> types.Nest:
        if isinstance(value, values.PerDevice):
            raise ValueError(
                "Across towers a mirrored variable takes one value, or a mirrored one: "
                f"{self.name} was given {value!r}, which may differ between towers. Reduce it "
                "first: strategy.reduce(aggregation, value, destinations=variable)."
            )
        return super()._write_across(method, value, kwargs)

    def aggregate(self, strategy: context.Strategy, value: types.Nest) -> types.Nest:
        """Joins what K towers bring; a value that all share counts once per tower."""
        if isinstance(value, values.PerDevice):
            value = values.PerDevice([self._as_own(part) for part in value.values], value.devices)
        if self._aggregation == FIRST:
            return self._first(strategy, value)
        if not isinstance(value, values.DistributedValues):
            value = values.PerDevice([self._as_own(value)] * strategy.num_towers)
        if self._aggregation == MEAN:
            return strategy.mean_by_rows(value, self)
        return strategy.reduce(self._aggregation, value, destinations=self)

    def _as_own(self, value: types.Nest) -> types.Nest:
        """Returns a number, or an array, as a tensor of the variable's dtype."""
        is_made = tf.is_tensor(value) or isinstance(value, tf.IndexedSlices)
        return value if is_made or value is None else tf.convert_to_tensor(value, self.dtype)

    def _first(self, strategy: context.Strategy, value: types.Nest) -> types.Nest:
        """Returns the first tower's value, once all towers have theirs.

        NOTE: theirs may be made from the variable, which must not be written before.
        """
        first = values.select_tower(0, value)
        if tf.executing_eagerly() or not isinstance(value, values.DistributedValues):
            return first
        others = [part for part in strategy.unwrap(value)[1:] if part is not None]
        with tf1.control_dependencies(tf.nest.flatten(others, expand_composites=True)):
            first = tf.nest.map_structure(tf.identity, first, expand_composites=True)
        return strategy.workers.from_first([first])[0]


class TowerLocalVariable(DistributedVariable):
    """Copies that are each tower's own (synchronization ON_READ).

    A tower reads and assigns its own copy. Across towers a read aggregates the
    copies, and an assignment makes the variable read back as the value assigned.
    A tower without rows counts for nothing: its assignments change nothing.

    Args:
        strategy: See base class.
        members: See base class.
        devices: See base class.
        aggregation: See base class.
        is_assumed_sum: Whether nobody named the aggregation.

    Attributes:
        is_assumed_sum: Likewise.
        reduction: What makes one tensor of the copies' tensors, where `reduce_by` named it.
    """

    def __init__(
        self,
        strategy: context.Strategy,
        members: Sequence[tf.Variable],
        devices: Sequence[str],
        aggregation: tf.VariableAggregation,
        is_assumed_sum: bool = False,
    ):
        super().__init__(strategy, members, devices, aggregation)
        self.is_assumed_sum = is_assumed_sum
        self.reduction: Callable[[list[tf.Tensor]], tf.Tensor] | None = None
        self._follows_first = False
        if self._members[0]._in_graph_mode and aggregation != NONE:
            self._as_graph_element()  # a session may fetch it after the graph is finalized

    def reduce_by(self, fn: Callable[[list[tf.Tensor]], tf.Tensor]) -> None:
        """Names what makes one tensor of the copies' tensors, of a metric at its end."""
        self.reduction = fn

    def follow_first(self) -> None:
        """Lets the first copy stand for the variable, whatever the other copies hold."""
        self._follows_first = True
        if self._members[0]._in_graph_mode:
            self._element = self._members[0]._as_graph_element()

    def get(self, device: str | None = None) -> tf.Variable | tf.Tensor:
        """Returns the copy on `device`, or of the running code; across towers, the aggregate."""
        return self.read_across() if device is None and self._is_across() else super().get(device)

    def read_across(self) -> tf.Tensor:
        """Returns the aggregate of the copies.

        Raises:
            ValueError: If the variable has no aggregation.
        """
        if self._aggregation == FIRST or self._follows_first or len(self._members) == 1:
            return self._members[0].value()
        if self._aggregation == NONE:
            raise ValueError(
                "A tower-local variable that is read across towers needs an aggregation: "
                f"{self.name} has none. Give it aggregation=tf.VariableAggregation.SUM, MEAN or "
                "ONLY_FIRST_REPLICA when it is made."
            )
        with tf1.name_scope(_SCOPE):
            copies, device = [member.value() for member in self._members], self._members[0].device
            number = len(copies) if self._aggregation == MEAN else 1
            return reductions.divide_onto(reductions.sum_onto(copies, device), number, device)

    def spread(self, value: types.Nest) -> list[tf.Tensor | None]:
        """See base class. SUM divides it (integers: the remainder to the first copy)."""
        count = len(self._members)
        value = tf.convert_to_tensor(value, dtype=self.dtype)
        if self._aggregation == SUM:
            if self.dtype.is_floating or self.dtype.is_complex:
                return [value / count] * count
            part = value // count
            return [value - part * (count - 1)] + [part] * (count - 1)
        if self._aggregation == FIRST:
            return [value] + [None] * (count - 1)
        return [value] * count

    def _write_across(self, method: str, value: types.Nest, kwargs: types.Arguments) -> types.Nest:
        if isinstance(value, values.DistributedValues) or not method.startswith("assign"):
            return super()._write_across(method, value, kwargs)
        return self._write_members(method, self.spread(value), kwargs)

    def _write_in_tower(
        self, tower: context.TowerContext, method: str, value: types.Nest, kwargs: types.Arguments
    ) -> types.Nest:
        member = self._members[tower.position if len(self._members) > 1 else 0]
        has_rows = tower.has_rows
        if has_rows is True:
            return distributed_variable.write(member, method, value, kwargs)
        if method == "assign":
            value = tf.where(has_rows, tf.convert_to_tensor(value, member.dtype), member.value())
            return member.assign(value, **kwargs)
        if method in ("assign_add", "assign_sub"):
            value = tf.convert_to_tensor(value, member.dtype)
            return getattr(member, method)(
                tf.where(has_rows, value, tf.zeros_like(value)), **kwargs
            )
        tf.cond(
            tf.convert_to_tensor(has_rows),
            lambda: tf.identity(distributed_variable.write(member, method, value, kwargs)),
            lambda: member.read_value(),
        )
        return member
