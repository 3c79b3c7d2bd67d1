"""Tells in one line that a batch's tensors disagree on their rows, where only a run finds that."""

import re
import weakref
from typing import Any

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, rows

_TOLD = re.compile(
    rf"({batches.UNLIKE} .*?:)\]? (\[[\d ]+\])|({batches.EMPTY} .*? without rows\.)", re.DOTALL
)
_HOOKS = {
    types.TRAIN: "training_hooks",
    types.EVAL: "evaluation_hooks",
    types.PREDICT: "prediction_hooks",
}


def told(error: tf.errors.OpError) -> str:
    """Returns what an error of a run says of a batch's rows; empty if it is about others."""
    found = _TOLD.search(error.message)
    if found is None:
        return ""
    names, numbers, empty = (part and part.replace("\\", "") for part in found.groups())
    return f"{empty} {batches.CHECK}" if empty else f"{names} {numbers}. {batches.ALIKE}"


def added(
    spec: types.EstimatorSpec, mode: str, features: types.Nest, labels: types.Nest
) -> types.EstimatorSpec:
    """Returns a spec whose sessions tell so, if the number of rows is not known before a run."""
    leaves = [leaf.value for leaf in batches.leaves_of(features, labels)]
    given = [leaf for leaf in leaves if isinstance(leaf, rows.KINDS) and rows.is_batched(leaf)]
    if all(rows.static_count(leaf) is not None for leaf in given):
        return spec
    name = _HOOKS[mode]
    return spec._replace(**{name: (*getattr(spec, name), _Hook())})


class _Hook(tf1.train.SessionRunHook):
    """Raises an error of one line in place of TensorFlow's text around it."""

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        """See base class."""
        # NOTE: what a step raises no hook hears of. A session that held itself would be kept, with
        # all of its variables, until Python looks for circles.
        run, itself = type(session).run, weakref.ref(session)
        wrapped = vars(session).get("run")  # by another hook

        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                return wrapped(*args, **kwargs) if wrapped else run(itself(), *args, **kwargs)
            except tf.errors.InvalidArgumentError as e:
                text = told(e)
                if not text:
                    raise
                raise tf.errors.InvalidArgumentError(None, None, text) from None

        session.run = step
