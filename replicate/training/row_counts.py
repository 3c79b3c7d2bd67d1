"""Tells in one line that a batch's tensors disagree on their rows, where only a run finds that."""

import functools
import re
from typing import Any

from replicate import types
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, rows

_TOLD = re.compile(
    rf"({batches.UNLIKE} .*?:)\]? (\[[\d ]+\])|({batches.EMPTY} .*? without rows\.)", re.DOTALL
)


def told(error: tf.errors.OpError) -> str:
    """Returns what an error of a run says of a batch's rows; empty if it is about others."""
    found = _TOLD.search(error.message)
    if found is None:
        return ""
    names, numbers, empty = (part and part.replace("\\", "") for part in found.groups())
    return f"{empty} {batches.CHECK}" if empty else f"{names} {numbers}. {batches.ALIKE}"


def watch(features: types.Nest, labels: types.Nest) -> None:
    """Has the graph's sessions tell so, if the number of rows is not known before a run."""
    leaves = [leaf.value for leaf in batches.leaves_of(features, labels)]
    given = [leaf for leaf in leaves if isinstance(leaf, rows.KINDS) and rows.is_batched(leaf)]
    if any(rows.static_count(leaf) is None for leaf in given):
        sessions.watch_runs(tf1.get_default_graph(), _in_one_line)


def _in_one_line(run: types.Function) -> types.Function:
    """Returns what raises an error of one line in place of TensorFlow's text around it."""

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except tf.errors.InvalidArgumentError as e:
            text = told(e)
            if not text:
                raise
            raise tf.errors.InvalidArgumentError(None, None, text) from None

    return call
