"""Random operations with states in variables, so that a training can continue from them.

How many numbers a random operation has drawn is known to its kernel alone: nothing can read or set
it, and a training that continues draws the first numbers again. So the operation is replaced:

    RandomUniform(shape)  ->  StatelessRandomUniformV2(shape, key, counter)
                              counter, key = RngReadAndSkip(state, number of elements)

Both draw the same numbers, bit for bit. They are the same generator, Philox, with the attribute
`seed` as its key, and a counter that begins with `seed2` as its upper half and advances by 256 for
each number. (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.)

A loop whose turns overlap draws for any of them first, so that no two runs are alike. Such loops
make one turn at a time here.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.lowering import functions
from replicate.splitting.structure import definitions, kinds, loops, nodes, replacing

_STATELESS = {
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
_DRAWS = kinds.DRAWS - {"Empty"}  # that one returns memory as it is
_ARGUMENTS = ("shape", "key", "counter", "alg", "minval", "maxval")
_PHILOX = 1  # as the number of an algorithm
_NUMBERS = 3  # of a state: the two halves of the counter, and the key
_SKIPPED = 256  # by how much the counter advances for each number


class RandomStates:
    """The states of random operations that have seeds.

    Whatever reads such an operation, fetches or feeds it, gets the new one; so with the outputs of
    functions that draw, which are lowered. The variables are in no collection, so no Saver sees
    them, and have no values before `write`.

    Args:
        graph: The graph; gradients have been taken.
        fetches: The operations are those that run with these tensors and operations.
        first: Tensors and operations that run before `write`, such as initial values. What is drawn
            for them keeps its kernel.

    Attributes:
        names: Those of the operations.
        left: The names of operations that draw numbers, or call functions that do, whose states
            stay in their kernels.
    """

    def __init__(
        self,
        graph: tf.Graph,
        fetches: Iterable[types.Fetch],
        first: Iterable[types.Fetch] = (),
    ):
        self._keys: dict[str, tuple[int, int]] = {}
        fetches = list(fetches)
        with graph.as_default(), tf1.name_scope(None), tf1.control_dependencies(None):
            calls = _drawing_calls(graph, operations.executed_by(fetches))
            self._moved = functions.lower(graph, calls)
            fetches = [self.moved(fetch) for fetch in fetches]
            ran_before = operations.executed_by(first)
            found = sorted(operations.executed_by(fetches), key=lambda op: op.name)
            drawing = [
                op
                for op in found
                if op.type in _STATELESS and op not in ran_before and _seeds(op) != (0, 0)
            ]
            if drawing:
                self._replace(drawing)
            _turn_by_turn(found, drawing)
            self.names = frozenset(self._keys)
            still = [op for op in found if op.type in _DRAWS]
            still += _drawing_calls(graph, found)
            self.left = {op.name for op in still} - self.names
        replacing.fetch_moved(graph, self._moved)

    def moved(self, fetch: types.Fetch) -> types.Fetch:
        """Returns the tensor that stands for one, or what is given where nothing does."""
        return replacing.moved_to(self._moved, fetch)

    def read(self, session: tf1.Session) -> dict[str, int]:
        """Returns how many numbers each operation has drawn, by the operations' names."""
        if not self._keys:
            return {}
        counters = [int(state[0]) % 2**64 for state in session.run(self._read)]
        return dict(zip(self._keys, (one // _SKIPPED for one in counters), strict=True))

    def write(self, session: tf1.Session, drawn: Mapping[str, int] = MappingProxyType({})) -> None:
        """Sets the states.

        Args:
            session: Where the operations run.
            drawn: How many numbers operations have drawn, as `read` returns it; the others have
                drawn none.
        """
        if not self._keys:
            return
        counters = np.array([drawn.get(name, 0) * _SKIPPED for name in self._keys], np.uint64)
        keys = np.array(list(self._keys.values()), np.int64)
        states = np.concatenate([counters.view(np.int64)[:, None], keys], 1)
        session.run(self._written, {self._given: states})

    def _replace(self, drawing: Sequence[tf.Operation]) -> None:
        variables = []
        for number, op in enumerate(drawing):
            seed, seed2 = _seeds(op)
            self._keys[op.name] = seed2, seed
            variables.append(_variable(f"random_state_{number}", op.device))
            self._moved |= replacing.replace(op, [_draw(op, variables[-1])])
        self._read = [variable.read_value() for variable in variables]
        self._given = tf1.placeholder(tf.int64, [len(drawing), _NUMBERS])
        self._written = tf1.group(
            *(
                variable.assign(self._given[n], read_value=False)
                for n, variable in enumerate(variables)
            )
        )


def _drawing_calls(graph: tf.Graph, ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations that call functions which draw numbers."""
    called = definitions.Functions(graph)
    return [
        op
        for op in ops
        if definitions.is_call(op.type) and called.has_effect(op.node_def, _DRAWS.__contains__)
    ]


def _turn_by_turn(ops: Iterable[tf.Operation], drawing: Iterable[tf.Operation]) -> None:
    """Lets the loops around operations that draw make one turn at a time."""
    around = set()
    for op in drawing:
        loop = loops.Structure.own_loop(op)
        while loop is not None:
            around.add(loop)
            loop = loops.Structure.outer(loop)
    one = nodes.attribute(1)
    for op in ops:
        if op.type in kinds.ENTERS and loops.Structure.own_loop(op) in around:
            op._set_attr("parallel_iterations", one)


def _seeds(op: tf.Operation) -> tuple[int, int]:
    return op.get_attr("seed"), op.get_attr("seed2")


def _variable(name: str, device: str) -> tf.Variable:
    with tf.device(device):
        return tf1.Variable(
            np.zeros(_NUMBERS, np.int64),
            trainable=False,
            collections=[],
            use_resource=True,
            name=name,
        )


def _draw(op: tf.Operation, variable: tf.Variable) -> tf.Tensor:
    """Returns what draws an operation's numbers, in its loop or branch.

    NOTE: a handle from outside would have to enter loops; one that waits for a tensor is where that
    is. GPUs have no product of 64 bits, and want how many numbers are drawn on the host.
    """
    shape, *bounds = op.inputs
    context = op._get_control_flow_context()
    made_by = variable.handle.op
    names = {name: made_by.get_attr(name).decode() for name in ("container", "shared_name")}
    with (
        replacing.written("random_states", op.graph, op.device, context),
        tf.control_dependencies([shape]),
    ):
        with tf.device(_host(op.device)):
            size = tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64)
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[_NUMBERS], **names)
        read = tf.raw_ops.RngReadAndSkip(resource=handle, alg=_PHILOX, delta=size)
        counter, key = (tf.bitcast(part, tf.uint64) for part in (read[:2], read[2:]))
        arguments = [shape, key, counter, _PHILOX, *bounds]
        stateless = getattr(tf.raw_ops, _STATELESS[op.type])
        more = {} if bounds else {"dtype": op.outputs[0].dtype}
        return stateless(**dict(zip(_ARGUMENTS, arguments, strict=False)), **more)


def _host(device: str) -> str:
    """Returns the CPU beside a device; a CPU, or no particular device, is returned itself."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type in (None, "CPU"):
        return device
    return spec.replace(device_type="CPU", device_index=0).to_string()
