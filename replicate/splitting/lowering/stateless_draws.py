"""Random operations keyed by the global step, so that a training can continue from any step.

How many numbers a random operation has drawn is known to its kernel alone: nothing can read or set
it, and a training that continues draws the first numbers again. So the operation is replaced:

    RandomUniform(shape)  ->  StatelessRandomUniform(shape, seed=[its own seeds, position])

The position is the global step; in a loop it begins with the product of that around the loop and a
large number, and grows by one with each turn. Nothing is counted from step to step, and nothing is
stored. (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.)
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.lowering import functions
from replicate.splitting.structure import definitions, kinds, order, replacing

_STATELESS = MappingProxyType(  # the kind in its place, and what its inputs are called
    {
        "Multinomial": ("StatelessMultinomial", ("logits", "num_samples")),
        "RandomShuffle": ("StatelessRandomUniform", ()),
        "RandomStandardNormal": ("StatelessRandomNormal", ("shape",)),
        "RandomUniform": ("StatelessRandomUniform", ("shape",)),
        "RandomUniformInt": ("StatelessRandomUniformInt", ("shape", "minval", "maxval")),
        "TruncatedNormal": ("StatelessTruncatedNormal", ("shape",)),
    }
)
_DRAWS = kinds.DRAWS - {"Empty"}  # that one returns memory as it is
_SPREAD = 0x1E3779B97F4A7C15  # odd, so that no two products are the same; an int64


class Keyed(NamedTuple):
    """What was replaced in a graph.

    Attributes:
        moved: The tensors that stand for others; sessions fetch and feed them by either.
        left: The names of operations that draw numbers, or call functions that do, which begin
            again when a training continues.
    """

    moved: replacing.Moved
    left: frozenset[str]


def key_by_step(
    graph: tf.Graph,
    step: tf.Variable,
    fetches: Iterable[types.Fetch],
    first: Iterable[types.Fetch] = (),
) -> Keyed:
    """Has random operations with seeds draw by these, the global step and a loop's turn alone.

    Functions that draw are lowered. What changes the step waits until it is read.

    Args:
        graph: The graph; gradients have been taken.
        step: The global step.
        fetches: The operations are those that run with these tensors and operations.
        first: What runs before there is a step, such as initial values. What is drawn for them
            keeps its kernel.
    """
    fetches = list(fetches)
    with graph.as_default(), tf1.name_scope(None), tf1.control_dependencies(None):
        moved = functions.lower(graph, _calls(graph, operations.executed_by(fetches)))
        fetches = [replacing.moved_to(moved, fetch) for fetch in fetches]
        before = operations.executed_by(first)
        ran = order.as_made(operations.executed_by(fetches))
        drawing = [
            op for op in ran if op.type in _STATELESS and op not in before and any(_seeds(op))
        ]
        if drawing:
            positions = _Positions(graph, step, ran)
            for op in drawing:
                moved |= replacing.replace(op, [_drawn(op, positions.at(op))])
        drawn = {op for op in ran if op.type in _DRAWS} | {*_calls(graph, ran)}
    replacing.fetch_moved(graph, moved)
    return Keyed(moved, frozenset(op.name for op in drawn - {*drawing}))


def _calls(graph: tf.Graph, ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations that call functions which draw numbers."""
    called = definitions.Functions(graph)
    return [
        op
        for op in order.as_made(ops)
        if definitions.is_call(op.type) and called.has_effect(op.node_def, _DRAWS.__contains__)
    ]


def _seeds(op: tf.Operation) -> tuple[int, int]:
    return op.get_attr("seed"), op.get_attr("seed2")


def _drawn(op: tf.Operation, position: tf.Tensor) -> tf.Tensor:
    """Returns what draws an operation's numbers, in its loop or branch."""
    seed, seed2 = _seeds(op)
    kind, names = _STATELESS[op.type]
    arguments: dict[str, Any] = dict(zip(names, op.inputs, strict=False))
    with _after(op.inputs[0], op, op.control_inputs):
        arguments["seed"] = tf.stack([_constant(seed * _SPREAD + seed2), position])
        draw = getattr(tf.raw_ops, kind)
        with tf.device(op.device):
            if op.type == "RandomShuffle":
                keys = draw(shape=tf.shape(op.inputs[0])[:1], dtype=tf.float64, **arguments)
                return tf.gather(op.inputs[0], tf.argsort(keys))
            if op.type == "Multinomial":
                return draw(**arguments, output_dtype=op.outputs[0].dtype)
            dtype = {"dtype": op.outputs[0].dtype} if len(names) == 1 else {}  # bounds have it
            return draw(**arguments, **dtype)


class _Positions:
    """The global step, and in each loop what tells its turns apart.

    A loop is told by its frame's name: what was copied for a device is in no context of Python's.

    Args:
        graph: The graph.
        step: The global step.
        ran: The operations of a step; those that change the global step wait until it is read.
    """

    def __init__(self, graph: tf.Graph, step: tf.Variable, ran: Sequence[tf.Operation]):
        self._enters: dict[bytes | None, tf.Operation] = {}
        for op in ran:
            if op.type in kinds.ENTERS:
                self._enters.setdefault(op.get_attr("frame_name"), op)
        self._loops: dict[tf.Operation, bytes | None] = {
            op: op.get_attr("frame_name") for op in ran if op.type in kinds.ENTERS
        }
        self._conditions = {self._loop(op): op for op in ran if op.type == "LoopCond"}
        with replacing.written("replicate_draws", graph, step.device):
            read = tf.cast(step.read_value(), tf.int64)
        behind = operations.executed_by([read])
        for holder in [op for op in behind if not op.inputs]:
            for op in {*holder.outputs[0].consumers()} & {*ran} - behind:
                if op.type not in operations.READS:
                    op._add_control_input(read.op)
        self._positions: dict[bytes | None, tf.Tensor] = {None: read}

    def at(self, op: tf.Operation) -> tf.Tensor:
        """Returns the position at which an operation draws, as a tensor of its loop."""
        return self._of(self._loop(op))

    def _of(self, loop: bytes | None) -> tf.Tensor:
        if loop in self._positions:
            return self._positions[loop]
        enter, condition = self._enters[loop], self._conditions[loop]
        (outside,) = enter.inputs
        around = self._of(self._loop(outside.op))
        frame = {name: enter.get_attr(name) for name in ("frame_name", "parallel_iterations")}
        with _after(outside, outside.op):  # in a branch, where the loop may not be entered
            begin = around * _constant(_SPREAD)
        context = condition._get_control_flow_context()
        with replacing.written("replicate_draws", condition.graph, condition.device, context):
            entered = tf.raw_ops.Enter(data=begin, **frame)
            merged = tf.raw_ops.Merge(inputs=[entered, entered]).output
            turn = tf.raw_ops.Switch(data=merged, pred=condition.outputs[0]).output_true
            with tf.control_dependencies([turn]):
                following = tf.raw_ops.NextIteration(data=turn + _constant(1))
        merged.op._update_input(1, following)
        self._positions[loop] = turn
        return turn

    def _loop(self, op: tf.Operation) -> bytes | None:
        """Returns the frame of the loop that an operation's outputs are in; None: in none."""
        loop, seen, waiting = None, set(), [op]
        while waiting:
            op = waiting.pop()
            if op in self._loops:
                loop = self._loops[op]
                break
            if op in seen:
                continue
            seen.add(op)
            if op.type in kinds.EXITS:  # what goes into that loop is beside it
                while op.type not in kinds.ENTERS:
                    op = op.inputs[0].op
            else:
                waiting += op.control_inputs
            waiting += [tensor.op for tensor in op.inputs]
        self._loops |= dict.fromkeys(seen, loop)
        return loop


@contextlib.contextmanager
def _after(
    tensor: tf.Tensor, op: tf.Operation, controls: Sequence[tf.Operation] = ()
) -> Iterator[None]:
    """Makes operations in the loop or branch of one, where one of its tensors is there."""
    place = op.graph, _host(op.device), op._get_control_flow_context()
    with (
        replacing.written("replicate_draws", *place, controls),
        tf.control_dependencies([tensor]),
    ):
        yield


def _constant(number: int) -> tf.Tensor:
    return tf.constant((number + 2**63) % 2**64 - 2**63, tf.int64)


def _host(device: str) -> str:
    """Returns the CPU beside a device; a CPU, or no particular device, is returned itself."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type in (None, "CPU"):
        return device
    return spec.replace(device_type="CPU", device_index=0).to_string()
