"""Whether a graph draws random numbers, and what depends on them."""

import re
from collections.abc import Container, Iterable, Mapping

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry
from replicate.verification import tracing

_DRAWS = re.compile(
    "Random|TruncatedNormal|Multinomial|StatefulUniform|StatefulStandardNormal|RngReadAndSkip"
    "|CandidateSampler|SampleDistorted"
)
_WRITES = re.compile("Assign|Apply|Scatter|Call|While|If|Stateful|Rng")  # to what they are given


def operations(trace: tracing.Trace) -> list[tf.Operation]:
    """Returns the operations of a batch that draw random numbers, in functions as well.

    What initialises variables is no part of a batch.
    """
    functions = trace.graph.as_graph_def().library.function
    library = {function.signature.name: function.node_def for function in functions}
    drawing = [
        op
        for op in trace.executed()
        if any(map(_DRAWS.search, _types(op.node_def, library, set())))
    ]
    return sorted(drawing, key=lambda op: op.name)


def reached(trace: tracing.Trace, sources: Iterable[tf.Operation]) -> set[tracing.Key]:
    """Returns what operations change in one batch or a later one.

    A variable that is written from there passes it on to all that read it.
    """
    sources = set(sources)
    while True:
        found = ancestry.reached_from(sources)
        written = {op for op in trace.variables() if _is_written(op, found)}
        if written <= sources:
            return {key for key, op in trace.made_by.items() if op in found}
        sources |= written


def _is_written(variable: tf.Operation, found: Container[tf.Operation]) -> bool:
    users = (user for tensor in variable.outputs for user in tensor.consumers())
    return any(user in found and _WRITES.search(user.type) for user in users)


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
