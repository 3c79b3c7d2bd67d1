"""What one step is made of: nodes, transfers, time of kernels, the critical path."""

import math
from collections import Counter
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf, tf1

TRACED_STEPS = 7
TYPES_SHOWN = 16
BETWEEN, WITHIN = "waiting, from device to device", "waiting, on one device"
SENDS, RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
KINDS = {
    "transfers": "_Send _HostSend _Recv _HostRecv CollectiveReduceV2 CollectiveReduceV3 "
    "NcclAllReduce",
    "arithmetic": "MatMul _FusedMatMul BatchMatMulV2 BiasAdd BiasAddGrad Relu ReluGrad Conv2D "
    "_FusedConv2D Conv2DBackpropInput Conv2DBackpropFilter Softmax Tanh TanhGrad Square Rsqrt "
    "SparseSoftmaxCrossEntropyWithLogits RsqrtGrad SquaredDifference _MklMatMul "
    "_MklNativeFusedMatMul _FusedBatchMatMulV2 Transpose Gather GatherV2 ResourceGather Mul Sum "
    "Mean AddV2 Tile RealDiv",
    "reading variables": "ReadVariableOp VarHandleOp _ReadVariablesOp",
    "sums over towers": "AddN AccumulateNV2",
    "packing": "ConcatV2 Split SplitV OptionalFromValue OptionalGetValue",
    "shapes and slices": "Shape Reshape StridedSlice Slice Pack Unpack Size",
    "asserts": "Assert",
    "identities, no-ops": "Identity IdentityN NoOp Const _Arg _Retval",
}
UPDATES = ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign")
_KIND_OF = {op: kind for kind, ops in KINDS.items() for op in ops.split()}


def kind_of(op: str) -> str:
    """Returns the kind of an operation type."""
    return "updates" if op.startswith(UPDATES) else _KIND_OF.get(op, "other")


class Ran(NamedTuple):
    """A node that ran.

    Attributes:
        op: Its type.
        device: Short, as in `CPU:0`.
        inputs: The nodes that it waits for, on whatever device.
        begun: When its kernel began, in milliseconds of the step.
        ended: When that ended.
    """

    op: str
    device: str
    inputs: tuple[str, ...]
    begun: float
    ended: float


def profile(session: Any, fetches: list) -> dict:
    """Traces some steps and returns the summary of the one of median length.

    NOTE: tracing costs about a microsecond a node, so a traced step is longer than others.
    """
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    traced = []
    for _ in range(TRACED_STEPS):
        metadata = tf1.RunMetadata()
        session.run(fetches, options=options, run_metadata=metadata)
        traced.append(_Step(metadata))
    traced.sort(key=lambda step: step.wall)
    return traced[len(traced) // 2].summary()


class _Step:
    """One traced step.

    Attributes:
        wall: Milliseconds from its first kernel's begin to its last one's end.
    """

    def __init__(self, metadata: Any):
        self._nodes = {node.name: node for part in metadata.partition_graphs for node in part.node}
        sends = [node for node in self._nodes.values() if node.op in SENDS]
        self._sends = [n for n in sends if n.attr["send_device"].s != n.attr["recv_device"].s]
        self._sender = {node.attr["tensor_name"].s: node for node in sends}
        stats = {
            node.node_name: (_short(device.device), node)
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
            if node.node_name in self._nodes
        }
        self._sizes = {
            (name, output.slot): _bytes(output.tensor_description)
            for name, (_, node) in stats.items()
            for output in node.output
        }
        zero = min(node.all_start_nanos for _, node in stats.values())
        self._ran = {
            name: Ran(
                self._nodes[name].op,
                device,
                tuple(self._source(text) for text in self._nodes[name].input),
                (node.all_start_nanos + node.op_start_rel_nanos - zero) / 1e6,
                (node.all_start_nanos + node.op_end_rel_nanos - zero) / 1e6,
            )
            for name, (device, node) in stats.items()
        }
        self.wall = max(ran.ended for ran in self._ran.values())

    def _source(self, text: str) -> str:
        """Returns the node behind an input, beyond a transfer where there is one.

        NOTE: TensorFlow's trace leaves transfers between CPUs out.
        """
        node = self._nodes.get(_name(text))
        if node is not None and node.op in RECEIVES:
            sender = self._sender.get(node.attr["tensor_name"].s)
            return _name(sender.input[0]) if sender is not None else ""
        return _name(text)

    def summary(self) -> dict:
        """Returns what the step is made of, in numbers and mappings of numbers."""
        kinds, kernels, devices = Counter(), Counter(), Counter()
        for node in self._nodes.values():
            kinds[kind_of(node.op)] += 1
        for ran in self._ran.values():
            kernels[kind_of(ran.op)] += ran.ended - ran.begun
            devices[ran.device] += ran.ended - ran.begun
        types = Counter(node.op for node in self._nodes.values())
        return {
            "nodes": len(self._nodes),
            "transfers": len(self._sends),
            "of these, control edges": sum(map(self._is_control, self._sends)),
            "kB sent": sum(map(self._sent_bytes, self._sends)) / 1e3,
            "wall ms": self.wall,
            "ms in which no kernel runs": self.wall - self._busy(),
            "kernels, ms": sum(kernels.values()),
            "nodes by kind": dict(kinds),
            "nodes by type": dict(types.most_common(TYPES_SHOWN)),
            "kernels by kind, ms": dict(kernels),
            "kernels by device, ms": dict(sorted(devices.items())),
            **self._critical_path(),
        }

    def _is_control(self, send: Any) -> bool:
        """Whether a transfer only says that something is done: an empty constant travels."""
        source = self._nodes.get(_name(send.input[0]))
        return source is not None and source.op == "Const" and bool(source.input)

    def _sent_bytes(self, send: Any) -> int:
        name, _, slot = send.input[0].partition(":")
        return self._sizes.get((name, int(slot or 0)), 0)

    def _busy(self) -> float:
        """Returns in how many milliseconds at least one kernel runs."""
        busy, until = 0.0, 0.0
        for ran in sorted(self._ran.values(), key=lambda ran: ran.begun):
            busy += max(0.0, ran.ended - max(until, ran.begun))
            until = max(until, ran.ended)
        return busy

    def _critical_path(self) -> dict:
        """Walks back from the node that ends last, each time to the input that ended last."""
        name: str | None = max(self._ran, key=lambda name: self._ran[name].ended)
        kinds, length = Counter(), 0
        waits = Counter({BETWEEN: 0.0, WITHIN: 0.0})
        crossed = 0
        while name is not None:
            ran = self._ran[name]
            length += 1
            kinds[kind_of(ran.op)] += ran.ended - ran.begun
            # An input of zero length may end in the same nanosecond: never back to itself.
            inputs = [i for i in ran.inputs if i in self._ran and self._ran[i].begun < ran.begun]
            name = max(inputs, key=lambda name: self._ran[name].ended, default=None)
            if name is not None:
                before = self._ran[name]
                crossed += before.device != ran.device
                where = WITHIN if before.device == ran.device else BETWEEN
                waits[where] += max(0.0, ran.begun - before.ended)
        return {
            "critical path, nodes": length,
            "critical path, changes of device": crossed,
            "critical path, ms": {**kinds, **waits},
        }


def _name(text: str) -> str:
    return text.lstrip("^").partition(":")[0]


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


def _bytes(description: Any) -> int:
    """Returns how many bytes a tensor has; of a dtype that only numbers its kind, none."""
    size = tf.dtypes.as_dtype(description.dtype).size if description.dtype else 0
    return max(size, 0) * math.prod(dim.size for dim in description.shape.dim)
