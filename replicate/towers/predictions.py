"""K towers' values become one: rows in the order of the batch, scalars by the towers' rows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions, rows
from replicate.strategy import base, context

ExportOutput: TypeAlias = Any
"""A `replicate.estimator.export.ExportOutput`; Estimators are loaded on first use."""


def joined(strategy: base.DistributionStrategy, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins K values without rows, as losses and gradients are joined.

    Args:
        strategy: The strategy; its scope and the towers' `context.Share` are entered.
        values: K tensors of one shape.

    Returns:
        Their mean, each weighted by the rows of its tower, or their sum, of all workers.
    """
    share = context.required_share()
    with tf1.name_scope(reductions.SCOPE):
        if share.reduction == "mean":
            total = reductions.weighted_sum_onto(values, *share.parts, strategy.home)
        else:
            values = reductions.mask_rows(values, share.parts.has_rows)
            total = reductions.sum_onto(values, strategy.home)
    return share.workers.total(total)


def merge(
    strategy: base.DistributionStrategy, nests: Sequence[types.Nest], where: str
) -> types.Nest:
    """Concatenates the towers' values along axis 0; of scalars, returns the mean over rows.

    Args:
        strategy: See `joined`.
        nests: K tensors, or K nests of one structure.
        where: What is merged, for error texts.

    Raises:
        TowerMismatchError: If the structures differ.
    """
    if nests[0] is None:
        return None
    _require_same_structure(nests, where)
    columns = zip(*(tf.nest.flatten(nest) for nest in nests), strict=True)
    leaves = [_merged(strategy, list(column), where) for column in columns]
    return tf.nest.pack_sequence_as(nests[0], leaves)


def _merged(
    strategy: base.DistributionStrategy, leaves: Sequence[types.Rows], where: str
) -> types.Rows:
    first, parts = leaves[0], context.required_share().parts
    if not isinstance(first, tf.Tensor) or first.shape.rank != 0:
        kept = [rows.kept(leaf, has) for leaf, has in zip(leaves, parts.has_rows, strict=True)]
        return reductions.concat_onto(_of_one_width(kept, where), strategy.home)
    if not first.dtype.is_floating:
        return reductions.copy_onto(first, strategy.home)
    return reductions.weighted_sum_onto(leaves, *parts, strategy.home)


def _of_one_width(leaves: Sequence[types.Rows], where: str) -> list[types.Rows]:
    """Lets a run fail with the reason where towers' rows turn out to differ in shape."""
    first = leaves[0]
    if not isinstance(first, tf.Tensor) or first.shape[1:].is_fully_defined():
        return list(leaves)
    text = (
        f"Rows that towers return are joined, and must be of one shape in all of them: {where} "
        "are not. Pad them to a width that does not depend on the tower's rows."
    )
    checks = [
        tf1.assert_equal(tf.shape(leaf)[1:], tf.shape(first)[1:], message=text)
        for leaf in leaves[1:]
    ]
    with tf1.control_dependencies(checks):
        return [tf.identity(first), *leaves[1:]]


def merge_export_outputs(
    strategy: base.DistributionStrategy, outputs: Sequence[Mapping[str, ExportOutput] | None]
) -> dict[str, ExportOutput] | None:
    """Merges the towers' export outputs, signature by signature.

    Args:
        strategy: See `joined`.
        outputs: K mappings from signature names to ExportOutputs, or K times None.

    Raises:
        TowerMismatchError: If the signatures or their types differ.
    """
    if outputs[0] is None:
        return None
    given = [output or {} for output in outputs]
    _require_same_structure([dict.fromkeys(output) for output in given], "export_outputs")
    return {
        name: _merge_output(strategy, [output[name] for output in given], name) for name in given[0]
    }


def _merge_output(
    strategy: base.DistributionStrategy, outputs: Sequence[ExportOutput], name: str
) -> ExportOutput:
    kinds = [type(output) for output in outputs]
    if len(set(kinds)) > 1:
        raise errors.TowerMismatchError(
            f"Every tower must export the same outputs: {name!r} is "
            f"{[kind.__name__ for kind in kinds]} over the towers. Look for a branch on the tower."
        )

    def merged(field: str) -> types.Nest:
        found = [getattr(output, field) for output in outputs]
        if field == "classes" and found[0] is not None and found[0].shape.rank == 0:
            found = [tf.expand_dims(item, 0) for item in found]
        return merge(strategy, found, f"{name}.{field}")

    for fields in (("scores", "classes"), ("value",), ("outputs",)):
        if hasattr(outputs[0], fields[0]):
            return kinds[0](**{field: merged(field) for field in fields})
    raise errors.TowerMismatchError(
        "Export outputs that can be merged are PredictOutput, RegressionOutput and "
        f"ClassificationOutput; {name!r} is {kinds[0].__name__}. Use one of these."
    )


def _require_same_structure(nests: Sequence[types.Nest], where: str) -> None:
    for i, nest in enumerate(nests):
        try:
            tf.nest.assert_same_structure(nests[0], nest, expand_composites=False)
        except (ValueError, TypeError) as difference:
            raise errors.TowerMismatchError(
                f"Every tower must return the same structure in {where}: tower {i} returned "
                f"{_outline(nest)}, tower 0 returned {_outline(nests[0])}. Look for a branch on "
                "the tower."
            ) from difference


def _outline(nest: types.Nest) -> str:
    if isinstance(nest, Mapping):
        return f"the keys {sorted(map(str, nest))}"
    return type(nest).__name__
