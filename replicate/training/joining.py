"""What the towers of one batch bring becomes what one device has: the one `Joiner`.

It knows what is the whole batch's already, makes whole what is not, and stands in every merge
call that an optimizer, a moving average or an assignment of a model makes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, reductions, whole
from replicate.strategy import values, variables
from replicate.training import gradients, notices, step


class Joining:
    """Joins what the towers of one batch bring; see `context.Joiner`.

    Args:
        rows: The towers' rows.
        partner: See `whole.Whole`.
        declared: `"sum"` or `"mean"`: how losses are reduced; None: as the model says.
        step: What becomes of gradients before the update.
        mode: The Estimator's mode.
    """

    def __init__(
        self,
        rows: whole.Rows,
        partner: Callable | None,
        declared: str | None,
        gradient_step: step.GradientStep,
        mode: str,
    ):
        self._declared = declared
        self._mode = mode
        self.notices = notices.Notices()
        self.whole = whole.Whole(rows, partner, self.notices.unknown)
        self.notices.whole = self.whole
        self.gradients = gradients.Gradients(
            self.whole, declared, gradient_step.is_accumulated, self.notices.derived
        )
        self.step = gradient_step.of(self)
        self._columns: list[list] = []
        self._noted_by = [0] * len(rows.devices)

    def loss(self, losses: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the whole batch's loss, of K losses of shape []."""
        value = self.whole.value(losses, self._declared)
        self.notices.derived(losses[0], self.whole.copied(losses, self._declared)[0])
        return value

    # What a `Joiner` does.

    def wrap(self, merge_fn: Callable, args: Sequence) -> tuple[Callable, Sequence]:
        """See `context.Joiner`."""
        return self.step.wrap(merge_fn, args)

    @property
    def is_gathering(self) -> bool:
        """See `context.Joiner`: after each batch of an evaluation metrics are gathered."""
        return self._mode == "eval"

    def get_loss_reduction(self) -> str | None:
        """See `context.Joiner`."""
        return self._declared

    def note(self, tower_id: int, tensor: Any) -> None:
        """See `context.Joiner`."""
        number = self._noted_by[tower_id]
        self._noted_by[tower_id] += 1
        if number == len(self._columns):
            self._columns.append([])
        self._columns[number].append(tensor)
        if tower_id == 0:
            copies = self.whole.copies()
            self.whole.note(self._columns[number] if copies is None else copies.column(tensor))

    def set_loss_weights(self, denominators: Sequence[Any]) -> None:
        """See `context.Joiner`."""
        rows = self.whole.rows
        with self.whole.at_home():
            parts = [tf.cast(part, tf.float64) for part in denominators]
            parts = reductions.mask_rows(parts, rows.has_rows)
            total = tf.add_n(parts)
            total = total if rows.across is None else rows.across.total(total)
            self.whole.unknown_weights = [
                tf.where(total > 0, tf.math.divide_no_nan(part, total), of_rows)
                for part, of_rows in zip(parts, map(self._as_part, rows.weights), strict=True)
            ]

    @staticmethod
    def _as_part(weight: Any) -> tf.Tensor:
        return reductions.as_dtype(weight, tf.float64)

    def mean(self, strategy: Any, value: Any, destination: Any) -> Any:
        """See `context.Joiner`."""
        value = self._as_column(value)
        if not isinstance(value, values.PerDevice) or len(value.values) != strategy.num_towers:
            return strategy.reduce(variables.MEAN, value, destination)
        column = list(value.values)
        if isinstance(column[0], tf.IndexedSlices):
            return self.weighted(strategy, column, destination)
        column = [tf.convert_to_tensor(part) for part in column]
        if not column[0].dtype.is_floating:
            return strategy.reduce(variables.MEAN, values.PerDevice(column), destination)
        if self.whole.has_rows(column[0]):
            return self.weighted(strategy, column, destination)
        return self._noted(strategy, strategy.broadcast(self.whole.value(column), destination))

    def _noted(self, strategy: Any, value: Any) -> Any:
        """Takes note of a value that is the whole batch's, on whatever devices; returns it."""
        column = [values.select_tower(i, value) for i in range(strategy.num_towers)]
        for parts in zip(
            *[tf.nest.flatten(c, expand_composites=True) for c in column], strict=True
        ):
            self.whole.note(parts)
        return value

    def weighted(self, strategy: Any, column: Sequence[Any], destination: Any) -> Any:
        """Returns the mean over towers, weighted by rows, on the destination.

        Args:
            strategy: The strategy; the code runs across towers.
            column: K tensors or IndexedSlices.
            destination: See `DistributionStrategy.reduce`.
        """
        rows = self.whole.rows
        parts = [
            reductions.scaled(part, weight, reductions.device_of(part))
            for part, weight in zip(column, rows.weights, strict=True)
        ]
        found = values.PerDevice(parts, rows.devices)
        return self._noted(strategy, strategy.reduce(variables.SUM, found, destination))

    # What models write.

    def written(self, strategy: Any, variable: Any, method: str, value: Any) -> list | None:
        """See `context.Joiner`."""
        if isinstance(variable, variables.TowerLocalVariable):
            return self._gathered(variable, method, value)
        copies = len(variable.members)
        value = self._as_column(value)
        if not isinstance(value, values.DistributedValues):
            return [self._of_first(value)] * copies
        column = list(value.values)
        if self._is_whole(column[0]):
            is_own = len(column) == copies and self._is_repeatable(column[0])
            return column if is_own else [self._of_first(column[0])] * copies
        found = self._made_whole(column)
        if found is not None:
            return [found] * copies
        if variable.aggregation == variables.NONE:
            return [column[0]] * copies  # refused where a step runs it: see `writes`
        if variable.aggregation == variables.MEAN:
            reduced = self.weighted(strategy, column, variable)
        else:
            reduced = variable.aggregate(strategy, value)
        return [values.select_device(d, i, reduced) for i, d in enumerate(variable.devices)]

    def _as_column(self, value: Any) -> Any:
        """Returns what the only tower of one of several workers brings as a PerDevice."""
        is_lone = len(self.whole.rows.devices) == 1 and tf.is_tensor(value)
        return values.PerDevice([value], self.whole.rows.devices) if is_lone else value

    def _gathered(self, variable: Any, method: str, value: Any) -> list | None:
        """Returns what the copies of a metric's variable get of all rows; None: it is not seen."""
        if not self._is_metric(variable) or method not in ("assign", "assign_add", "assign_sub"):
            return None
        is_sum, others = variable.aggregation == variables.SUM, len(variable.members) - 1
        value = self._as_column(value)
        found = value
        if isinstance(value, values.DistributedValues):
            column = [tf.convert_to_tensor(part, variable.dtype) for part in value.values]
            self._require_no_rows(variable, column[0])
            found = self._made_whole(column, is_assumed=method != "assign")
            if found is None:
                return None
            variable.is_gathered = is_sum
        across = self.whole.rows.across  # which an evaluation adds up; each worker trains alike
        is_first = across is None or across.is_first or self._mode != "eval"
        return [found if is_first or not is_sum else None, *[None if is_sum else found] * others]

    def _require_no_rows(self, variable: Any, value: tf.Tensor) -> None:
        """Refuses a variable that is as long as a tower has rows, as each row's own would be."""
        is_seen = not self.whole.is_lone and self.whole.source_of(value) is not None
        if is_seen and self.whole.has_rows(value):
            raise errors.TowerMismatchError(
                "What a metric keeps must not be as long as the batch: a tower has other rows than "
                f"the batch, and {variable.name} of shape {variable.shape} is given a number for "
                f"each ({value.name}). Reduce the rows before they are given to the metric."
            )

    def _is_metric(self, variable: Any) -> bool:
        is_joined = variable.aggregation != variables.NONE and not variable.dtype == tf.bool
        listed = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
        return is_joined and (self._mode == "eval" or any(variable is item for item in listed))

    def _is_whole(self, value: Any) -> bool:
        if not tf.is_tensor(value) and not isinstance(value, tf.IndexedSlices):
            return True
        return self.whole.is_whole(value)

    def _made_whole(self, column: Sequence[Any], is_assumed: bool = False) -> tf.Tensor | None:
        """Returns the whole batch's value of K towers', or None: there is none.

        Args:
            column: K values.
            is_assumed: Whether what cannot be seen is taken for a mean over rows.
        """
        if not all(isinstance(part, tf.Tensor) for part in column):
            return None
        if self.whole.has_rows(column[0]) is not False and not self.whole.is_lone:
            return None
        if not is_assumed and self.whole.tail(column).unknown:
            return None
        found = self.whole.value(column)
        self.notices.reduced(column[0], self.whole.copied(column)[0])
        self.whole.note([found] * len(column))
        return found

    def _is_repeatable(self, value: Any, may_read: bool = True) -> bool:
        """Whether towers that compute a value from whole ones all get the same."""
        parts = tf.nest.flatten(value, expand_composites=True)
        return ancestry.is_repeatable(parts, self.whole.ends, may_read)

    # What is applied.

    def is_sum(self, gradients_of_first: Sequence[Any]) -> bool:
        """Whether gradients of several batches are added up to one of them all."""
        if self._declared is not None:
            return self._declared == "sum"
        return self.gradients.is_sum(gradients_of_first)

    def applied(self, strategy: Any, column: Sequence[Any], variable: Any) -> Any:
        """Returns what is applied to a variable of the gradients that K towers bring.

        A gradient that is whole is one device's, in each tower; with one copy of the variable
        the first tower's is applied. Any other, as a tape takes it, is joined by rows.
        """
        places = strategy.destinations_of(variable)
        if not self.whole.is_whole(column[0]):
            found = self._made_whole(column)
            if found is None:
                return self._joined_by_rows(strategy, column, variable)
            return self._noted(strategy, strategy.broadcast(found, variable))
        if len(places) == 1:
            return self._of_first(column[0])
        # NOTE: a variable that lies between, as a loss scale, may be read later in another tower.
        if len(places) == len(column) and self._is_repeatable(column[0], may_read=False):
            return values.Mirrored(column, places)
        return strategy.broadcast(self._of_first(column[0]), variable)

    def _of_first(self, value: Any) -> Any:
        """Returns a value as the first worker has it, where workers may not have the same."""
        across = self.whole.rows.across
        if across is None or not tf.is_tensor(value) or self._is_repeatable(value):
            return value
        return across.from_first([value])[0]

    def make_whole(self, towers: Sequence[dict]) -> None:
        """Makes whole what K towers' optimizers hold, such as a rate made from the batch.

        Args:
            towers: The attributes of K optimizers, of which the first one's are changed.
        """
        first = towers[0]
        for name, value in first.items():
            if isinstance(value, tf.Tensor) and not self.whole.is_whole(value):
                column = [tower.get(name) for tower in towers]
                if self.whole.copies() is not None:
                    column = list(self.whole.copies().column(value))
                if all(isinstance(part, tf.Tensor) for part in column):
                    found = self._made_whole(column)
                    first[name] = value if found is None else found

    def _joined_by_rows(self, strategy: Any, column: Sequence[Any], variable: Any) -> Any:
        if self._declared == "sum":
            found = values.PerDevice(column, self.whole.rows.devices)
            return strategy.reduce(variables.SUM, found, variable)
        first = column[0].values if isinstance(column[0], tf.IndexedSlices) else column[0]
        self.notices.taped(first)
        return self.weighted(strategy, column, variable)
