"""What each task has built, and with what: it must be alike in all tasks of a cluster.

A manifest names things, and has a list of lines for each.
"""

import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import replicate
from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations
from replicate.strategy.cluster.membership import Membership

Manifest: TypeAlias = Mapping[str, Sequence[str]]

_CPU = "/device:CPU:0"
_SERVER = "/job:ps"  # of devices that all tasks share

# The names of what is added for towers and workers, as their positions; and of what may also be a
# copy of a model's constant, if it is no whole number.
_OWN = re.compile(r"replicate_(?!split(_\d+)?/rows)")
_COPIED = re.compile(r"replicate_")

# What changes variables, what of it is no rate, and which of its attributes are options.
_UPDATES = ("Apply", "Assign", "ResourceApply", "ResourceSparseApply", "SparseApply")
_NO_RATES = ("accum", "delta", "grad", "m", "mg", "mom", "ms", "ref", "resource", "v", "var")
_OPTIONS = ("multiply_linear_by_lr", "update_slots", "use_nesterov")

# Variables, what else is stateful and is the same in each step, and the scopes of gradients.
_HOLDERS = ("VarHandleOp", "VariableV2")
_STEADY = ("Apply", "Assign", "Case", "If", "Read", "Resource", "Stateful", "VarIs", "While")
_GRADIENTS = frozenset(("gradients", "gradient_tape"))

# Behind what an update takes: what is done element by element, and what brings towers together.
_ARITHMETIC = frozenset(
    """Add AddN AddV2 Cast CollectiveReduceV2 ConcatV2 Div DivNoNan Identity IdentityN Maximum
    Minimum Mul Neg OptionalFromValue OptionalGetValue Pow ReadVariableOp RealDiv Reciprocal Reshape
    Rsqrt Select SelectV2 SplitV Sqrt Square Sub""".split()
)
_FOLLOWED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.variant)
_SMALL = 16  # as many boundaries as a schedule may have


def of(
    given: Manifest, workers: collectives.Workers = collectives.ALONE
) -> dict[str, Sequence[str]]:
    """Returns what a task was given, and has built with it in the current graph.

    Args:
        given: What else must be alike, such as options.
        workers: Those that take each step together; alone, whose tasks only share variables.
    """
    found: dict[str, Sequence[str]] = {
        "the version of replicate": [replicate.__version__],
        "the version of TensorFlow": [tf.__version__],
        "the version of Python": [platform.python_version()],
        "the version of numpy": [np.__version__],
        **given,
    }
    names = []
    for variable in tf1.global_variables():
        first = operations.copies_of(variable)[0]
        names.append(first.op.name)
        place = f" on {first.device}" if _SERVER in first.device else ""
        kind = f"{first.shape} {first.dtype.base_dtype.name}"
        found[f"the variable {names[-1]}"] = [f"{names[-1]} {kind}{place}"]
    found["the numbers of updates"] = _of_updates()
    if isinstance(workers, collectives.CollectiveWorkers):
        found["the order of variables"] = names
        found["what workers join"] = workers.told
    return found


def of_config(values: Mapping[str, object]) -> Manifest:
    """Returns what the keys of a config are, in words."""
    return {f"the config's {name}": [str(value)] for name, value in values.items()}


def _of_updates() -> list[str]:
    """Returns the numbers and options that variables are updated with, such as a learning rate."""
    graph = tf1.get_default_graph()
    weights = [copy.op for each in tf1.trainable_variables() for copy in operations.copies_of(each)]
    sources = filter(_is_source, graph.get_operations())
    varying = operations.reached_from([*weights, *sources])
    found: list[str] = []
    by_hand: dict[str, list[tf.Tensor]] = {}
    for op in _updates(graph, weights):
        options = [each.name for each in op.op_def.attr if each.name in _OPTIONS]
        found += [f"{op.type} with {name}={op.get_attr(name)}" for name in options]
        for argument, tensor in zip(op.op_def.input_arg, op.inputs, strict=False):
            text = f"{op.type} with {argument.name} made of"
            if argument.name in _NO_RATES or not tensor.dtype.is_floating:
                continue
            if op.type.startswith("Assign"):  # NOTE: together, as far behind them there is much
                by_hand.setdefault(text, []).append(tensor)
            else:
                found += [f"{text} {each}" for each in _numbers([tensor], varying)]
    for text, tensors in sorted(by_hand.items()):
        found += [f"{text} {each}" for each in _numbers(tensors, varying)]
    return list(dict.fromkeys(found))


def _updates(graph: tf.Graph, weights: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns what writes trainable variables, and slots, which have their names before their own.

    Args:
        graph: The graph.
        weights: What makes the trainable variables.
    """
    copies = [copy for each in tf1.global_variables() for copy in operations.copies_of(each)]
    first = {copy.initializer for copy in copies}
    names = {op.name for op in weights}
    found = []
    for op in graph.get_operations():
        if op.type.startswith(_UPDATES) and op.inputs and op not in first:
            parts = (operations.variable_of(op) or op.inputs[0].op).name.split("/")
            if any("/".join(parts[: n + 1]) in names for n in range(len(parts))):
                found.append(op)
    return found


def _is_source(op: tf.Operation) -> bool:
    """Whether an operation has other values in each step, and is no counter of steps."""
    if op.type in _HOLDERS:  # of variables
        return tf.TensorShape(op.get_attr("shape")).rank != 0
    is_stateful = op.op_def.is_stateful and not op.type.startswith(_STEADY)
    return is_stateful or op.type.startswith("Placeholder")


def _numbers(tensors: Sequence[tf.Tensor], varying: set[tf.Operation]) -> list[str]:
    """Returns the small constants that updates do arithmetic with.

    What is made from constants and scalar variables alone counts whole, with a schedule's steps.
    Else what it is made from is looked at, up to the gradients: a loss may have constants that
    each task has for itself, as the size of its batches.
    """
    steady, met, waiting = [], set(), [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op in met or _GRADIENTS.intersection(op.name.split("/")):
            continue
        met.add(op)
        if op not in varying:
            steady.append(op)
        elif op.type in _ARITHMETIC:
            waiting += [each.op for each in op.inputs if each.dtype in _FOLLOWED]
    behind = _with_bodies(operations.made_from(steady))
    return sorted({str(value) for op in behind for value in _number(op)})


def _number(op: tf.Operation) -> list[Any]:
    """Returns the value of a small constant; nothing of zeros, or of another operation."""
    if op.type != "Const" or _OWN.match(op.name):
        return []
    value = tf.get_static_value(op.outputs[0])
    is_small = np.ndim(value) < 2 and np.size(value) <= _SMALL
    kind = np.inexact if _COPIED.match(op.name) else np.number
    return [value] if is_small and np.issubdtype(value.dtype, kind) and np.any(value) else []


def _with_bodies(found: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields operations, and what is in the functions that they call."""
    for op in found:
        yield op
        for body in operations.bodies(op):
            yield from _with_bodies(operations.made_from(body.outputs))


def require_alike(found: Mapping[str, Manifest]) -> None:
    """Refuses manifests that differ.

    Args:
        found: The manifests of tasks, by what people call these.

    Raises:
        ClusterError: If they differ; names the first difference, and who has what.
    """
    text = difference(found)
    if text is not None:
        raise errors.ClusterError(
            "All tasks of a cluster run the same model, with the same config and packages: they "
            f"differ in {text}. Start all with the same."
        )


def difference(found: Mapping[str, Manifest]) -> str | None:
    """Returns the first thing in which manifests differ, and who has what; None: they are alike."""
    for name in dict.fromkeys(name for manifest in found.values() for name in manifest):
        lists = {task: list(manifest.get(name, ())) for task, manifest in found.items()}
        longest = max(map(len, lists.values()))
        for number in range(longest):
            holders: dict[str, list[str]] = {}
            for task, lines in lists.items():
                line = lines[number] if number < len(lines) else "none"
                holders.setdefault(line[:200], []).append(task)
            if len(holders) > 1:
                place = f"Number {number + 1}: " if longest > 1 else ""
                has = [f"{', '.join(tasks[:8])} has {line}" for line, tasks in holders.items()]
                return f"{name}. {place}{'; '.join(has)}"
    return None


def compare(member: Membership, options: collectives.Options, own: Manifest) -> None:
    """Compares the manifests of workers that take each step together; to be called in each.

    Args:
        member: This process among the tasks.
        options: How workers reach each other.
        own: This worker's.

    Raises:
        ClusterError: If workers differ, or one of them does not come.
    """
    config = tf1.ConfigProto()
    member.configure(config)
    with tf.Graph().as_default():
        alone = options._replace(hint="auto")
        workers = collectives.CollectiveWorkers(alone, _CPU, "meeting")
        letters = np.frombuffer(json.dumps(own).encode(), np.uint8)
        places = np.full(len(letters), options.position, np.int64)
        (found,) = workers.slices([tf.IndexedSlices(tf.constant(letters), tf.constant(places))])
        with tf1.Session(member.start(), config=config) as session:
            letters, places = member.watched(session.run)([found.values, found.indices])
    texts = [letters[places == n].tobytes().decode() for n in range(options.size)]
    names = [task.name for task in member.cluster.tasks]
    require_alike(dict(zip(names, map(json.loads, texts), strict=True)))
