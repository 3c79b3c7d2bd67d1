"""Which writes of mirrored variables can be repeated for copies, and which variables have any."""

from collections.abc import Collection, Iterable, Iterator

from replicate.compat.tensorflow import tf
from replicate.splitting.mirroring import mirrored_functions
from replicate.splitting.structure import effects, kinds, loops

PASSING = ("Enter", "Identity", "RefEnter", "Switch")


def writes(
    graph: tf.Graph, structure: loops.Structure, variables: Iterable[tf.Variable]
) -> list[tf.Operation]:
    """Returns what writes variables, and what leaves loops that do.

    Args:
        graph: The graph.
        structure: Its loops.
        variables: The variables.
    """
    found = [
        op for variable in variables for op in _users(variable.handle) if effects.changes_state(op)
    ]
    roots = {structure.root(op) for op in found} - {None}
    exits = [op for op in graph.get_operations() if roots and op.type in kinds.EXITS]
    exits = [op for op in exits if structure.root(op) in roots and structure.loop(op) is None]
    # NOTE: TensorFlow lists what uses a tensor in an order of addresses.
    return sorted({*found, *exits}, key=lambda op: op._id)


def followed(
    graph: tf.Graph,
    structure: loops.Structure,
    variables: Iterable[tf.Variable],
    step: Collection[tf.Operation],
) -> list[tf.Variable]:
    """Returns the variables whose copies follow every write, also one that no step runs.

    Copies are written after a write that cannot be repeated. Whoever runs such a write by itself,
    as a hook, would leave them behind: that variable has no copies.

    Args:
        graph: The graph, not split yet.
        structure: Its loops.
        variables: The variables.
        step: What is run together with all that waits for it.
    """
    functions = mirrored_functions.OwnFunctions(graph, ())
    aside = {
        variable.handle.op: [
            op for op in _users(variable.handle) if effects.changes_state(op) and op not in step
        ]
        for variable in variables
    }
    before = None
    while before != len(aside):
        before, handles = len(aside), aside.keys()
        aside = {
            handle: ops
            for handle, ops in aside.items()
            if all(can_be_repeated(op, structure, handles, functions) for op in ops)
        }
    return [variable for variable in variables if variable.handle.op in aside]


def can_be_repeated(
    op: tf.Operation,
    structure: loops.Structure,
    handles: Collection[tf.Operation],
    functions: mirrored_functions.OwnFunctions,
) -> bool:
    """Whether a write can be made of each copy as well, given what holds the variables."""
    if structure.own_loop(op) is not None:
        return False
    if any(handle not in handles for handle in handles_of(op)):
        return False
    return functions.can_be_copied(op.node_def)


def handles_of(op: tf.Operation) -> dict[tf.Operation, None]:
    """Returns what holds the variables that an operation uses, and other resources."""
    return {made_by(tensor): None for tensor in op.inputs if tensor.dtype == tf.resource}


def made_by(tensor: tf.Tensor) -> tf.Operation:
    """Returns what made a handle that may be in a branch or a loop."""
    while tensor.op.type in PASSING:
        tensor = tensor.op.inputs[0]
    return tensor.op


def _users(handle: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that use a handle, in branches and loops too."""
    waiting = [handle]
    while waiting:
        for op in waiting.pop().consumers():
            if op.type in PASSING:
                waiting.extend(op.outputs)
            else:
                yield op
