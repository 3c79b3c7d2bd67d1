"""Sparse updates of which a part needs no batch: they wait for one all the same.

Adam and its like write an average in two parts: all of it decays, then the rows of the batch are
added. The decay depends on nothing that the input gives, so a step that ends at the end of input
may have decayed the average, or not: TensorFlow leaves that open, on one device as well.
"""

from replicate.compat.tensorflow import tf
from replicate.graph import operations

_ADDS_ROWS = "ResourceScatter"


def await_batch(graph: tf.Graph) -> None:
    """Lets a write that a scatter to the same variable waits for wait for the scatter's rows.

    Args:
        graph: The graph of a training step; no operation is added.
    """
    for scatter in graph.get_operations():
        if not scatter.type.startswith(_ADDS_ROWS):
            continue
        rows = scatter.inputs[1].op
        decays = [op for op in scatter.control_inputs if _writes_alike(op, scatter)]
        ready = operations.executed_by([rows]) if decays else set()
        for decay in decays:
            if decay not in ready and rows not in decay.control_inputs:
                decay._add_control_inputs([rows])


def _writes_alike(op: tf.Operation, scatter: tf.Operation) -> bool:
    """Whether an operation writes the variable of a scatter, in the same branch or loop."""
    return (
        op.type.startswith(operations.WRITES)
        and operations.made_by(op.inputs[0]) is operations.made_by(scatter.inputs[0])
        and op._get_control_flow_context() is scatter._get_control_flow_context()
    )
