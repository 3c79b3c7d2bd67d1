"""Means over batches of one number per batch, such as a metric of the loss.

On one device such a metric adds (value, 1) to its (total, count) for each batch. Of K towers
each has a value of its own, made of its rows; what they add is changed such that together
they add (value, 1) again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, reductions
from replicate.strategy import context, contributions, tower_count, variables

_LINEAR = ("AddN", "AddV2", "Add", "Sub", "Identity", "Neg", "Cast")


class _Adds(NamedTuple):
    """What K towers add to a metric's scalar variable.

    Attributes:
        writes: K operations that add to a tower's copy.
        added: The K tensors that the model's code adds.
    """

    writes: list
    added: list


def weigh(
    spec: Any,
    metric_variables: Sequence[variables.TowerLocalVariable],
    share: context.Share,
) -> None:
    """Makes the towers' means of scalars one device's; all other metrics stay as they are.

    A scalar mean is known by the two variables that its update writes: one is given the
    constant 1, the other a tensor of rank 0, or the sum of one.

    Args:
        spec: The first tower's EstimatorSpec.
        metric_variables: Metrics' variables, whose copies are added up.
        share: The towers' parts of the batch.
    """
    adds = [_found(variable, share.has_rows) for variable in metric_variables]
    adds = {found.writes[0]: found for found in adds if found is not None}
    if not any(_is_one(found) for found in adds.values()):
        return
    writes = {op for variable in metric_variables for op in ancestry.writes(variable.members[0])}
    weights = [weight for weight in share.weights if tf.is_tensor(weight)]
    before_weights = ancestry.executed_by(weights)
    weigher = None
    for pair in _pairs(spec, adds, writes):
        if None in pair or not before_weights.isdisjoint(_writes(pair)):
            continue
        total, count = sorted(pair, key=_is_one)
        values = [_summed(tensor) for tensor in total.added]
        if not _is_one(count) or _is_one(total) or any(v.shape.rank != 0 for v in values):
            continue
        weigher = weigher or _Weigher(spec.loss, share)
        weigher.weigh(total, count, values)
        del adds[total.writes[0]], adds[count.writes[0]]  # which may have a second name


def _pairs(spec: Any, adds: dict, writes: set[tf.Operation]) -> Iterator[list]:
    """Yields what adds to the two variables of a metric, which are in one scope of names."""
    for _, update in spec.eval_metric_ops.values():
        scopes: dict[str, list] = {}
        for write in writes & ancestry.executed_by([update]):
            scope = write.inputs[0].op.name.rpartition("/")[0]
            scopes.setdefault(scope, []).append(adds.get(write))
        yield from (pair for pair in scopes.values() if len(pair) == 2)


def _found(variable: variables.TowerLocalVariable, has_rows: Sequence[Any]) -> _Adds | None:
    """Returns what towers add to a variable, where each does so once and in plain sight."""
    if variable.shape.rank != 0 or not variable.dtype.is_floating:
        return None
    writes = [
        [op for op in ancestry.writes(member) if op.type == "AssignAddVariableOp"]
        for member in variable.members
    ]
    if any(len(found) != 1 for found in writes):
        return None
    writes = [found[0] for found in writes]
    if any(op._get_control_flow_context() is not None for op in writes):
        return None
    added = [_of_model(op.inputs[1], has) for op, has in zip(writes, has_rows, strict=True)]
    return _Adds(writes, added)


def _of_model(added: tf.Tensor, has_rows: Any) -> tf.Tensor:
    """Returns what the model adds, of which a tower without rows is given zeros instead."""
    op = added.op
    if has_rows is True or op.type != "SelectV2":
        return added
    known = op.inputs[0].op is has_rows.op if tf.is_tensor(has_rows) else _is_false(op.inputs[0])
    return op.inputs[1] if known else added


def _is_false(tensor: tf.Tensor) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and not value


def _is_one(adds: _Adds) -> bool:
    values = [tf.get_static_value(tensor) for tensor in adds.added]
    return all(value is not None and value == 1 for value in values)


def _summed(tensor: tf.Tensor) -> tf.Tensor:
    """Returns what a tensor is the sum of. NOTE: a sum over one row is no scalar."""
    return tensor.op.inputs[0] if tensor.op.type == "Sum" else tensor


def _writes(pair: Sequence[_Adds]) -> set[tf.Operation]:
    return {write for adds in pair for write in adds.writes}


class _Weigher:
    """Changes what towers add.

    A scalar is a sum that can be seen to be one, and a count; where losses are sums, so is
    what the loss is made of. Else it is a mean.

    Args:
        loss: The first tower's loss.
        share: The towers' parts of the batch.
    """

    def __init__(self, loss: tf.Tensor, share: context.Share):
        self._shares = {True: share, False: share._replace(weights=_row_weights(share))}
        self._is_mean = contributions.is_mean(share)
        self._varying = ancestry.varying(tf1.get_default_graph(), *share.given)
        self._of_loss = {op for op, _, _ in self._traced(loss)}
        self._contributions = {
            (of_loss, reduction): contributions.Contributions(part._replace(reduction=reduction))
            for of_loss, part in self._shares.items()
            for reduction in ("mean", "sum")
        }

    def weigh(self, total: _Adds, count: _Adds, values: Sequence[tf.Tensor]) -> None:
        """Lets K towers add up to (value, 1).

        Args:
            total: What adds the values.
            count: What adds 1.
            values: K scalars.
        """
        is_of_loss = self._is_of_loss(values[0])
        share = self._shares[is_of_loss]
        towers = self._contributions[is_of_loss, "sum" if self._is_sum(values[0]) else "mean"]
        with tf1.control_dependencies(None), tf1.name_scope("scalar_mean"):
            counts = share.has_rows
            if towers.lack_weights(values):  # as in the loss, a weight of 0 keeps out NaN
                counts = [weight > 0 for weight in share.weights]
            brought = reductions.mask_rows(towers.of_losses(values), counts)
            for i, (adding, counting) in enumerate(zip(total.writes, count.writes, strict=True)):
                with reductions.on(counting.device):
                    part = reductions.as_dtype(share.weights[i], count.added[i].dtype)
                adding._update_input(1, brought[i])
                counting._update_input(1, part)

    def _is_sum(self, value: tf.Tensor) -> bool:
        """Whether a value is a sum over rows; what depends on weights alone is none."""
        if value.op in self._varying and tower_count.counts_rows(value):
            return True
        traced = [step for step in self._traced(value) if step[0] in self._varying]
        ends = {reduced for _, reduced, is_end in traced if is_end}
        is_summed = not self._is_mean and self._is_of_loss(value)
        return "Sum" in ends or (is_summed and None in ends)

    def _is_of_loss(self, value: tf.Tensor) -> bool:
        """Whether a value is the loss or a part of it, and weighs what the loss weighs."""
        traced = [op for op, _, _ in self._traced(value) if op in self._varying]
        return any(op in self._of_loss for op in traced)

    def _traced(self, value: tf.Tensor) -> Iterator[tuple[tf.Operation, str | None, bool]]:
        """Yields the operations that make a value, as far back as it is linear in them.

        With each comes how rows have been reduced from there on, as far as can be seen:
        `"Sum"`, `"Mean"`, or None; and whether nobody looks behind it.
        """
        waiting: list = [(value.op, None)]
        seen: set = set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            op, reduced = step
            inner, reduced = self._behind(op, reduced)
            yield op, reduced, not inner
            waiting.extend((tensor.op, reduced) for tensor in inner)

    def _behind(self, op: tf.Operation, reduced: str | None) -> tuple[list, str | None]:
        """Returns what an operation is linear in, and how rows are reduced from there on."""
        inputs = list(op.inputs)
        if op.type in ("Sum", "Mean"):
            return inputs[:1], op.type if _takes_rows(op) else reduced
        if op.type in _LINEAR:
            return inputs, reduced
        if op.type not in ("Mul", "RealDiv", "DivNoNan"):
            return [], reduced
        varies = [tensor.op in self._varying for tensor in inputs]
        is_quotient = op.type != "Mul" and inputs[1].shape.rank == 0
        if is_quotient and (varies[1] or op.type == "DivNoNan"):
            return [], "Mean"  # losses divide so by a number of rows, known or not
        if all(varies):
            return [], reduced
        return [inputs[0] if varies[0] else inputs[1]], reduced


def _takes_rows(op: tf.Operation) -> bool:
    """Whether a sum or mean is one over the first axis."""
    rank = op.inputs[0].shape.rank
    if rank == 0:
        return False
    axes = tf.get_static_value(op.inputs[1])
    return rank is None or axes is None or any(axis % rank == 0 for axis in axes.reshape(-1))


def _row_weights(share: context.Share) -> list:
    """Returns the towers' parts of the rows, whatever their losses weigh."""
    counts = [reductions.as_dtype(count, tf.float64) for count in share.row_counts]
    total = tf.add_n(counts)
    return [count / total for count in counts]
