"""Mirrored variables: which of them each device has a copy of, and which writes are repeated."""

from collections.abc import Collection, Sequence

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting.structure import effects, kinds, loops, order, own_functions


class Mirrored:
    """The variables of a graph of which each device has a copy.

    Each write of such a variable, by an optimizer, an initializer or a checkpoint, is repeated for
    each copy, from the same values. A variable with a write that cannot be repeated, as one in a
    loop, has no copies: whoever ran that write would leave them behind.

    Args:
        graph: The graph, not split yet.
        structure: Its loops.
        variables: The variables, on the first device.
        devices: The devices.
        joined: What puts the slices of variables together, which each device does for itself.

    Attributes:
        joined: As given.
        handles: What holds the variables.
        writes: What writes them, in order.
        functions: The functions of later devices.
    """

    def __init__(
        self,
        graph: tf.Graph,
        structure: loops.Structure,
        variables: Sequence[tf.Variable],
        devices: Sequence[str],
        joined: Sequence[tf.Operation] = (),
    ):
        self.joined = joined
        self._structure = structure
        self._devices = devices
        self.functions = own_functions.OwnFunctions(graph, devices)
        handles = [variable.handle for variable in variables]
        writes = {
            each.op: [op for op in operations.users(each) if effects.changes_state(op)]
            for each in handles
        }
        self.handles = self._repeated(writes)
        found = {op: None for handle in self.handles for op in writes[handle]}
        self.writes = dict.fromkeys(order.as_made(found))

    def is_repeated(self, op: tf.Operation) -> bool:
        """Whether an operation writes variables, and each device writes its copies as well."""
        return op in self.writes

    def is_cheap(self, op: tf.Operation) -> bool:
        """Whether each device had better make for itself what an operation makes."""
        if own_functions.is_made_once(op.type, len(op.inputs)):
            return False
        # What the model has put elsewhere stays there; what uses a variable is where that is.
        return op.type in kinds.READS or op.device in ("", *self._devices[:1])

    def _repeated(self, writes: dict[tf.Operation, list[tf.Operation]]) -> list[tf.Operation]:
        """Returns what holds variables of which each write can be repeated."""
        found = list(writes)
        while True:
            before = found
            found = [
                handle
                for handle in before
                if all(self._can_be_repeated(op, before) for op in writes[handle])
            ]
            if found == before:
                return found

    def _can_be_repeated(self, op: tf.Operation, handles: Collection[tf.Operation]) -> bool:
        """Whether a write can be made of each copy as well, given what holds the variables."""
        if self._structure.own_loop(op) is not None:
            return False
        used = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
        if any(operations.made_by(handle) not in handles for handle in used):
            return False
        return self.functions.can_be_copied(op.node_def)
