"""What one step is made of: nodes, transfers, time of kernels, the critical path."""

from collections import Counter
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf1

TRACED_STEPS = 7
SENDS, RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
KINDS = {
    "transfers": (*SENDS, *RECEIVES, "CollectiveReduceV2", "NcclAllReduce"),
    "arithmetic": (
        *("MatMul", "_FusedMatMul", "BatchMatMulV2", "BiasAdd", "BiasAddGrad", "Relu", "ReluGrad"),
        *("Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Softmax"),
        *("SparseSoftmaxCrossEntropyWithLogits", "Tanh", "TanhGrad", "Square", "Rsqrt"),
        *("RsqrtGrad", "SquaredDifference", "_MklMatMul", "_FusedBatchMatMulV2", "Transpose"),
        *("Gather", "GatherV2", "ResourceGather"),
    ),
    "updates": ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign"),
    "reading variables": ("ReadVariableOp", "VarHandleOp", "_ReadVariablesOp"),
    "sums over towers": ("AddN", "AccumulateNV2"),
    "packing": ("ConcatV2", "Split", "SplitV", "OptionalFromValue", "OptionalGetValue"),
    "shapes and slices": ("Shape", "Reshape", "StridedSlice", "Slice", "Pack", "Unpack", "Size"),
    "asserts": ("Assert",),
    "identities, no-ops": ("Identity", "IdentityN", "NoOp", "Const", "_Arg", "_Retval"),
}
_KIND_OF = {op: kind for kind, ops in KINDS.items() for op in ops}
_PREFIXES = tuple((op, "updates") for op in KINDS["updates"])


def kind_of(op: str) -> str:
    """Returns the kind of an operation type."""
    prefix = next((kind for start, kind in _PREFIXES if op.startswith(start)), None)
    return prefix or _KIND_OF.get(op, "other")


class Ran(NamedTuple):
    """A node that ran: its type, its device, its inputs; microseconds within the step."""

    op: str
    device: str
    inputs: tuple[str, ...]
    scheduled: float
    begun: float
    ended: float
    size: int


def profile(session: Any, fetches: list) -> dict:
    """Traces some steps and returns the summary of the one of median length.

    NOTE: tracing itself costs about a microsecond a node, so a traced step is longer.
    """
    options = tf1.RunOptions(
        trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    traced = []
    for _ in range(TRACED_STEPS):
        metadata = tf1.RunMetadata()
        session.run(fetches, options=options, run_metadata=metadata)
        ran = _ran(metadata)
        traced.append((max(r.ended for r in ran.values()), metadata, ran))
    traced.sort(key=lambda step: step[0])
    _, metadata, ran = traced[len(traced) // 2]
    return {**_graph_summary(metadata), **_time_summary(ran)}


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


def _graph_summary(metadata: Any) -> dict:
    """Counts the nodes of what is left after the graph was optimized and cut by device."""
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    types = Counter(node.op for node in nodes)
    kinds = Counter()
    for op, count in types.items():
        kinds[kind_of(op)] += count
    sends = [node for node in nodes if node.op in SENDS]
    between = [
        node
        for node in sends
        if node.attr["send_device"].s != node.attr["recv_device"].s
    ]
    controls = sum(1 for node in between if node.name.startswith("edge_") and "^" in node.name)
    return {
        "nodes": len(nodes),
        "node kinds": dict(kinds),
        "node types": dict(types.most_common(16)),
        "transfers": len(between),
        "control transfers": controls,
    }


def _ran(metadata: Any) -> dict[str, Ran]:
    """Reads which node ran when; microseconds since the first."""
    nodes = {
        node.name: (node, _short(node.device))
        for graph in metadata.partition_graphs
        for node in graph.node
    }
    sent = {
        node.attr["tensor_name"].s: node.name for node, _ in nodes.values() if node.op in SENDS
    }
    ran = {}
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            if stats.node_name not in nodes:
                continue
            node, place = nodes[stats.node_name]
            inputs = [name.lstrip("^").partition(":")[0] for name in node.input]
            if node.op in RECEIVES:
                inputs.append(sent.get(node.attr["tensor_name"].s, ""))
            start = stats.all_start_micros
            ran[node.name] = Ran(
                node.op,
                place,
                tuple(inputs),
                start,
                start + stats.op_start_rel_micros,
                start + stats.op_end_rel_micros,
                sum(
                    output.tensor_description.allocation_description.requested_bytes
                    for output in stats.output
                ),
            )
    first = min(r.scheduled for r in ran.values())
    return {
        name: r._replace(scheduled=r.scheduled - first, begun=r.begun - first, ended=r.ended - first)
        for name, r in ran.items()
    }


def _time_summary(ran: dict[str, Ran]) -> dict:
    kernels, by_device, bytes_received = Counter(), Counter(), 0
    for r in ran.values():
        if r.op in RECEIVES:
            bytes_received += r.size
            continue  # it waits for its sender: no work
        kernels[kind_of(r.op)] += r.ended - r.begun
        by_device[r.device] += r.ended - r.begun
    path = _critical_path(ran)
    return {
        "nodes run": len(ran),
        "bytes received": bytes_received,
        "wall ms": max(r.ended for r in ran.values()) / 1000,
        "kernel ms": {kind: time / 1000 for kind, time in kernels.items()},
        "device ms": {device: time / 1000 for device, time in sorted(by_device.items())},
        **path,
    }


def _critical_path(ran: dict[str, Ran]) -> dict:
    """Walks back from the last node to end, each time to the input that ended last."""
    name = max(ran, key=lambda name: ran[name].ended)
    kinds, length, waiting, transfers = Counter(), 0, 0.0, 0
    while name is not None:
        r = ran[name]
        length += 1
        before = [i for i in r.inputs if i in ran and ran[i].ended <= r.ended]
        last = max(before, key=lambda i: ran[i].ended, default=None)
        ready = ran[last].ended if last is not None else 0.0
        if r.op in RECEIVES:
            transfers += 1
            kinds["transfers"] += max(0.0, r.ended - max(ready, r.begun))
            waiting += max(0.0, min(r.ended, r.begun) - ready)
        else:
            kinds[kind_of(r.op)] += r.ended - max(r.begun, ready)
            waiting += max(0.0, r.begun - ready)
        name = last
    return {
        "path nodes": length,
        "path transfers": transfers,
        "path ms": {kind: time / 1000 for kind, time in kinds.items()},
        "path waiting ms": waiting / 1000,
    }
