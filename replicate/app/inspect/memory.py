"""How many bytes a step's tensors take on each device at most, by the graph of a static batch."""

import collections
from collections.abc import Mapping
from typing import NamedTuple

from replicate.app.inspect import traffic
from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.rules import elementwise

# What passes its first operand on, and what writes to an operand that nothing else reads.
_PASSING = frozenset("ExpandDims Identity Reshape Squeeze StopGradient".split())
_IN_PLACE = frozenset((*elementwise.EACH, *elementwise.ALIKE.split(), "LogSoftmax", "Softmax"))
_KEPT = ("Const", "ReadVariableOp")  # what is there between steps
_TEXT = 24  # bytes of a text of up to 22 bytes; a longer one has more elsewhere


def peaks(step: traffic.Step, rows: int) -> Mapping[str, int]:
    """Returns the bytes of tensors that a device holds at most in a step, by its name.

    Operations run in the order in which what they read and wait for is there, and a tensor is held
    until all that read it have run. What is there between steps counts as nothing, and so do
    tensors whose sizes only a run can tell, and what an operation takes while it runs.

    Args:
        step: What is run.
        rows: B, of which each is taken to have one entry of what only a run can count, as ids that
            are picked.
    """
    executed = operations.executed_by(step)
    users: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    waits = {}
    for op in sorted(executed, key=lambda op: op._id):
        before = {*(tensor.op for tensor in op.inputs), *op.control_inputs}
        before = {each for each in before if each in executed and each.type != "NextIteration"}
        waits[op] = len(before)
        for each in before:
            users[each].append(op)
    ready = collections.deque(op for op, number in waits.items() if not number)
    held = _Held(executed, rows)
    while ready:
        op = ready.popleft()
        held.run(op)
        for user in users[op]:
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return held.most


def _is_of_part(op: tf.Operation) -> bool:
    """Whether an operation makes something of a part's rows, or cuts these."""
    return op.name.startswith(("tower_", "replicate_split/"))


class _Buffer(NamedTuple):
    """Memory that one or several tensors are in.

    Attributes:
        tensor: The first one, by its `id`.
        device: Where it is.
        bytes: How large it is.
    """

    tensor: int
    device: str
    bytes: int


class _Held:
    """What devices hold while operations run one after the other.

    Args:
        executed: All operations.
        rows: See `peaks`.

    Attributes:
        most: The most bytes so far, by device.
    """

    def __init__(self, executed: set[tf.Operation], rows: int):
        self._rows = rows
        prefixes = {op.name.partition("/")[0] for op in executed}
        self._num_parts = sum(each.startswith("tower_") for each in prefixes) or 1
        self._executed = executed
        self._buffers: dict[int, _Buffer] = {}  # by the `id` of a tensor
        self._readers: dict[_Buffer, int] = collections.Counter()  # that have not run yet
        self._now: dict[str, int] = collections.Counter()
        self.most: dict[str, int] = collections.Counter()

    def run(self, op: tf.Operation) -> None:
        """Makes what an operation makes, and frees what nothing reads any more."""
        place, read = traffic.place_of(op), []
        for tensor in op.inputs:
            if (buffer := self._buffers.get(id(tensor))) is not None:
                self._readers[buffer] -= 1
                read.append(buffer)
        for tensor in op.outputs:
            buffer = self._buffer_of(tensor, place, read)
            self._buffers[id(tensor)] = buffer
            self._readers[buffer] += self._number_of_readers(tensor)
            if buffer.tensor == id(tensor):
                read.append(buffer)
                self._now[place] += buffer.bytes
        self.most[place] = max(self.most[place], self._now[place])
        for buffer in dict.fromkeys(read):
            if not self._readers[buffer]:
                self._now[buffer.device] -= buffer.bytes
                self._readers[buffer] = -1

    def _buffer_of(self, tensor: tf.Tensor, place: str, read: list[_Buffer]) -> _Buffer:
        """Returns the memory that a tensor is in, which may be that of an operand."""
        if tensor.op.type in _PASSING and read and read[0].device == place:
            return read[0]
        size = self._size_of(tensor)
        free = [buffer for buffer in read if buffer[1:] == (place, size)]
        free = [buffer for buffer in free if not self._readers[buffer]]
        if tensor.op.type in _IN_PLACE and free:
            return free[0]
        return _Buffer(id(tensor), place, 0 if tensor.op.type in _KEPT else size)

    def _size_of(self, tensor: tf.Tensor) -> int:
        """Returns how many bytes a tensor is taken to have."""
        shape = tensor.shape
        if shape.rank and shape[0] is None:
            parts = self._num_parts if _is_of_part(tensor.op) else 1
            shape = tf.TensorShape([-(-self._rows // parts), *shape[1:]])
        if tensor.dtype == tf.string:
            return (shape.num_elements() or 0) * _TEXT
        return traffic.size_of(shape, tensor.dtype) or 0

    def _number_of_readers(self, tensor: tf.Tensor) -> int:
        users = (user for user in set(tensor.consumers()) if user in self._executed)
        return sum(each is tensor for user in users for each in user.inputs)
