"""Gradients that a model applies by itself, where something is to be done with gradients.

TensorFlow's optimizers let the towers meet in their step, where gradients are accumulated and
clipped. A subclass with an `apply_gradients` of its own need not do so: it is called in such a
step. What is assigned without an optimizer is refused.
"""

import contextlib
import functools
import os
from collections.abc import Iterator

from replicate import errors, types
from replicate.compat import gradients
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.strategy import context
from replicate.training import step as steps
from replicate.training import tower_optimizer


@contextlib.contextmanager
def watched(step: steps.GradientStep) -> Iterator[list[types.Nest]]:
    """Lets a step take gradients that optimizers apply by themselves.

    Args:
        step: What is done with gradients before the update.

    Yields:
        All gradients that are computed meanwhile, if something is to be done with gradients.
    """
    computed: list[types.Nest] = []
    if not step.changes:
        yield computed
        return
    with gradients.computed(computed.append), gradients.applied(_taken):
        yield computed


def require_taken(step: steps.GradientStep, computed: types.Nest, train_op: types.Fetch) -> None:
    """Refuses updates by gradients that no optimizer has applied.

    Args:
        step: What is done with gradients before the update.
        computed: The gradients.
        train_op: What is run.

    Raises:
        ValueError: If there is one, and something is to be done with gradients.
    """
    leaves = tf.nest.flatten(computed, expand_composites=True)
    # An eager tensor's graph raises AttributeError.
    sources = [leaf.op for leaf in leaves if isinstance(leaf, tf.Tensor) and hasattr(leaf, "graph")]
    if not sources:
        return
    reached, executed = operations.reached_from(sources), operations.executed_by([train_op])
    for variable in tf1.trainable_variables():
        for outer, write in operations.writers(operations.copies_of(variable)[0]):
            is_run = outer in executed and (outer in reached or write in reached)
            if is_run and write not in step.made:
                raise ValueError(
                    "Gradients are accumulated and clipped where an optimizer applies them: "
                    f"got {' and '.join(step.changes)}, and {variable.name!r} is "
                    f"assigned by hand, from a gradient, by {write.name!r}, {_where(write)}. "
                    "Write a subclass of tf.compat.v1.train.Optimizer whose apply_gradients "
                    "assigns; pass an optimizer_fn; or accumulate and clip by hand as well."
                )


def _taken(optimizer: tf1.train.Optimizer) -> types.Function | None:
    """Returns what to call in place of an `apply_gradients` that a class has of its own."""
    mode, base = context.current(), tf1.train.Optimizer
    if mode is None or mode.tower is None or mode.share is None or not mode.share.step.changes:
        return None
    if type(optimizer).apply_gradients is base.apply_gradients:
        return None  # meets the other towers
    if isinstance(optimizer, tower_optimizer.TowerOptimizer):
        return None
    return functools.partial(mode.share.step.apply_gradients, optimizer)


def _where(op: tf.Operation) -> str:
    """Returns which line of a model made an operation."""
    roots = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (tf, errors))
    frames = [frame for frame in op.traceback if not frame.name.startswith("<")]
    frame = next((f for f in reversed(frames) if not f.filename.startswith(roots)), frames[-1])
    return f"{frame.filename}:{frame.lineno}, in {frame.name}"
