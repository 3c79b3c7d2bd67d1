"""Joins what devices have for their own different values.

The different values of all devices' own ones, in their order, are those of one device. So devices
send what they have for each different value, not what they have for each row.
"""

from typing import TYPE_CHECKING

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting.rules import different, elementwise
from replicate.splitting.rules.gathers import SPARSE_SEGMENTS
from replicate.splitting.states import Counted, Leading, Local, Rows, Sums
from replicate.splitting.structure import effects
from replicate.splitting.structure.nodes import Reference, output

if TYPE_CHECKING:
    from replicate.splitting.writing import writer as writers


def joined(written: "writers.Writer", tensor: tf.Tensor, state: Local) -> Reference:
    """Returns as one device has it a tensor of which each device has a value of its own.

    Args:
        written: The writer.
        tensor: The tensor.
        state: Its state.
    """
    source = state.source
    if isinstance(state, Sums):
        return _sums(written, tensor, source)
    if tensor is source and tensor.op.type in different.SORTED_GRADIENTS:
        return output(str(written.whole(tensor.op.outputs[0])), 1)
    if tensor is source and different.is_list(source):
        kinds, place = {"T": tensor.dtype, "out_idx": tf.int32}, _place(written, tensor)
        return written.nodes.add("Unique", [_all(written, tensor, source)], place, **kinds)
    written.want_whole(tensor.op)
    return tensor


def picked(written: "writers.Writer", tensor: tf.Tensor, state: Local) -> Reference | None:
    """Returns of what devices have for their different values each one's first, as `joined` does.

    Unlike there, no operation runs again on whole values. None if entries are of no different ones.

    Args:
        written: The writer.
        tensor: The tensor, whose entries are alike for values that are alike.
        state: Its state.
    """
    source, nodes, home = state.source, written.nodes, written.home
    if isinstance(state, (Counted, Sums)) or not different.is_list(source):
        return None
    places = output(str(written.whole(source)), 1)
    parts = _all(written, tensor, source)
    sizes = [
        nodes.add("Size", [each], home, T=dtype, out_type=tf.int32)
        for each, dtype in ((places, tf.int32), (written.whole(source), source.dtype))
    ]
    zero, one = (written.constant(np.int32(n), None) for n in (0, 1))
    each = nodes.add("Range", [zero, sizes[0], one], home, Tidx=tf.int32)
    kinds = {"T": tf.int32, "Tindices": tf.int32, "Tnumsegments": tf.int32}
    first = nodes.add("UnsortedSegmentMin", [each, places, sizes[1]], home, **kinds)
    kinds = {"Tparams": tensor.dtype, "Tindices": tf.int32, "Taxis": tf.int32}
    return nodes.add("GatherV2", [parts, first, zero], home, **kinds)


def shape(written: "writers.Writer", leaf: tf.Tensor, tensor: tf.Tensor, source: tf.Tensor) -> str:
    """Returns the shape of a value for each different value, without making it.

    Args:
        written: The writer.
        leaf: The shape.
        tensor: The value.
        source: The different values.
    """
    whole, nodes = written.whole(source), written.nodes
    kinds = {"T": source.dtype, "out_type": leaf.dtype}
    counted = nodes.add("Shape", [whole], written.home, **kinds)
    mask = written.constant(np.arange(written.joins.rank(tensor)) == 0, None)
    shapes = [mask, counted, written.own(leaf, 0)]
    return nodes.add("SelectV2", shapes, written.home, T=leaf.dtype)


def is_short(tensor: tf.Tensor, state: Local) -> bool:
    """Whether a device's copy may leave out its last rows."""
    return isinstance(state.source, Leading) and tensor.op.type in SPARSE_SEGMENTS


def lengthened(written: "writers.Writer", tensor: tf.Tensor, state: Local) -> list[str]:
    """Returns sums by rows, with zeros for what is left out before the last row of all.

    Args:
        written: The writer.
        tensor: The sums.
        state: Their state.
    """
    nodes, runs = written.nodes, written.joins.runs_of(state.source.rows)
    mask = np.zeros([written.joins.rank(tensor), 2], np.int32)
    mask[0, 1] = 1
    found = []
    for k, part in enumerate(written.own_copies(tensor)):
        place = written.devices[k]
        end = nodes.add("AddV2", [runs.begins[k], runs.lengths[k]], place, T=tf.int32)
        is_last = nodes.add("GreaterEqual", [end, runs.total], place, T=tf.int32)
        shape = nodes.add("Shape", [part], place, T=tensor.dtype, out_type=tf.int32)
        zero, first, one = (written.constant(np.array(n, np.int32), k) for n in (0, [0], [1]))
        kinds = {"T": tf.int32, "Index": tf.int32}
        length = nodes.add("Slice", [shape, first, one], place, **kinds)
        missing = nodes.add("Sub", [runs.lengths[k], length], place, T=tf.int32)
        more = nodes.add("SelectV2", [is_last, zero, missing], place, T=tf.int32)
        pads = nodes.add("Mul", [written.constant(mask, k), more], place, T=tf.int32)
        kinds = {"T": tensor.dtype, "Tpaddings": tf.int32}
        found.append(nodes.add("Pad", [part, pads], place, **kinds))
    return found


def _all(written: "writers.Writer", tensor: tf.Tensor, source: tf.Tensor) -> Reference:
    """Returns what all devices have for their own different values, device by device."""
    return written.joins.of_rows(tensor, Rows(0, written.analysis.space_of(source)))


def _place(written: "writers.Writer", source: tf.Tensor) -> str:
    """Returns the device of the one variable that different values are written to; else home."""
    waiting, places = [source], set()
    while waiting:
        for op in waiting.pop().consumers():
            if effects.changes_state(op):
                places.add(written.device_of(op))
            elif op.type in elementwise.EACH:
                waiting.extend(op.outputs)
    return places.pop() if len(places) == 1 else written.home


def _sums(written: "writers.Writer", tensor: tf.Tensor, source: tf.Tensor) -> str:
    """Returns the sum of what devices have for each different value."""
    nodes, home = written.nodes, _place(written, source)
    parts = _all(written, tensor, source)
    if source.op.type not in different.SORTED_GRADIENTS:
        values = written.whole(source)
        number = nodes.add("Size", [values], home, T=source.dtype, out_type=tf.int32)
        inputs = [parts, output(str(values), 1), number]
        kinds = {"T": tensor.dtype, "Tindices": tf.int32, "Tnumsegments": tf.int32}
        return nodes.add("UnsortedSegmentSum", inputs, home, **kinds)
    values = _all(written, source, source)
    number = nodes.add("Size", [values], home, T=source.dtype, out_type=tf.int32)
    zero, one = (written.constant(np.int32(n), None) for n in (0, 1))
    each = nodes.add("Range", [zero, number, one], home, Tidx=tf.int32)
    inputs = [parts, values, each, written.whole(source.op.inputs[3])]
    kinds = {"T": tensor.dtype, "Tidx": source.dtype, "Tsegmentids": tf.int32}
    return nodes.add("SparseSegmentSumGradV2", inputs, home, **kinds)
