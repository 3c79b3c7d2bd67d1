"""Lengths of dimensions, found by inferring a graph's shapes for two sizes of the batch.

One inference assumes few rows, another many: what is the same in both does not depend on rows,
what grows like them is a multiple of them, and of all else nothing is known. So it is with unknown
inner dimensions, of which one assumes the shortest that the graph allows, the other long ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicate.compat import inference
from replicate.compat.inference import Dims
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry
from replicate.splitting import extents, order
from replicate.splitting.extents import Number, Sizes

# Assumed rows of the batch and picked rows, in two inferences. The first pair is small, so that
# a cut at ten rows shows; differences are prime, so that remainders show. Not all graphs allow
# them: some ask for more rows, some for whole groups.
_FEW, _MANY = (3, 5), (2030, 3066)
_ROWS = (
    (_FEW, _MANY),
    ((1021, 1531), _MANY),
    ((960 * 1021, 960 * 1531), (960 * 2030, 960 * 3066)),
)
# What stands in for unknown lengths, the first that the graph allows: as short as can be, so that
# a cut shows; then long and prime.
_SHORT = (1, 2, 5, 11)
_LONG = (1009, 499, 61)


class Given(NamedTuple):
    """A tensor that has rows from the start.

    Attributes:
        tensor: The tensor.
        axis: Which dimension has the rows, one entry each.
        is_picked: Whether the rows are picked ones; else they are the batch's.
        more: How many entries there are beside those of the rows.
    """

    tensor: tf.Tensor
    axis: int = 0
    is_picked: bool = False
    more: int = 0


_BOOKKEEPING = (tf.resource, tf.variant)
_COMPARING = (
    *("Div", "FloorDiv", "FloorMod", "Mod", "Select", "SelectV2", "Sub"),
    *("TruncateDiv", "TruncateMod"),
)
_COMPARISONS = (
    "Equal",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "Maximum",
    "Minimum",
    "NotEqual",
)


class GivenShape(NamedTuple):
    """A vector that is a shape, as that of a sparse tensor.

    Attributes:
        tensor: The vector.
        entries: For each entry `extents.BATCH`, or a number, or None: not known.
    """

    tensor: tf.Tensor
    entries: Sequence[Any]


class Probe:
    """One inference.

    Args:
        graph_def: The graph's definition; it is copied.
        known: For tensors by `ref()` what is assumed of their dimensions.
        values: For vectors by `ref()` what is assumed of their entries.
        sizes: The numbers of rows that are assumed.
    """

    def __init__(
        self,
        graph_def: Any,
        known: Mapping[Any, Dims],
        values: Mapping[Any, Dims],
        sizes: Sizes,
    ):
        self.sizes = sizes
        self.known = dict(known)
        self.values = values
        self.graph_def = graph_def
        self._around_loops: dict[str, list[Dims | None]] = {}
        self._merged: dict[Any, Dims | None] = {}
        self.infer()

    def infer(self) -> None:
        """Infers all shapes from what is known; raises `UnfitError`."""
        self._merged = {}
        self._inferred = inference.Inferred(self._written())

    def look_around_loops(self) -> None:
        """Learns what Grappler infers of shapes in and behind loops."""
        given: dict[str, list] = {}
        dtypes: dict[str, list] = {}
        for ref, dims in self.known.items():
            op = ref.deref().op
            outputs = given.setdefault(op.name, [None] * len(op.outputs))
            outputs[ref.deref().value_index] = dims
            dtypes[op.name] = [each.dtype for each in op.outputs]
        self._merged = {}
        self._around_loops = inference.infer_around_loops(self._written(False), given, dtypes)

    def dims(self, tensor: tf.Tensor) -> Dims | None:
        """Returns a tensor's dimensions; None: its rank is not known."""
        key = tensor.ref()
        if key not in self._merged:
            self._merged[key] = self._dims(tensor)
        return self._merged[key]

    def imported(self, tensor: tf.Tensor) -> Dims | None:
        """Returns a tensor's dimensions as far as what reads it in the inference knows them."""
        return self._inferred.dims(tensor)

    def _dims(self, tensor: tf.Tensor) -> Dims | None:
        found = static_dims(tensor)
        if found is not None and None not in found:
            return found
        found = _merged(found, self.imported(tensor))
        outputs = self._around_loops.get(tensor.op.name, ())
        if (found is None or None in found) and tensor.value_index < len(outputs):
            if tensor.dtype not in (tf.resource, tf.variant):
                found = _merged(found, outputs[tensor.value_index])
        return found

    def _written(self, is_annotated: bool = True) -> Any:
        """Returns the graph's definition with what is known in it."""
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        nodes = {node.name: node for node in graph_def.node}
        shapes: dict[tf.Operation, list] = {}
        for ref, dims in self.known.items() if is_annotated else ():
            op = ref.deref().op
            outputs = shapes.setdefault(op, [None] * len(op.outputs))
            outputs[ref.deref().value_index] = dims
        for op, outputs in shapes.items():
            inference.know(nodes[op.name], outputs)
        for n, (ref, value) in enumerate(self.values.items()):
            _replace(graph_def, nodes, ref.deref(), f"known/{n}", value)
        return graph_def


def probed(
    graph: tf.Graph,
    given: Sequence[Given | GivenShape],
    static_rows: int | None,
    is_all: bool = True,
) -> list[Probe]:
    """Infers a graph's shapes for two sizes; none where the graph allows none.

    Args:
        graph: The graph.
        given: What is given.
        static_rows: B, where it is static; else None.
        is_all: Whether the whole graph is looked at, not only what is made from what is given.
    """
    graph_def = _definition(graph, None if is_all else [each.tensor for each in given])
    for sizes in _assumed(given, static_rows):
        found = [_fitting(graph_def, given, each) for each in sizes]
        if None not in found and not (found[0].sizes.inner and _compares_lengths(graph, given)):
            return found
    return []


def _assumed(
    given: Sequence[Given | GivenShape], static_rows: int | None
) -> Iterator[list[list[Sizes]]]:
    """Yields what inferences may assume, for each several sizes of which one is to fit."""
    has_picked = any(isinstance(each, Given) and each.is_picked for each in given)
    has_inner = any(map(_number_of_inner, given))
    has_two = has_picked or not static_rows
    for few, many in _ROWS if has_two else _ROWS[:1]:
        if static_rows:
            few, many = (static_rows, few[1]), (static_rows, many[1] if has_two else few[1])
        if has_inner:
            yield [[Sizes(*few, s) for s in _SHORT], [Sizes(*many, s) for s in _LONG]]
        yield [[Sizes(*few)], [Sizes(*many)]][: 1 + has_two]


def _fitting(
    graph_def: Any, given: Sequence[Given | GivenShape], sizes: Sequence[Sizes]
) -> Probe | None:
    for each in sizes:
        try:
            return _probe(graph_def, given, each)
        except inference.UnfitError:
            continue
    return None


def _definition(graph: tf.Graph, given: Sequence[tf.Tensor] | None) -> Any:
    """Returns a graph's definition; or of what is made from tensors, and of all that it reads."""
    graph_def = graph.as_graph_def()
    if given is not None:
        needed = {op.name for op in ancestry.executed_by([*given, *order.behind(given)])}
        nodes = [node for node in graph_def.node if node.name in needed]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
    for node in graph_def.node:
        node.device = ""
        if "_class" in node.attr:
            del node.attr["_class"]  # what it is placed beside may be left out
    return graph_def


def of_one_row(
    graph: tf.Graph, given: Sequence[Given | GivenShape], found: Sequence[Probe]
) -> Probe | None:
    """Infers a graph's shapes for one row, where they may not follow from those for more.

    A graph may compare numbers of rows, and go another way where there is one: what is inferred
    for more rows does not tell.

    Args:
        graph: The graph.
        given: What is given.
        found: What is inferred for more rows.
    """
    if not found or not any(map(_compares_numbers, graph.get_operations())):
        return None
    try:
        return _probe(found[0].graph_def, given, Sizes(1, 1, found[0].sizes.inner))
    except inference.UnfitError:
        return None


def _compares_numbers(op: tf.Operation) -> bool:
    """Whether an operation compares two whole numbers, outside of loops."""
    return (
        op.type in _COMPARISONS
        and op.inputs[0].dtype in (tf.int32, tf.int64)
        and op.inputs[0].shape.rank == 0
        and op._get_control_flow_context() is None
    )


def _compares_lengths(graph: tf.Graph, given: Sequence[Given | GivenShape]) -> bool:
    """Whether several unknown lengths make a number, and it may not tell that they differ.

    So does `x // y`, and a reshape of what has nothing to do with the length that it is given.
    """
    if sum(map(_number_of_inner, given)) < 2:
        return False
    nothing: frozenset = frozenset()
    lengths: dict[Any, frozenset] = {}  # of small tensors: whose lengths they are made of
    origins = {each.tensor.ref(): frozenset([each.tensor.ref()]) for each in given}
    for op in graph.get_operations():
        before = nothing.union(*(origins.get(each.ref(), nothing) for each in op.inputs))
        for tensor in op.outputs:
            origins.setdefault(tensor.ref(), before)
            if op.type in ("Shape", "ShapeN", "Size"):
                measured = op.inputs[tensor.value_index if op.type == "ShapeN" else 0]
                dims = static_dims(measured)
                is_open = dims is None or None in dims[1:]
                lengths[tensor.ref()] = frozenset([measured.ref()]) if is_open else nothing
            elif tensor.shape.rank in (0, 1) and tensor.dtype not in _BOOKKEEPING:
                found = (lengths.get(each.ref(), nothing) for each in op.inputs)
                lengths[tensor.ref()] = nothing.union(*found)
        if _may_hide(op) and len(lengths.get(op.outputs[0].ref(), nothing)) > 1:
            return True
        if op.type == "Reshape":
            own, told = (each.ref() for each in op.inputs)
            told = lengths.get(told, nothing)
            if not all(origins[each] <= origins.get(own, nothing) for each in told):
                return True
    return False


def _may_hide(op: tf.Operation) -> bool:
    """Whether an operation makes whole numbers that may be the same for other operands."""
    is_cast = op.type == "Cast" and not op.inputs[0].dtype.is_integer
    if not (is_cast or op.type in _COMPARING) or not op.outputs[0].dtype.is_integer:
        return False
    users = op.outputs[0].consumers()  # a divisor of a mean is no length
    return any(user.type != "Cast" or user.outputs[0].dtype.is_integer for user in users)


def static_dims(tensor: tf.Tensor) -> Dims | None:
    """Returns a tensor's dimensions as its own graph knows them."""
    shape = tensor.shape
    return None if shape.rank is None else shape.as_list()


def is_open(given: Sequence[Given | GivenShape]) -> bool:
    """Whether shapes depend on more than on a number of rows of the batch."""
    return any(
        _number_of_inner(each) or isinstance(each, GivenShape) or each.is_picked for each in given
    )


def entry(number: Any, static_rows: int | None) -> Number:
    """Returns an entry of a given shape."""
    if number == extents.BATCH:
        return static_rows or extents.rows(extents.BATCH)
    return extents.inner() if number is None else int(number)


def _probe(graph_def: Any, given: Sequence[Given | GivenShape], sizes: Sizes) -> Probe:
    known: dict[Any, Dims] = {}
    values: dict[Any, Dims] = {}
    for each in given:
        if isinstance(each, GivenShape):
            dims = [sizes.batch if e == extents.BATCH else e for e in each.entries]
        else:
            dims = static_dims(each.tensor)
            if dims is None or each.axis >= len(dims):
                continue
            if dims[each.axis] is None:
                rows = sizes.picked if each.is_picked else sizes.batch
                dims[each.axis] = rows + each.more
        if isinstance(each, GivenShape) or not each.is_picked:
            dims = [sizes.inner if size is None else size for size in dims]
        found: dict = known if isinstance(each, Given) else values
        found[each.tensor.ref()] = dims
    return Probe(graph_def, known, values, sizes)


def _number_of_inner(given: Given | GivenShape) -> int:
    """Returns how many dimensions other than that of rows are not known."""
    if isinstance(given, GivenShape):
        return list(given.entries).count(None)
    dims = static_dims(given.tensor)
    if dims is None or given.is_picked:
        return 0
    return (dims[: given.axis] + dims[given.axis + 1 :]).count(None)


def _merged(a: Dims | None, b: Dims | None) -> Dims | None:
    """Returns what two descriptions of one shape say; where they part, the first holds."""
    if a is None or b is None or len(a) != len(b):
        return b if a is None else a
    return [y if x is None else x for x, y in zip(a, b, strict=True)]


def _replace(
    graph_def: Any, nodes: Mapping[str, Any], tensor: tf.Tensor, name: str, value: Dims
) -> None:
    """Lets all that read a tensor read numbers, of which some are not known."""
    while name in nodes:
        name += "_"
    dtype = tensor.dtype.base_dtype
    made = graph_def.node.add(op="Pack", name=name)
    made.attr["T"].type, made.attr["N"].i = dtype.as_datatype_enum, len(value)
    for place, number in enumerate(value):
        part = graph_def.node.add(name=f"{name}/{place}")
        part.op, part.attr["dtype"].type = "Placeholder", dtype.as_datatype_enum
        part.attr["shape"].shape.SetInParent()
        if number is not None:
            part.op = "Const"
            part.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, dtype))
        made.input.append(part.name)
    old = {tensor.name, tensor.op.name} if tensor.value_index == 0 else {tensor.name}
    for user in tensor.consumers():
        inputs = nodes[user.name].input
        for n, each in enumerate(inputs):
            if each in old:
                inputs[n] = name
