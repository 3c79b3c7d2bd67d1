"""Workers compare what they have built, and begin with the same values of all variables."""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, collectives
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.cluster import presence
from replicate.strategy.variables import variables

# What TensorFlow raises where another task is gone, or does not come.
LOSSES = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_CPU = "/device:CPU:0"
_UPDATES = ("ResourceApply", "ResourceSparseApply")
_GRADIENTS = ("delta", "grad")  # as their arguments are called


def begin(across: collectives.Across) -> list[tf.Operation]:
    """Returns what all workers' sessions run first, once the first worker has its values.

    Args:
        across: Joins what workers bring.

    Raises:
        ValueError: If a variable is each tower's own, and its sum is saved: the first worker
            saves alone.
    """
    across = across.apart("start")
    _refuse_saved_sums()
    members = _members()
    found = across.from_first([_value(variable, across) for variable in members])
    return [
        variable.assign(value, read_value=False)
        for variable, value in zip(members, found, strict=True)
        if not across.is_first
    ] + [value.op for value in found]


def _members() -> list:
    return [
        member
        for variable in tf1.global_variables()
        for member in getattr(variable, "members", (variable,))
    ]


def _refuse_saved_sums() -> None:
    for variable in tf1.global_variables():
        is_own = isinstance(variable, variables.TowerLocalVariable)
        if is_own and variable.aggregation == variables.SUM:
            raise ValueError(
                "The first worker of a cluster saves alone, and has no other worker's part of a "
                f"sum: {variable.name} is each tower's own (ON_READ) and is added up. Make it "
                "ON_WRITE, with aggregation=tf.VariableAggregation.SUM, or put it into the "
                "collection of local variables."
            )


def _value(variable: Any, across: collectives.Across) -> tf.Tensor:
    if across.is_first or not variable.shape.is_fully_defined():
        return tf.identity(variable.read_value())
    if variable.dtype.base_dtype == tf.string:
        return tf.identity(variable.initial_value)
    with tf.device(variable.device):
        return tf.zeros(variable.shape, variable.dtype.base_dtype)


# What is compared.


def built(across: collectives.Across) -> dict[str, list[str]]:
    """Returns what workers have built in the current graph, and with what; a list of each."""
    named = [
        f"{v.name} of shape {v.shape}, {v.dtype.base_dtype.name}" for v in tf1.global_variables()
    ]
    return {
        "the version of replicate": [_version("replicate")],
        "the version of TensorFlow": [tf.__version__],
        "the version of Python": [platform.python_version()],
        "the version of numpy": [np.__version__],
        "the variables": named,
        "what workers join": across.told,
        "the numbers of updates": _of_updates(),
    }


def _of_updates() -> list[str]:
    """Returns the constants that optimizers update with, such as a learning rate."""
    found = []
    for op in tf1.get_default_graph().get_operations():
        if not op.type.startswith(_UPDATES):
            continue
        for argument, tensor in zip(op.op_def.input_arg, op.inputs, strict=False):
            is_number = tensor.shape.rank == 0 and tensor.dtype.is_floating
            if is_number and argument.name not in _GRADIENTS:
                numbers = ", ".join(map(str, sorted(_constants(tensor))))
                found.append(f"{op.type} with {argument.name} made of {numbers}")
    return found


def _constants(tensor: tf.Tensor) -> list:
    behind = ancestry.made_from([tensor])
    values = [tf.get_static_value(op.outputs[0]) for op in behind if op.type == "Const"]
    return [v for v in values if np.ndim(v) == 0 and np.issubdtype(v.dtype, np.floating)]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def compare(
    member: clusters.Member, options: collectives.Options, own: Mapping[str, Sequence[str]]
) -> None:
    """Compares over all workers what must be alike; to be called in each.

    Args:
        member: This process among the tasks.
        options: How workers reach each other.
        own: What this worker has: lists of texts.

    Raises:
        ClusterError: If workers differ; names the first difference, and who has what. Or if
            one of them does not come.
    """
    found = [json.loads(text) for text in _told(member, options, json.dumps(own))]
    names = list(dict.fromkeys(name for each in found for name in each))
    for name in names:
        texts = [each.get(name, []) for each in found]
        if any(text != texts[0] for text in texts):
            raise errors.ClusterError(
                "All workers of a cluster run the same model, with the same config and packages: "
                f"they differ in {name}. {_difference(member.cluster, texts)}. Start all with "
                "the same."
            )


def _told(member: clusters.Member, options: collectives.Options, text: str) -> list[str]:
    """Returns the texts of all workers."""
    config = tf1.ConfigProto()
    member.configure(config)
    with tf.Graph().as_default():
        across = collectives.Across(options._replace(hint="auto"), _CPU, "meeting")
        letters = np.frombuffer(text.encode(), np.uint8)
        places = np.full(len(letters), options.position, np.int64)
        (found,) = across.slices([tf.IndexedSlices(tf.constant(letters), tf.constant(places))])
        with tf1.Session(member.start(), config=config) as session:
            run = presence.watched(session.run, member.cluster, options.timeout, LOSSES)
            letters, places = run([found.values, found.indices])
    return [letters[places == n].tobytes().decode() for n in range(options.size)]


def _difference(cluster: clusters.Cluster, texts: Sequence[Sequence[str]]) -> str:
    """Returns who has what, of the first line that differs."""
    longest = max(map(len, texts))
    lines = [[*text, *["none"] * (longest - len(text))] for text in texts]
    number = next(n for n in range(longest) if len({line[n] for line in lines}) > 1)
    holders: dict[str, list[str]] = {}
    for task, line in zip(cluster.names, lines, strict=True):
        holders.setdefault(line[number], []).append(task)
    place = f"The {_ordinal(number + 1)}: " if longest > 1 else ""
    shown = [f"{', '.join(tasks[:8])} has {line[:200]}" for line, tasks in holders.items()]
    return f"{place}{'; '.join(shown)}"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else endings.get(number % 10, 'th')}"
