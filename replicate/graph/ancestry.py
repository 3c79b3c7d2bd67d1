"""Which operations lie behind others in a graph."""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf


def executed_by(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations that run when `fetches`, tensors or operations, are run."""
    return _behind(fetches, with_controls=True)


def made_from(fetches: Sequence[Any]) -> set[tf.Operation]:
    """Returns all operations whose values `fetches` are made from, themselves included."""
    return _behind(fetches, with_controls=False)


def _behind(fetches: Sequence[Any], with_controls: bool) -> set[tf.Operation]:
    waiting = [getattr(fetch, "op", fetch) for fetch in fetches]
    found: set = set()
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
            if with_controls:
                waiting.extend(op.control_inputs)
    return found
