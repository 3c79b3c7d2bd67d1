"""Scalar summaries show the whole batch's values; all others are the first tower's.

Later towers make no summaries. What one of them has in place of the number that the first
tower shows is found by the name that both have on one device.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import copying, whole

_TYPE = "ScalarSummary"


def make_whole(joining: whole.Whole, find: Callable[[tf.Tensor], Sequence]) -> None:
    """Puts summaries of whole values in place of the first tower's, in their collections.

    Args:
        joining: Joins what the towers made of their rows.
        find: From a tensor of the first tower to the K towers' tensors, or None, in its place.
    """
    graph = tf1.get_default_graph()
    for key in graph.get_all_collection_keys():
        held = graph.get_collection_ref(key)
        held[:] = [_whole(item, joining, find) for item in held]


def _whole(item: Any, joining: whole.Whole, find: Callable) -> Any:
    """Returns a summary of the whole value of what a summary shows; anything else as it is."""
    if not isinstance(item, tf.Tensor) or item.op.type != _TYPE or joining.is_lone:
        return item
    shown = item.op.inputs[1]
    if joining.is_whole(shown) or joining.has_rows(shown) is not False:
        return item
    column = list(find(shown))
    # NOTE: what a model said of a shape by `set_shape`, copies do not know.
    if any(twin is None or not twin.shape.is_compatible_with(shown.shape) for twin in column):
        return item
    if joining.tail(column).unknown:  # what a summary shows is not worth a guess
        return item
    value = joining.value(column)
    with tf.device("/device:CPU:0"):
        copies = copying.copied([item.op], {shown.ref(): value}, f"{whole.SCOPE}summary")
    return copies[item.ref()]


def by_name(prefixes: Sequence[str]) -> Callable[[tf.Tensor], Sequence]:
    """Returns what finds the K towers' tensors by the name that they have on one device.

    Args:
        prefixes: What the names of the K towers' operations begin with.
    """
    return lambda shown: [_twin(shown, prefixes[0], prefix) for prefix in prefixes]


def _twin(tensor: tf.Tensor, plain: str, prefix: str) -> tf.Tensor | None:
    """Returns what a tower has in place of the first one's tensor, or None."""
    name = prefix + tensor.name.removeprefix(plain)
    try:
        found = tensor.graph.get_tensor_by_name(name)
    except (KeyError, ValueError):
        return None
    return found if found.op.type == tensor.op.type and found.dtype == tensor.dtype else None
