"""Scalar summaries show the whole batch's values; all others are the first tower's.

Later towers make no summaries. What one of them has in place of the number that the first
tower shows is found by the name that both have on one device.
"""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import copying, whole

_TYPE = "ScalarSummary"


def make_whole(joining: whole.Whole, prefixes: Sequence[str]) -> None:
    """Puts summaries of whole values in place of the first tower's, in their collections.

    Args:
        joining: Joins what the towers made of their rows.
        prefixes: What the names of the K towers' operations begin with.
    """
    graph = tf1.get_default_graph()
    for key in graph.get_all_collection_keys():
        held = graph.get_collection_ref(key)
        held[:] = [_whole(item, joining, prefixes) for item in held]


def _whole(item: Any, joining: whole.Whole, prefixes: Sequence[str]) -> Any:
    """Returns a summary of the whole value of what a summary shows; anything else as it is."""
    if not isinstance(item, tf.Tensor) or item.op.type != _TYPE or joining.is_lone:
        return item
    shown = item.op.inputs[1]
    if joining.is_whole(shown) or joining.has_rows(shown) is not False:
        return item
    column = [_twin(shown, prefixes[0], prefix) for prefix in prefixes]
    if any(twin is None or twin.shape != shown.shape for twin in column):
        return item
    if joining.tail(column).unknown:  # what a summary shows is not worth a guess
        return item
    value = joining.value(column)
    with tf.device("/device:CPU:0"):
        copies = copying.copied([item.op], {shown.ref(): value}, f"{whole.SCOPE}summary")
    return copies[item.ref()]


def _twin(tensor: tf.Tensor, plain: str, prefix: str) -> tf.Tensor | None:
    """Returns what a tower has in place of the first one's tensor, or None."""
    name = prefix + tensor.name.removeprefix(plain)
    try:
        found = tensor.graph.get_tensor_by_name(name)
    except (KeyError, ValueError):
        return None
    return found if found.op.type == tensor.op.type and found.dtype == tensor.dtype else None
