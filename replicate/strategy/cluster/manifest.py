"""What each task has built, and with what: it must be alike in all tasks of a cluster.

A manifest names things, and says in a line what each of them is.
"""

import json
import platform
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

import replicate
from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations
from replicate.strategy.cluster.membership import Membership

Manifest: TypeAlias = Mapping[str, str]

_CPU = "/device:CPU:0"
_SERVER = "/job:ps"  # of devices that all tasks share


def of(given: Manifest, workers: collectives.Workers = collectives.ALONE) -> dict[str, str]:
    """Returns what a task was given, and has built with it in the current graph.

    Args:
        given: What else must be alike, such as options.
        workers: Those that take each step together; alone, whose tasks only share variables.
    """
    found = {
        "the version of replicate": replicate.__version__,
        "the version of TensorFlow": tf.__version__,
        "the version of Python": platform.python_version(),
        "the version of numpy": np.__version__,
        **given,
    }
    firsts = [operations.copies_of(variable)[0] for variable in tf1.global_variables()]
    for first in firsts:
        place = f" on {first.device}" if _SERVER in first.device else ""
        kind = f"{first.shape} {first.dtype.base_dtype.name}"
        found[f"the variable {first.op.name}"] = f"{first.op.name} {kind}{place}"
    if isinstance(workers, collectives.CollectiveWorkers):
        ordered = {"variables": [first.op.name for first in firsts], "joins": workers.told}
        for kind, lines in ordered.items():
            found.update({f"number {n} of the {kind}": line for n, line in enumerate(lines, 1)})
    return found


def of_config(values: Mapping[str, object]) -> Manifest:
    """Returns what the keys of a config are, in words."""
    return {f"the config's {name}": str(value) for name, value in values.items()}


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
        holders: dict[str, list[str]] = {}
        for task, manifest in found.items():
            holders.setdefault(manifest.get(name, "none"), []).append(task)
        if len(holders) > 1:
            has = [f"{', '.join(tasks[:8])} has {text[:200]}" for text, tasks in holders.items()]
            return f"{name}. {'; '.join(has)}"
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
