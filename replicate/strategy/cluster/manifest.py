"""What each task has built, and with what: it must be alike in all tasks of a cluster.

A manifest names things, and has a list of lines for each.
"""

import json
import platform
from collections.abc import Mapping, Sequence
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
_UPDATES = ("ResourceApply", "ResourceSparseApply")
_GRADIENTS = ("delta", "grad")  # as their arguments are called


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


def _constants(tensor: tf.Tensor) -> list[np.floating[Any]]:
    behind = operations.made_from([tensor])
    values = [tf.get_static_value(op.outputs[0]) for op in behind if op.type == "Const"]
    return [v for v in values if np.ndim(v) == 0 and np.issubdtype(v.dtype, np.floating)]


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
