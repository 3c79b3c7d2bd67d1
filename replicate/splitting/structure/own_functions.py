"""Functions as later devices call them, with copies of variables."""

from collections.abc import Sequence
from typing import Any

from replicate.compat import importing
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import definitions, kinds

# Made once, and sent, though each device could make it of its copies of variables: what is much
# work, or is added up in any order on a GPU.
_MADE_ONCE = frozenset(
    """BatchMatMul BatchMatMulV2 BatchMatMulV3 Bincount Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 CumsumV2 Cholesky
    DenseBincount DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Einsum Enter Exit FakeQuantWithMinMaxVarsGradient
    FakeQuantWithMinMaxVarsPerChannelGradient LoopCond MatMul MatrixInverse NextIteration
    Placeholder PlaceholderWithDefault PyFuncStateless Qr RefEnter RefExit ScatterNd SegmentMean
    SegmentSum SelfAdjointEigV2 SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum
    SparseTensorDenseMatMul Svd TensorScatterAdd TensorScatterSub TopKV2 Unique UniqueV2
    UniqueWithCounts UnsortedSegmentProd UnsortedSegmentSum""".split()
)


def is_made_once(kind: str, num_inputs: int) -> bool:
    """Whether an operation is made once, though each device could make it of its copies.

    NOTE: a sum of three begins with the one whose memory it takes over, another one each time.
    """
    return kind in _MADE_ONCE or (kind == "AddN" and num_inputs > 2)


class OwnFunctions:
    """Functions as later devices call them.

    Args:
        graph: The graph that holds them.
        devices: The devices.

    Attributes:
        known: The graph's functions.
    """

    def __init__(self, graph: tf.Graph, devices: Sequence[str]):
        self.known = definitions.Functions(graph)
        self._graph = graph
        self._devices = devices
        self._made: dict[str, _Function] = {}

    def can_be_copied(self, node: tf1.NodeDef) -> bool:
        """Whether what a write calls, if it calls anything, makes the same on each device."""
        called = definitions.called(node)
        if not called:
            return True
        calling = (*definitions.BRANCHES, *definitions.CASES, *definitions.CALLS)
        return node.op in calling and all(self._is_same_anywhere(name) for name in called)

    def _is_same_anywhere(self, name: str) -> bool:
        definition = self.known.definition(name)
        return definition is not None and all(map(self._may_be_copied, definition.node_def))

    def _may_be_copied(self, node: tf1.NodeDef) -> bool:
        if definitions.called(node):
            return self.can_be_copied(node)
        if kinds.uses_handle(node.op):
            return True  # of variables that all have copies
        num_inputs = sum(not each.startswith("^") for each in node.input)
        return not kinds.is_stateful(node.op) and not is_made_once(node.op, num_inputs)

    def change(self, attribute: tf1.AttrValue, k: int) -> None:
        """Lets an attribute name device k's functions; `add` must follow."""
        for held in [attribute.func] if attribute.HasField("func") else attribute.list.func:
            held.name = self._own(held.name, k)

    def _own(self, name: str, k: int) -> str:
        own = f"{name}_tower_{k}"
        if own in self._made:
            return own
        definition = self.known.definition(name)
        made = type(definition)()
        made.CopyFrom(definition)
        made.signature.name = own
        self._made[own] = _Function(made, self._graph._get_function(name))
        for node in made.node_def:
            node.attr.pop("_class", None)  # beside the primary
            if node.device == self._devices[0]:
                node.device = self._devices[k]
            for attribute in node.attr.values():
                self.change(attribute, k)
        return own

    def add(self) -> None:
        """Adds the functions that were made to the graph."""
        with self._graph.as_default():
            importing.add_functions(list(self._made.values()))


class _Function:
    """A function of a later device, as a graph keeps it.

    Args:
        definition: What it does.
        function: The function that it is a copy of.
    """

    def __init__(self, definition: Any, function: Any):
        self.name = definition.signature.name
        self.definition = self.cached_definition = definition
        self.graph = getattr(function, "graph", None)
        self.children: Sequence[object] = ()
