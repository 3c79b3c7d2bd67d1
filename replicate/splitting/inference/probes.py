"""Lengths of dimensions, found by inferring a graph's shapes for three sizes of the batch.

One inference assumes two rows, another many. A length that is the same in both does not depend on
rows, one that grows like them is a multiple of them, and any other is unknown. Likewise, one
assumes the shortest inner dimensions that the graph allows, the other long ones.

A graph may cut, or take the larger of two numbers. A length then follows one expression up to some
number of rows, and another beyond it. That number is made from numbers in the graph; the many rows
are far more than these. Fewer than two rows are one row, which the third inference assumes.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from replicate.compat import inference
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.inference import extents
from replicate.splitting.inference.extents import Number, Sizes
from replicate.splitting.structure import kinds, order

# Assumed rows of the batch, and picked rows; the first that the graph allows are used. Some graphs
# want more than two, some whole groups. The many are prime, so that remainders show.
_FEW = ((2, 3), (3, 5), (5, 7), (11, 17), (32, 48), (101, 151), (1021, 1531))
_FEW_IN_GROUPS = ((4, 6), (8, 12), (12, 18), (16, 24), (32, 48), (60, 90), (960, 1440))
_MANY = (
    *((134217757, 200000033), (16777259, 24000001), (1048583, 1500007)),
    *((65537, 98009), (2039, 3067)),
)
_GROUPS = 960
# How many times the graph's largest number, which may be scaled, the many rows are at least.
_FAR = 16
# Assumed inner dimensions, the first that the graph allows: short, so that cuts show; long, prime.
_SHORT = (1, 2, 5, 11)
_LONG = (1009, 499, 61)


class KnownRows(NamedTuple):
    """A tensor that has rows from the start.

    Attributes:
        tensor: The tensor.
        axis: Which dimension has the rows, one entry each.
        is_picked: Whether an operation picked the rows; else they are the batch's.
        more: How many entries there are beside the rows'.
    """

    tensor: tf.Tensor
    axis: int = 0
    is_picked: bool = False
    more: int = 0


_MEASURING = ("Shape", "ShapeN", "Size")
_COMPARING = (
    *("Div", "FloorDiv", "FloorMod", "Mod", "Select", "SelectV2", "Sub"),
    *("TruncateDiv", "TruncateMod"),
)


class KnownShape(NamedTuple):
    """A vector that is a shape, as that of a sparse tensor.

    Attributes:
        tensor: The vector.
        entries: Each entry: `extents.BATCH`, a number, or None if it is unknown.
    """

    tensor: tf.Tensor
    entries: Sequence[str | int | None]


Known: TypeAlias = KnownRows | KnownShape

_Given: TypeAlias = dict[Any, Dims]  # by `ref()`


class Probe:
    """One inference.

    Args:
        graph_def: The graph's definition; it is copied.
        known: The assumed dimensions of tensors, by `ref()`.
        values: The assumed entries of vectors, by `ref()`.
        sizes: The assumed numbers of rows.
    """

    def __init__(
        self,
        graph_def: tf1.GraphDef,
        known: _Given,
        values: _Given,
        sizes: Sizes,
    ):
        self.sizes = sizes
        self.known = dict(known)
        self.values = values
        self.graph_def = graph_def
        self._around_loops: dict[str, list[Dims | None]] = {}
        self._merged: dict[Hashable, Dims | None] = {}
        self.infer()

    def infer(self) -> None:
        """Infers all shapes from what is known; raises `UnfitError`."""
        self._merged = {}
        self._inferred = inference.Inferred(self._written())

    def look_around_loops(self) -> None:
        """Learns what Grappler infers of shapes in and behind loops."""
        given: dict[str, list[Dims | None]] = {}
        dtypes: dict[str, list[tf.DType]] = {}
        for ref, dims in self.known.items():
            op = ref.deref().op
            outputs = given.setdefault(op.name, [None] * len(op.outputs))
            outputs[ref.deref().value_index] = dims
            dtypes[op.name] = [each.dtype for each in op.outputs]
        self._merged = {}
        self._around_loops = inference.infer_around_loops(self._written(False), given, dtypes)

    def dims(self, tensor: tf.Tensor) -> Dims | None:
        """Returns a tensor's dimensions, or None if its rank is unknown."""
        key = tensor.ref()
        if key not in self._merged:
            self._merged[key] = self._dims(tensor)
        return self._merged[key]

    def imported(self, tensor: tf.Tensor) -> Dims | None:
        """Returns a tensor's dimensions as the importer infers them."""
        return self._inferred.dims(tensor)

    def _dims(self, tensor: tf.Tensor) -> Dims | None:
        found = static_dims(tensor)
        if found is not None and None not in found:
            return found
        found = _merged(found, self.imported(tensor))
        outputs = self._around_loops.get(tensor.op.name, ())
        if (found is None or None in found) and tensor.value_index < len(outputs):
            if tensor.dtype not in kinds.HANDLES:
                found = _merged(found, outputs[tensor.value_index])
        return found

    def _written(self, is_annotated: bool = True) -> tf1.GraphDef:
        """Returns the graph's definition with all that is assumed."""
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        nodes = {node.name: node for node in graph_def.node}
        shapes: dict[tf.Operation, list[Dims | None]] = {}
        for ref, dims in self.known.items() if is_annotated else ():
            op = ref.deref().op
            outputs = shapes.setdefault(op, [None] * len(op.outputs))
            outputs[ref.deref().value_index] = dims
        for op, outputs in shapes.items():
            inference.know(nodes[op.name], outputs)
        for n, (ref, value) in enumerate(self.values.items()):
            _replace(graph_def, nodes, ref.deref(), f"known/{n}", value)
        return graph_def


class Probes(NamedTuple):
    """What inferences tell of one graph.

    Attributes:
        found: For few rows, and for many; none if the graph allows none.
        of_one_row: For one row, if there can be one.
    """

    found: Sequence[Probe] = ()
    of_one_row: Probe | None = None


def probed(
    graph: tf.Graph,
    given: Sequence[Known],
    static_rows: int | None,
    is_all: bool = True,
) -> Probes:
    """Infers a graph's shapes for several sizes of the batch.

    Args:
        graph: The graph.
        given: What is given.
        static_rows: B, where it is static; else None.
        is_all: Whether to look at the whole graph, not only at what is made from what is given.
    """
    graph_def = _definition(graph, None if is_all else [each.tensor for each in given])
    has_picked = any(isinstance(each, KnownRows) and each.is_picked for each in given)
    has_inner = any(map(_number_of_inner, given))
    least = _FAR * _largest_number(graph, graph_def)
    for assumed in _assumed(least, static_rows, has_picked, has_inner):
        found = _fitting(graph_def, given, assumed)
        if found and not (found[0].sizes.inner and _compares_lengths(graph, given)):
            break
    else:
        return Probes()
    if static_rows and not has_picked:
        return Probes(found)
    sizes = found[0].sizes
    ones = [Sizes(rows, 1, sizes.inner) for rows in (static_rows or 1, sizes.batch)]
    alone = _fitting(graph_def, given, [ones[: 1 + has_picked]])
    return Probes(found, alone[0] if alone else None)


def _assumed(
    least: int, static_rows: int | None, has_picked: bool, has_inner: bool
) -> Iterator[list[list[Sizes]]]:
    """Yields what inferences may assume: for each one several sizes, of which one is to fit."""
    has_two = has_picked or not static_rows
    groups = [(_GROUPS * batch, _GROUPS * picked) for batch, picked in _MANY]
    for few, many in ((_FEW[:1], _MANY), (_FEW[1:], _MANY), (_FEW_IN_GROUPS, groups)):
        begin = max((n for n, rows in enumerate(many) if rows[0] > least), default=0)
        pairs = [few, many[begin:]]
        if static_rows:
            pairs = [[(static_rows, picked) for _, picked in rows] for rows in pairs]
        if has_inner:
            yield [
                [Sizes(*rows, length) for rows in assumed for length in lengths]
                for assumed, lengths in zip(pairs, (_SHORT, _LONG), strict=True)
            ]
        yield [[Sizes(*rows) for rows in assumed] for assumed in pairs][: 1 + has_two]
        if not has_two:
            return


def _fitting(
    graph_def: tf1.GraphDef, given: Sequence[Known], assumed: Sequence[Sequence[Sizes]]
) -> list[Probe]:
    """Returns an inference for each assumption, or nothing if the graph does not allow one."""
    found = []
    for sizes in assumed:
        probes = (_probe(graph_def, given, each) for each in sizes)
        probe = next((each for each in probes if each is not None), None)
        if probe is None:
            return []
        found.append(probe)
    return found


def _largest_number(graph: tf.Graph, graph_def: tf1.GraphDef) -> int:
    """Returns a graph's largest number that lengths may be made from, or compared with."""
    found = {1}
    for op in graph.get_operations():
        if op.type in _MEASURING:
            found.update(size for each in op.inputs for size in static_dims(each) or () if size)
    is_rounded = any(
        node.op == "Cast"
        and tf.as_dtype(node.attr["SrcT"].type).is_floating
        and tf.as_dtype(node.attr["DstT"].type).is_integer
        for node in graph_def.node
    )
    for node in graph_def.node:
        dtype = tf.as_dtype(node.attr["dtype"].type) if node.op == "Const" else tf.string
        if dtype in (tf.int32, tf.int64) or (is_rounded and dtype.is_floating):
            found.update(_numbers(node.attr["value"].tensor))
    return max(number for number in found if number < _MANY[0][0])


def _numbers(tensor: Any) -> list[int]:
    """Returns the numbers of a small constant."""
    if math.prod(dim.size for dim in tensor.tensor_shape.dim) > extents.MOST_ENTRIES:
        return []
    values = tf.make_ndarray(tensor).astype(np.float64).reshape(-1)
    return [math.ceil(each) for each in np.abs(values[np.isfinite(values)])]


def _definition(graph: tf.Graph, given: Sequence[tf.Tensor] | None) -> tf1.GraphDef:
    """Returns a graph's definition; or only what tensors, if given, are read by, and its inputs."""
    graph_def = graph.as_graph_def()
    if given is not None:
        needed = {op.name for op in operations.executed_by([*given, *order.behind(given)])}
        nodes = [node for node in graph_def.node if node.name in needed]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
    for node in graph_def.node:
        node.device = ""
        if "_class" in node.attr:
            del node.attr["_class"]  # the operation that it names may be left out
    return graph_def


def _compares_lengths(graph: tf.Graph, given: Sequence[Known]) -> bool:
    """Whether several unknown lengths make a number that may not show that they differ.

    So does `x // y`, and a reshape to lengths of tensors that the value is not made from.
    """
    if sum(map(_number_of_inner, given)) < 2:
        return False
    nothing: frozenset[Hashable] = frozenset()
    lengths: dict[Hashable, frozenset[Hashable]] = {}  # whose lengths small tensors are made of
    origins = {each.tensor.ref(): frozenset([each.tensor.ref()]) for each in given}
    for op in graph.get_operations():
        before = nothing.union(*(origins.get(each.ref(), nothing) for each in op.inputs))
        for tensor in op.outputs:
            origins.setdefault(tensor.ref(), before)
            if op.type in _MEASURING:
                measured = op.inputs[tensor.value_index if op.type == "ShapeN" else 0]
                dims = static_dims(measured)
                is_open = dims is None or None in dims[1:]
                lengths[tensor.ref()] = frozenset([measured.ref()]) if is_open else nothing
            elif tensor.shape.rank in (0, 1) and tensor.dtype not in kinds.HANDLES:
                found = (lengths.get(each.ref(), nothing) for each in op.inputs)
                lengths[tensor.ref()] = nothing.union(*found)
        if _may_hide(op) and len(lengths.get(op.outputs[0].ref(), nothing)) > 1:
            return True
        if op.type == "Reshape":
            own, shape = (each.ref() for each in op.inputs)
            told = lengths.get(shape, nothing)
            if not all(origins[each] <= origins.get(own, nothing) for each in told):
                return True
    return False


def _may_hide(op: tf.Operation) -> bool:
    """Whether an operation may make the same whole numbers of different operands."""
    is_cast = op.type == "Cast" and not op.inputs[0].dtype.is_integer
    if not (is_cast or op.type in _COMPARING) or not op.outputs[0].dtype.is_integer:
        return False
    users = op.outputs[0].consumers()  # the divisor of a mean is no length
    return any(user.type != "Cast" or user.outputs[0].dtype.is_integer for user in users)


def static_dims(tensor: tf.Tensor) -> Dims | None:
    """Returns a tensor's dimensions as its own graph knows them."""
    shape = tensor.shape
    return None if shape.rank is None else shape.as_list()


def is_open(given: Sequence[Known]) -> bool:
    """Whether shapes depend on more than on a number of rows of the batch."""
    return any(
        _number_of_inner(each) or isinstance(each, KnownShape) or each.is_picked for each in given
    )


def entry(number: str | int | None, static_rows: int | None) -> Number:
    """Returns an entry of a `KnownShape` as a number."""
    if number == extents.BATCH:
        return static_rows or extents.rows(extents.BATCH)
    return extents.inner() if number is None else int(number)


def _probe(graph_def: tf1.GraphDef, given: Sequence[Known], sizes: Sizes) -> Probe | None:
    """Returns an inference, or None if the graph does not allow what it assumes."""
    known: _Given = {}
    values: _Given = {}
    for each in given:
        if isinstance(each, KnownShape):
            numbers = [sizes.batch if e == extents.BATCH else e for e in each.entries]
            values[each.tensor.ref()] = [sizes.inner if n is None else int(n) for n in numbers]
            continue
        dims = static_dims(each.tensor)
        if dims is None or each.axis >= len(dims):
            continue
        if dims[each.axis] is None:
            rows = sizes.picked if each.is_picked else sizes.batch
            dims[each.axis] = rows + each.more
        if not each.is_picked:
            dims = [sizes.inner if size is None else size for size in dims]
        known[each.tensor.ref()] = dims
    try:
        return Probe(graph_def, known, values, sizes)
    except inference.UnfitError:
        return None


def _number_of_inner(given: Known) -> int:
    """Returns how many dimensions other than the rows' are unknown."""
    if isinstance(given, KnownShape):
        return list(given.entries).count(None)
    dims = static_dims(given.tensor)
    if dims is None or given.is_picked:
        return 0
    return (dims[: given.axis] + dims[given.axis + 1 :]).count(None)


def _merged(a: Dims | None, b: Dims | None) -> Dims | None:
    """Returns a shape of two descriptions; where they differ, the first one holds."""
    if a is None or b is None or len(a) != len(b):
        return b if a is None else a
    return [y if x is None else x for x, y in zip(a, b, strict=True)]


def _replace(
    graph_def: tf1.GraphDef,
    nodes: Mapping[str, tf1.NodeDef],
    tensor: tf.Tensor,
    name: str,
    value: Dims,
) -> None:
    """Lets whatever reads a tensor read numbers instead, of which some are unknown."""
    while name in nodes:
        name += "_"
    dtype = tensor.dtype.base_dtype
    made = graph_def.node.add(op="Pack", name=name)
    made.attr["T"].type, made.attr["N"].i = dtype.as_datatype_enum, len(value)
    for place, number in enumerate(value):
        is_known = number is not None
        part = graph_def.node.add(name=f"{name}/{place}", op="Const" if is_known else "Placeholder")
        part.attr["dtype"].type = dtype.as_datatype_enum
        if is_known:
            part.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, dtype))
        else:
            part.attr["shape"].shape.SetInParent()
        made.input.append(part.name)
    old = {tensor.name, tensor.op.name} if tensor.value_index == 0 else {tensor.name}
    for user in tensor.consumers():
        inputs = nodes[user.name].input
        for n, each in enumerate(inputs):
            if each in old:
                inputs[n] = name
