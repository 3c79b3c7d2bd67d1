"""Names the first tensor of a step that is no finite number: `train.check_numerics`."""

from collections.abc import Callable, Sequence

import numpy as np

from replicate import errors, types
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, operations


class NumericsHook(tf1.train.SessionRunHook):
    """Ends a training at the first step with a NaN in any tensor, or with an infinite loss.

    Infinite values alone do not end it: a mask of -inf is nothing bad.

    Args:
        loss: The loss of a step.
        train_op: What else a step runs.
        features: What the input gives.
        labels: Likewise.
    """

    def __init__(
        self,
        loss: tf.Tensor,
        train_op: tf.Operation | tf.Tensor,
        features: types.Nest,
        labels: types.Nest,
    ):
        self._given = {
            part.ref(): leaf.path
            for leaf in batches.leaves_of(features, labels)
            for part in tf.nest.flatten(leaf.value, expand_composites=True)
            if tf.is_tensor(part)
        }
        self._loss = loss
        self._train_op = train_op
        self._tensors: list[tf.Tensor] = []
        self._fetched: list[tf.Tensor] = []

    def begin(self) -> None:
        """See base class."""
        ran = operations.executed_by([self._loss, self._train_op])
        self._tensors = [
            tensor
            for op in self._loss.graph.get_operations()
            if op in ran and op.type != "Const" and op._get_control_flow_context() is None
            for tensor in op.outputs
            if tensor.dtype.is_floating
        ]
        tests = (tf.math.is_nan, tf.math.is_inf)
        found = [tf.stack([_any(test, one) for one in self._tensors]) for test in tests]
        self._fetched = [*found, self._loss, tf1.train.get_global_step()]

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        """See base class."""
        return tf1.train.SessionRunArgs(self._fetched)

    def after_run(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        """See base class."""
        nan, inf, loss, _ = run_values.results
        if not nan.any() and np.isfinite(loss):
            return
        kind, first = ("NaN", self._first(nan)) if nan.any() else ("inf", self._first(inf))
        step, given = run_context.session.run(self._fetched[-1]), self._given.get(first.ref())
        if given is not None:
            raise errors.RunError(
                f"train.input: the numbers of a step must be finite, but at step {step} {given} "
                f"came with {kind}. Correct the data; na_values and defaults replace cells of CSV."
            )
        raise errors.RunError(
            f"the numbers of a step must be finite, but at step {step} the operation "
            f"{first.op.name} ({first.op.type}) was the first to make {kind}. Look for it in "
            "model_fn."
        )

    def _first(self, flags: Sequence[bool]) -> tf.Tensor:
        """Returns the first flagged tensor that is made from none of the others."""
        flagged = [one for one, is_flagged in zip(self._tensors, flags, strict=True) if is_flagged]
        references = {one.ref() for one in flagged}
        return next(
            (one for one in flagged if not references & {put.ref() for put in one.op.inputs}),
            flagged[0],
        )


def _any(test: Callable[[tf.Tensor], tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    with tensor.graph.colocate_with(tensor.op, ignore_existing=True):
        return tf.reduce_any(test(tensor))
