"""What is said of a model where towers may not be one device: once for each cause."""

import logging
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import row_flow, tails, whole

_log = logging.getLogger("replicate")

_UNKNOWN = (
    "How %s was reduced from the rows of the batch cannot be seen: %s (%s). It is taken %s. "
    "If that is wrong, say loss_reduction='sum', or tell by what it was divided, with "
    "TowerContext.set_loss_weight. replicate.verify compares the model with one device."
)
_TAPED = "it was derived past tf.gradients, as a GradientTape does, and so are gradients after it"
_MEETING = (
    "Rows meet other rows, or may, in %s%s%s, before %s is made of them: as in batch "
    "normalisation and in losses that compare the rows of a batch. Each tower sees its own rows "
    "alone, and the result is not that of one device. For batch normalisation over the whole batch "
    "use tf.keras.layers.BatchNormalization(synchronized=True). replicate.verify shows by how much "
    "the model differs."
)
_WIDTH = (
    "A tower's own rows say how long %s is%s%s, before %s is made of it: one device, "
    "and each other tower, may make it longer. Name the length: tf.sequence_mask takes a maxlen, "
    "such as the padded length tf.shape(x)[1]. replicate.verify compares the model with one device."
)


class Notices:
    """Says what was inferred of a model, and what could not be.

    Attributes:
        whole: What the towers made of their rows; set by whoever makes it.
    """

    whole: whole.Whole

    def __init__(self):
        self._warned: set[str] = set()
        self._told: set[str] = set()
        self._met: set = set()
        self._is_taped = False

    def unknown(self, tensor: tf.Tensor, reason: str) -> None:
        """Says once that nobody sees how a tensor was reduced; see `whole.Whole`."""
        if tensor.name not in self._warned and self.whole.unknown_weights is None:
            self._warned.add(tensor.name)
            taken = "for a mean over rows" if tensor.dtype.is_floating else "from the first tower"
            _log.warning(_UNKNOWN, tensor.name, reason, tensor.op.type, taken)

    def taped(self, gradient: tf.Tensor) -> None:
        """Says once that a gradient came by another way than the hook."""
        if not self._is_taped:
            self.unknown(gradient, _TAPED)
        self._is_taped = True

    def derived(self, tensor: tf.Tensor, tail: tails.Tail) -> None:
        """Says once how a loss was seen to be reduced, and where its rows meet."""
        if tensor.name in self._told:
            return
        self._told.add(tensor.name)
        parts = [f"{part.kind} ({part.column[0].op.name})" for part in tail.reductions]
        _log.info("%s is made of its rows by: %s.", tensor.name, ", ".join(parts) or "nothing")
        self.reduced(tensor, tail)

    def given(self, predictions: Any) -> None:
        """Says where rows meet before they are given out as predictions."""
        for tensor in tf.nest.flatten(predictions, expand_composites=True):
            if isinstance(tensor, tf.Tensor):
                self._look([tensor], tensor)

    def reduced(self, tensor: tf.Tensor, tail: tails.Tail) -> None:
        """Says where rows meet before a tensor without rows is made of them."""
        self._look([part.column[0] for part in tail.reductions], tensor)

    def _look(self, behind: Sequence[tf.Tensor], tensor: tf.Tensor) -> None:
        if self.whole.is_lone:
            return  # the first tower's rows are all there are
        before = self.whole.meetings.before
        met = {found.op: found for part in behind for found in before(part, is_number=False)}
        new = [found for op, found in met.items() if op not in self._met]
        self._met.update(met)
        for text, is_width in ((_WIDTH, True), (_MEETING, False)):
            of_kind = [found for found in new if (found.kind == row_flow.WIDTH) == is_width]
            if of_kind:
                first = of_kind[0]
                _log.warning(text, first.name, _read(first), _more(of_kind), tensor.name)


def _read(meeting: Any) -> str:
    """Returns what an operation reads where that is known: its own result says no more."""
    own = meeting.tensor.op.name == meeting.op.name
    return "" if own else f", which reads {meeting.tensor.name}"


def _more(meetings: Sequence[Any]) -> str:
    return f" (and {len(meetings) - 1} more)" if len(meetings) > 1 else ""
