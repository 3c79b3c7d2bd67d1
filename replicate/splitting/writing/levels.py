"""What goes over workers, by levels: few collectives, in the same order in all workers.

The level of a value is the number of collectives that it waits for. All values of a kind and level
travel together. No collective is in a branch: a value made in a branch leaves it first (as nothing,
if the branch is not taken), and what all workers have made comes back.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, packing, reductions
from replicate.splitting.structure import frames, loops
from replicate.splitting.structure.nodes import Made, Reference, resolved

ROWS = "rows"
FIRST = "first"


class Crossing(NamedTuple):
    """A value that goes over workers.

    Attributes:
        name: The operation that passes on this worker's value, until it reads all workers'.
        how: `"Add"`, `"Max"`, `"Min"` or `"Mul"`; ROWS for one worker's rows behind the other's;
            FIRST for the first worker's value.
        shape: What is known of this worker's value.
        conditions: The branches in which the value is made, innermost first: predicates, and
            which side of them.
        axis: The axis of ROWS.
        rows: How many of ROWS each worker has, int32, of shape [W].
        multiple: How many entries of the axis each of ROWS has.
    """

    name: str
    how: str
    shape: tf.TensorShape
    conditions: Sequence[tuple[Reference, bool]]
    axis: int = 0
    rows: Reference | None = None
    multiple: int = 1


class _Join:
    """What goes over workers, in the graph.

    Args:
        op: Passes on the worker's value, until it reads all workers'; in no branch.
        how: See `Crossing`.
        axis: See `Crossing`.
        lengths: How long each worker's value is along the axis of ROWS, int32, of shape [W].

    Attributes:
        op: As given.
        value: The worker's value.
        how: As given.
        axis: As given.
        lengths: As given.
    """

    def __init__(self, op: tf.Operation, how: str, axis: int = 0, lengths: tf.Tensor | None = None):
        self.op = op
        self.value: tf.Tensor = op.inputs[0]
        self.how = how
        self.axis = axis
        self.lengths = lengths
        if lengths is not None:  # which may go over workers themselves
            op._add_control_input(lengths.op)


def write(
    crossings: Iterable[Crossing],
    made: Made,
    fetch: Sequence[types.Fetch],
    workers: collectives.CollectiveWorkers,
    home: str,
) -> None:
    """Replaces what goes over workers by what all of them have made.

    Args:
        crossings: What goes over workers, in the same order in all of them.
        made: The new operations by their names.
        fetch: What will be run.
        workers: All workers, and how their values are combined.
        home: Where it does.
    """
    with alone_on(home):
        found = _joins(crossings, made)
        roots = [getattr(each, "op", each) for each in fetch]
        for members in _levels(found, roots):
            _join(members, workers)


def gathered(
    values: Sequence[tf.Tensor],
    lengths: Sequence[tf.Tensor],
    workers: collectives.CollectiveWorkers,
) -> list[tf.Tensor]:
    """Returns all workers' rows of N tensors, along axis 0.

    Args:
        values: The worker's own.
        lengths: For each how many rows each worker has, int32, of shape [W].
        workers: All workers, and how their values are combined.
    """
    passed = [_opened(value, 0).op for value in values]
    found = []
    for op, length in zip(passed, lengths, strict=True):
        found += _ways(op, ROWS, 0, length)
    for members in _levels(found, passed):
        _join(members, workers)
    return [op.outputs[0] for op in passed]


def _opened(value: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns a worker's rows so that their shape does not tell how many: all have more."""
    shape = value.shape.as_list()
    shape[axis] = None
    return tf1.placeholder_with_default(value, shape)


def alone_on(home: str) -> AbstractContextManager[None]:
    """Enters the device and the scope of what workers join."""
    return reductions.alone_on(home, collectives.SCOPE)


def _joins(crossings: Iterable[Crossing], made: Made) -> list[_Join]:
    outside: dict[str, tf.Tensor] = {}  # the joined values, in no branch
    found: list[_Join] = []
    for crossing in crossings:
        op, lengths = made[crossing.name], None
        op.inputs[0].set_shape(crossing.shape)  # from another device it may have come without
        if crossing.rows is not None:
            name = crossing.rows if isinstance(crossing.rows, str) else ""
            lengths = outside[name] if name in outside else resolved(crossing.rows, made)
            lengths = lengths * crossing.multiple
        # NOTE: a predicate may be joined itself, and be in a branch around this one.
        conditions = [(resolved(each, made), side) for each, side in crossing.conditions]
        if conditions:
            op = _hoisted(op, conditions)
        outside[crossing.name] = op.outputs[0]
        found += _ways(op, crossing.how, crossing.axis, lengths)
    return found


def _ways(op: tf.Operation, how: str, axis: int, lengths: tf.Tensor | None) -> list[_Join]:
    """Returns what goes over workers for a value."""
    if op.outputs[0].dtype == tf.string and how == ROWS:
        return _of_text(op, axis, lengths)
    return [_Join(op, how, axis, lengths)]


# Branches.


def _hoisted(op: tf.Operation, conditions: Sequence[tuple[tf.Tensor, bool]]) -> tf.Operation:
    """Lets a value leave its branches and come back; returns what passes it on outside."""
    value = op.inputs[0]
    shape = value.shape
    for n, (predicate, side) in enumerate(conditions):
        nothing = tf.zeros(shape if shape.is_fully_defined() else [0] * shape.rank, value.dtype)
        for outer, outer_side in reversed(conditions[n + 1 :]):
            nothing = _side(nothing, outer, outer_side)
        nothing = _side(nothing, predicate, not side)
        value = tf.raw_ops.Merge(inputs=[value, nothing]).output
        value.set_shape(shape)
    outside = tf.identity(value)
    back = outside
    for predicate, side in reversed(conditions):
        back = _side(back, predicate, side)
    op._update_input(0, back)
    return outside.op


def _side(value: tf.Tensor, predicate: tf.Tensor, side: bool) -> tf.Tensor:
    return tf.raw_ops.Switch(data=value, pred=predicate)[int(side)]


# Text.


def _of_text(op: tf.Operation, axis: int, lengths: tf.Tensor | None) -> list[_Join]:
    """Lets text go over workers as numbers: its bytes, and how many there are."""
    text = _opened(op.inputs[0], axis)
    sizes = tf.strings.length(text)
    longest = tf.identity(tf.reduce_max(tf.concat([[1], tf.reshape(sizes, [-1])], 0)))
    letters = tf.identity(tf.io.decode_raw(text, tf.uint8, fixed_length=longest))
    letters.set_shape([*text.shape, None])
    sizes = tf.identity(sizes)
    names = tf.constant([bytes([number]) for number in range(256)])
    whole = tf.strings.reduce_join(tf.gather(names, tf.cast(letters, tf.int32)), -1)
    op._update_input(0, tf.strings.substr(whole, tf.zeros_like(sizes), sizes))
    return [
        _Join(longest.op, "Max"),
        _Join(letters.op, ROWS, axis, lengths),
        _Join(sizes.op, ROWS, axis, lengths),
    ]


# Levels.


def _levels(joins: Sequence[_Join], roots: Sequence[tf.Operation]) -> list[list[_Join]]:
    """Returns what is wanted by levels; a level waits for those before it alone."""
    before = _before(roots)
    crossing = {join.op for join in joins}
    users = collections.defaultdict(list)
    for op, others in before.items():
        for other in others:
            users[other].append(op)
    found = {op: int(op in crossing) for op in before}
    waiting = collections.deque(op for op in before if op in crossing)
    while waiting:
        op = waiting.popleft()
        for user in users[op]:
            level = found[op] + (user in crossing)
            if level > len(crossing):
                raise ValueError(
                    f"What goes over workers must not wait for itself; {user.name} does. This is "
                    "an error in replicate; please report it."
                )
            if level > found[user]:
                found[user] = level
                waiting.append(user)
    members = collections.defaultdict(list)
    for join in joins:
        if join.op in found:
            members[found[join.op]].append(join)
    return [members[level] for level in sorted(members)]


def _before(
    roots: Sequence[tf.Operation],
) -> Mapping[tf.Operation | frames.Loop, Sequence[tf.Operation | frames.Loop]]:
    """Returns what each operation that is run waits for, also in loops and by stacks."""
    pushes: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    for op in roots[0].graph.get_operations() if roots else ():
        if op.type == "StackPushV2":
            pushes[loops.handle_of(op.inputs[0])].append(op)
    found: dict[tf.Operation, list[tf.Operation]] = {}
    waiting = list(roots)
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found[op] = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if op.type == "StackPopV2":
            found[op] += pushes[loops.handle_of(op.inputs[0])]
        waiting.extend(found[op])
    return frames.without_turns(
        found, lambda op: op.type, lambda enter: enter.get_attr("frame_name")
    )


# Joining.


def _join(members: Sequence[_Join], workers: collectives.CollectiveWorkers) -> None:
    """Joins a level."""
    groups = collections.defaultdict(list)
    for join in members:
        if join.how == ROWS:
            groups[ROWS, packing.carried(join.value).dtype.name].append(join)
        else:
            groups["Add" if join.how == FIRST else join.how, ""].append(join)
    for (how, _), found in sorted(groups.items(), key=lambda group: group[0]):
        values = [workers.first_alone(j.value) if j.how == FIRST else j.value for j in found]
        brought = [packing.carried(value) for value in values]
        if how == ROWS:
            whole = _gathered(found, brought, workers)
        else:
            whole = _merged(brought, how, workers)
        for join, value, before in zip(found, whole, values, strict=True):
            join.op._update_input(0, packing.restored(value, before))


def _merged(
    values: Sequence[tf.Tensor], how: str, workers: collectives.CollectiveWorkers
) -> list[tf.Tensor]:
    """Merges tensors; those of unknown sizes, the same in all workers, travel as one."""
    open_ones = collections.defaultdict(list)
    for n, value in enumerate(values):
        if not value.shape.is_fully_defined() or not value.shape.num_elements():
            open_ones[value.dtype].append(n)
    sent = {n for members in open_ones.values() for n in members}
    alone = [n for n in range(len(values)) if n not in sent]
    flat = []
    for dtype, members in open_ones.items():
        parts = [tf.reshape(values[n], [-1]) for n in members]
        flat.append(tf.concat([*parts, tf.zeros([1], dtype)], 0))  # a ring of nothing breaks
    found = iter(workers.merged([*[values[n] for n in alone], *flat], how))
    whole: dict[int, tf.Tensor] = {n: next(found) for n in alone}
    for members, joined in zip(open_ones.values(), found, strict=True):
        sizes = [tf.size(values[n]) for n in members]
        for n, part in zip(members, tf.split(joined, [*sizes, 1])[:-1], strict=True):
            whole[n] = tf.reshape(part, tf.shape(values[n]))
            whole[n].set_shape(values[n].shape)
    return [whole[n] for n in range(len(values))]


def _gathered(
    joins: Sequence[_Join], values: Sequence[tf.Tensor], workers: collectives.CollectiveWorkers
) -> list[tf.Tensor]:
    """Returns all workers' rows of tensors of one dtype.

    NOTE: a collective wants one size in all workers. So each worker's rows are padded to those of
    the worker with most, and all together to the next power of two: there are few sizes.
    """
    orders, longer = [], []
    for join, value in zip(joins, values, strict=True):
        order = list(range(value.shape.rank))
        axis = join.axis + value.shape.rank - join.value.shape.rank  # numbers may be pairs
        order[0], order[axis] = order[axis], order[0]
        orders.append(order)
        most = tf.reduce_max(join.lengths)
        longer.append(packing.lengthened(tf.transpose(value, order), most))
    flat = tf.concat([tf.reshape(each, [-1]) for each in longer], 0)
    bits = collectives.bits_of(tf.size(flat))
    size = tf.bitwise.left_shift(1, bits)
    whole = tf.reshape(workers.gathered(packing.lengthened(flat, size), bits), [-1, size])
    sizes = [tf.size(each) for each in longer]
    pieces = tf.split(whole, [*sizes, size - tf.add_n(sizes)], 1)[:-1]
    found = []
    for n, (join, piece) in enumerate(zip(joins, pieces, strict=True)):
        shape = tf.shape(longer[n])
        rows = tf.reshape(piece, tf.concat([[workers.size], shape], 0))
        rows = tf.boolean_mask(rows, tf.sequence_mask(join.lengths, shape[0]))
        found.append(tf.transpose(rows, orders[n]))
        known = values[n].shape.as_list()
        known[orders[n][0]] = None
        found[-1].set_shape(known)
    return found
