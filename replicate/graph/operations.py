"""Facts about operations: what lies behind them, what they call, which variable they work on."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from replicate import types
from replicate.compat.tensorflow import tf

# What reads a resource variable, and how what changes one begins.
READS = frozenset(
    ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape")
)
WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceCountUpTo",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_WITH_VARIABLES = ("Assign", "ReadVariableOp", "Resource", "VarIsInitializedOp", "VariableShape")
PASSING = ("Enter", "Identity", "Switch")  # into control flow of version 1
_LOOPS = ("StatelessWhile", "While")

# What an operation calls, by its attributes, and which of its inputs is the first that goes in.
_BODIES = {
    "Case": ("branches", 1),
    "If": ("then_branch else_branch", 1),
    "PartitionedCall": ("f", 0),
    "StatefulPartitionedCall": ("f", 0),
    "StatelessCase": ("branches", 1),
    "StatelessIf": ("then_branch else_branch", 1),
    "StatelessWhile": ("body", 0),
    "While": ("body", 0),
}


# Before and behind.


def executed_by(fetches: Iterable[types.Fetch]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches`, tensors or operations, are run."""
    return _followed(
        [getattr(fetch, "op", fetch) for fetch in fetches],
        lambda op: [*(tensor.op for tensor in op.inputs), *op.control_inputs],
    )


def made_from(
    fetches: Iterable[types.Fetch], among: Callable[[tf.Operation], bool] = lambda op: True
) -> set[tf.Operation]:
    """Returns all operations whose values `fetches` are made from, themselves included.

    Args:
        fetches: Tensors or operations.
        among: Whether an operation counts; of others nothing is followed.
    """
    return _followed(
        filter(among, (getattr(fetch, "op", fetch) for fetch in fetches)),
        lambda op: filter(among, (tensor.op for tensor in op.inputs)),
    )


def reached_from(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns `operations`, and all whose values depend on one of them."""
    return _followed(
        operations, lambda op: (user for tensor in op.outputs for user in tensor.consumers())
    )


def behind(operations: Iterable[tf.Operation], within: set[tf.Operation]) -> set[tf.Operation]:
    """Returns `operations`, and all within some others that run behind one of them.

    Args:
        operations: Of the graph.
        within: The operations among which is looked.
    """

    def users(op: tf.Operation) -> list[tf.Operation]:
        readers = (user for tensor in op.outputs for user in tensor.consumers())
        return [user for user in (*op._control_outputs, *readers) if user in within]

    return _followed(operations, users)


def _followed(
    operations: Iterable[tf.Operation],
    following: Callable[[tf.Operation], Iterable[tf.Operation]],
) -> set[tf.Operation]:
    """Returns `operations`, those that follow them, those that follow these, and so on."""
    found: set[tf.Operation] = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(following(op))
    return found


# Functions: branches, bodies of loops, `tf.function`s.


def is_call(op: tf.Operation) -> bool:
    """Whether an operation calls functions that may be looked into."""
    return op.type in _BODIES


def bodies(op: tf.Operation) -> list[tf.Graph]:
    """Returns the graphs of what an operation calls; none if one cannot be looked into.

    Their inputs are the operation's last ones, and their outputs its own.
    """
    if not is_call(op):
        return []
    names, first = _BODIES[op.type]
    values = [op.get_attr(name) for name in names.split()]
    functions = [each for value in values for each in (value if type(value) is list else [value])]
    graphs = [getattr(op.graph._get_function(each.name), "graph", None) for each in functions]
    sizes = len(op.inputs) - first, len(op.outputs)
    are_known = all(g and (len(g.inputs), len(g.outputs)) == sizes for g in graphs)
    return graphs if are_known else []


def with_called(found: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields operations, and those of the functions that they call."""
    for op in found:
        yield op
        for body in bodies(op):
            yield from with_called(body.get_operations())


# Variables.


def copies_of(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Returns the variables of TensorFlow's own that a variable consists of, if only itself."""
    return getattr(variable, "members", (variable,))


def users(handle: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that use a handle, in branches and loops too."""
    waiting = [handle]
    while waiting:
        for op in waiting.pop().consumers():
            if op.type in PASSING:
                waiting.extend(op.outputs)
            else:
                yield op


def whole_name(variable: tf.Variable) -> str:
    """Returns the name of a variable, or of the one that it is a part of."""
    part = getattr(variable, "_save_slice_info", None)
    return variable.name.partition(":")[0] if part is None else part.full_name


def writes(variable: tf.Variable) -> list[tf.Operation]:
    """Returns the operations that change a resource variable; none of any other kind.

    Of a branch, a loop or a function that changes it, the operation that calls it is returned.
    """
    handle = getattr(variable, "handle", None)
    return [] if handle is None else writing(handle)


def writing(handle: tf.Tensor) -> list[tf.Operation]:
    """Returns the operations that change the variable of a handle; see `writes`."""
    return list(dict.fromkeys(outer for outer, _ in _writing(handle)))


def writers(variable: tf.Variable) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    """Yields what changes a resource variable, each behind what calls it, or itself."""
    handle = getattr(variable, "handle", None)
    return iter(()) if handle is None else _writing(handle)


def _writing(handle: tf.Tensor) -> Iterator[tuple[tf.Operation, tf.Operation]]:
    for op in handle.consumers():
        if op.type.startswith(WRITES):
            yield op, op
        elif op.type in PASSING:
            for tensor in op.outputs:
                yield from _writing(tensor)
        else:
            for body in bodies(op):
                arguments = op.inputs[len(op.inputs) - len(body.inputs) :]
                for own, given in zip(body.inputs, arguments, strict=True):
                    if given is handle:
                        yield from ((op, write) for _, write in _writing(own))


def variable_of(op: tf.Operation) -> tf.Operation | None:
    """Returns what made the variable that an operation reads or writes.

    NOTE: TensorFlow puts it there in any case, and refuses another device that it cannot change.
    """
    if not op.type.startswith(_WITH_VARIABLES) or not op.inputs:
        return None
    return made_by(op.inputs[0])


def made_by(handle: tf.Tensor) -> tf.Operation | None:
    """Returns what made the variable that a handle stands for, also in loops and branches."""
    while handle.op.type in (*_LOOPS, *PASSING):  # a loop gives back what it was given
        is_loop = handle.op.type in _LOOPS
        handle = handle.op.inputs[handle.value_index if is_loop else 0]
    return handle.op if handle.op.type == "VarHandleOp" else None


# Colocation.


def colocated_with(op: tf.Operation) -> list[str]:
    """Returns the names of the operations beside which an operation was put, its own left out."""
    names = (group.decode().removeprefix("loc:@") for group in op.colocation_groups())
    return [name for name in dict.fromkeys(names) if name != op.name]
