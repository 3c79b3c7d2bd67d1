"""K nests of predictions become one, row by row in the order of the batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, reductions, whole


def merge_predictions(nests: Sequence[Any], joining: whole.Whole, where: str) -> Any:
    """Concatenates the towers' predictions along axis 0; what has no rows becomes whole.

    Args:
        nests: K tensors, or K nests of one structure.
        joining: Joins what the towers made of their rows; a tower without rows adds none.
        where: What is merged, for error texts.

    Raises:
        TowerMismatchError: If the structures differ.
    """
    if nests[0] is None:
        return None
    _require_same_structure(nests, where)
    return _map_towers(lambda leaves: _merged(leaves, joining, where), nests)


def _merged(leaves: Sequence[Any], joining: whole.Whole, where: str) -> Any:
    if not all(map(tf.is_tensor, leaves)):
        return _concatenated(leaves, joining, where)
    if joining.is_lone or not _has_rows(leaves[0], joining):
        is_value = isinstance(leaves[0], tf.Tensor) and not joining.is_lone
        first = joining.value(leaves) if is_value else leaves[0]
        return reductions.copy_onto(first, joining.rows.home)
    return _concatenated(leaves, joining, where)


def _has_rows(leaf: Any, joining: whole.Whole) -> bool:
    if isinstance(leaf, tf.Tensor):
        return joining.has_rows(leaf) is not False
    return not joining.is_whole(leaf)


def _concatenated(leaves: Sequence[Any], joining: whole.Whole, where: str) -> Any:
    kept = [
        leaf if has_rows is True else batches.take_rows(leaf, _row_limit(has_rows))
        for leaf, has_rows in zip(leaves, joining.rows.has_rows, strict=True)
    ]
    return reductions.concat_onto(_of_one_width(kept, where), joining.rows.home)


def _of_one_width(leaves: Sequence[Any], where: str) -> list:
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


def _row_limit(has_rows: Any) -> Any:
    """Returns how many rows a tower may add: none without rows, else all of them."""
    if has_rows is False:
        return 0
    return tf.where(has_rows, tf.int64.max, tf.constant(0, tf.int64))


def merge_export_outputs(outputs: Sequence[Mapping | None], joining: whole.Whole) -> dict | None:
    """Merges the towers' export outputs, signature by signature.

    Args:
        outputs: K mappings from signature names to ExportOutputs, or K times None.
        joining: See `merge_predictions`.

    Raises:
        TowerMismatchError: If the signatures or their types differ.
    """
    if outputs[0] is None:
        return None
    _require_same_structure([dict.fromkeys(output) for output in outputs], "export_outputs")
    return {
        name: _merge_output([output[name] for output in outputs], joining, name)
        for name in outputs[0]
    }


def _merge_output(outputs: Sequence[Any], joining: whole.Whole, name: str) -> Any:
    kinds = [type(output) for output in outputs]
    if len(set(kinds)) > 1:
        raise errors.TowerMismatchError(
            f"Every tower must export the same outputs: {name!r} is "
            f"{[kind.__name__ for kind in kinds]} over the towers. Look for a branch on the tower."
        )

    def merged(field):
        return merge_predictions(
            [getattr(output, field) for output in outputs], joining, f"{name}.{field}"
        )

    if hasattr(outputs[0], "scores"):
        return kinds[0](scores=merged("scores"), classes=_merge_classes(outputs, joining, name))
    if hasattr(outputs[0], "value"):
        return kinds[0](value=merged("value"))
    if hasattr(outputs[0], "outputs"):
        return kinds[0](outputs=merged("outputs"))
    raise errors.TowerMismatchError(
        "Export outputs that can be merged are PredictOutput, RegressionOutput and "
        f"ClassificationOutput; {name!r} is {kinds[0].__name__}. Use one of these."
    )


def _merge_classes(outputs: Sequence[Any], joining: whole.Whole, name: str) -> Any:
    classes = [output.classes for output in outputs]
    if classes[0] is not None and classes[0].shape.rank == 0:
        classes = [tf.expand_dims(item, 0) for item in classes]
        return _concatenated(classes, joining, f"{name}.classes")
    return merge_predictions(classes, joining, f"{name}.classes")


def merge_predict(towers: Sequence[Any], joining: whole.Whole) -> Any:
    """Joins the towers' specs of mode PREDICT."""
    specs = [tower.spec for tower in towers]
    predictions = merge_predictions([s.predictions for s in specs], joining, "predictions")
    exports = merge_export_outputs([s.export_outputs for s in specs], joining)
    return specs[0]._replace(predictions=predictions, export_outputs=exports)


def _require_same_structure(nests: Sequence[Any], where: str) -> None:
    for i, nest in enumerate(nests):
        try:
            tf.nest.assert_same_structure(nests[0], nest, expand_composites=False)
        except (ValueError, TypeError) as difference:
            raise errors.TowerMismatchError(
                f"Every tower must return the same structure in {where}: tower {i} returned "
                f"{_outline(nest)}, tower 0 returned {_outline(nests[0])}. Look for a branch on "
                "the tower."
            ) from difference


def _outline(nest: Any) -> str:
    if isinstance(nest, Mapping):
        return f"the keys {sorted(map(str, nest))}"
    return type(nest).__name__


def _map_towers(fn: Any, nests: Sequence[Any]) -> Any:
    """Applies `fn` to the K leaves at each place of K nests of one structure."""
    columns = zip(*(tf.nest.flatten(nest) for nest in nests), strict=True)
    return tf.nest.pack_sequence_as(nests[0], [fn(list(leaves)) for leaves in columns])
