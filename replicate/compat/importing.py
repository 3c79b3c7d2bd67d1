"""Adds definitions of operations to the current graph, as they are written.

`tf.import_graph_def` asks the device functions in force for each operation, in Python, and
parses each device anew; of thousands of copies that is most of the time. What is imported
here has its devices written down already, and no scope that is open adds to it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def add(
    graph_def: tf1.GraphDef,
    inputs: Mapping[str, tf.Tensor],
    waits: Mapping[str, tf.Operation],
) -> dict[str, tf.Operation]:
    """Adds the nodes of a graph, with names, devices and attributes as they are.

    NOTE: each call looks at all that the graph has. Many nodes at once take far less time.

    Args:
        graph_def: Nodes with new names, and functions that they call.
        inputs: What is read in place of the output of a node that is not there.
        waits: What is waited for in place of a node that is not there.

    Returns:
        The new operations by their names.
    """
    door, graph = tfc.session_api, tf1.get_default_graph()
    with options() as given:
        for name, tensor in inputs.items():
            door.TF_ImportGraphDefOptionsAddInputMapping(given, name, 0, tensor._as_tf_output())
        for name, op in waits.items():
            door.TF_ImportGraphDefOptionsRemapControlDependency(given, name, op._c_op)
        # NOTE: a session of the graph may be running in another thread.
        with graph._mutation_lock(), graphs.alone(graph):
            door.TF_DeleteImportGraphDefResults(imported(graph, graph_def, given))
            # Only the making: there are no waits and no control flow around it to be added.
            made = [tf.Operation._from_c_op(op, graph) for op in graph.new_operations()]
            graph._names_in_use.update((op.name.lower(), 1) for op in made)
    return {op.name: op for op in made}


@contextlib.contextmanager
def options() -> Iterator[Any]:
    """Gives the options of one import, as the session's interface knows them."""
    made = tfc.session_api.TF_NewImportGraphDefOptions()
    try:
        yield made
    finally:
        tfc.session_api.TF_DeleteImportGraphDefOptions(made)


def imported(graph: tf.Graph, graph_def: tf1.GraphDef, given: Any) -> Any:
    """Imports nodes, of which Python hears nothing; returns the session's interface's results.

    Args:
        graph: Where they go.
        graph_def: The nodes.
        given: The `options`.
    """
    door = tfc.session_api
    serialized = door.TF_NewBufferFromString(graph_def.SerializeToString())
    try:
        with graph._c_graph.get() as c_graph:
            return door.TF_GraphImportGraphDefWithResults(c_graph, serialized, given)
    finally:
        door.TF_DeleteBuffer(serialized)


def add_functions(functions: Sequence[Any]) -> None:
    """Adds functions to the current graph.

    Args:
        functions: What has a `name`, a `definition` and the `graph` that it was made from.
    """
    if functions:
        graph, graph_def = tf1.get_default_graph(), tf1.GraphDef()
        graph_def.versions.CopyFrom(graph.graph_def_versions)
        graph_def.library.function.extend(function.definition for function in functions)
        add(graph_def, {}, {})
        graph._functions.update((function.name, function) for function in functions)
