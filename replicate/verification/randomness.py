"""Whether a graph draws random numbers, and what they reach."""

import re
from collections.abc import Iterable, Mapping

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry
from replicate.verification import tracing

_RANDOM = re.compile(
    "Random|TruncatedNormal|Multinomial|StatefulUniform|StatefulStandardNormal|RngReadAndSkip"
    "|CandidateSampler|SampleDistorted"
)
_UNSEEDED = re.compile("Stateless|Stateful|RngReadAndSkip")  # a graph's seed does not reach them
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def random_operations(trace: tracing.Trace) -> set[tf.Operation]:
    """Returns the operations of a batch that draw random numbers, in functions as well.

    A Python function may do so, and counts; what initialises variables is no part of a batch.
    """
    library = _library(trace.graph)
    return {
        op for op in trace.executed() if any(map(_may_draw, _types(op.node_def, library, set())))
    }


def _may_draw(kind: str) -> bool:
    return kind in _PYTHON or _RANDOM.search(kind) is not None


def fixed_by_seed(trace: tracing.Trace, operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns those of the random operations that draw the same under any seed of the graph."""
    library = _library(trace.graph)
    fixed = set()
    for op in operations:
        drawing = [kind for kind in _types(op.node_def, library, set()) if _RANDOM.search(kind)]
        if drawing and (trace.has_own_seed or any(map(_UNSEEDED.search, drawing))):
            fixed.add(op)
    return fixed


def reached(trace: tracing.Trace, operations: Iterable[tf.Operation]) -> set[tracing.Key]:
    """Returns the outputs that depend on operations."""
    found = ancestry.reached_from(operations)
    return {key for key, output in trace.outputs.items() if output.op in found}


def states(operations: Iterable[tf.Operation]) -> set[tracing.Key]:
    """Returns the variables that hold the state of generators."""
    return {
        tracing.Key(tracing.OTHERS, tensor.op.name)
        for op in operations
        if _RANDOM.search(op.type)
        for tensor in op.inputs
        if tensor.dtype == tf.resource
    }


def _library(graph: tf.Graph) -> Mapping:
    """Returns the nodes of each function of a graph, by the function's name."""
    functions = graph.as_graph_def().library.function
    return {function.signature.name: function.node_def for function in functions}


def _types(node: "tf.compat.v1.NodeDef", library: Mapping, seen: set) -> set[str]:
    """Returns the types of a node and of all nodes in the functions that it calls."""
    found = {node.op}
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name and function.name not in seen:
                seen.add(function.name)
                for inner in library.get(function.name, ()):
                    found |= _types(inner, library, seen)
    return found
