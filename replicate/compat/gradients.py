"""What computes gradients, and what applies them, while somebody asks."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate.compat import replacing
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf1

Listener = Callable[[Any], None]
"""Given gradients: a nest of tensors, IndexedSlices and None."""

Taker = Callable[[tf1.train.Optimizer], Callable[..., Any] | None]
"""Given an optimizer, returns what its `apply_gradients` is for now; None: as it is."""

_APPLY = "apply_gradients"


def _telling(own: Callable[..., Any], listeners: Sequence[Listener]) -> Callable[..., Any]:
    @functools.wraps(own)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        computed = own(*args, **kwargs)
        for tell in list(listeners):
            tell(computed)
        return computed

    return gradients


def _asking(own: Callable[..., Any], takers: Sequence[Taker]) -> Callable[..., Any]:
    def attribute(optimizer: tf1.train.Optimizer, name: str) -> Any:
        takes = (take(optimizer) for take in list(takers)) if name == _APPLY else ()
        taken = next(filter(None, takes), None)
        return own(optimizer, name) if taken is None else taken

    return attribute


_COMPUTED = (
    replacing.Replaced(tfc.gradients_util.target, "_GradientsHelper", _telling),
    replacing.Replaced(tfc.imperative_grad.target, "imperative_grad", _telling),
)


@contextlib.contextmanager
def computed(tell: Listener) -> Iterator[None]:
    """Tells of what `tf.gradients`, `compute_gradients` and tapes give."""
    with contextlib.ExitStack() as stack:
        for replaced in _COMPUTED:
            stack.enter_context(replaced.by(tell))
        yield


# NOTE: a class of a user's has an `apply_gradients` of its own, and may not exist yet.
applied = replacing.Replaced(lambda: tf1.train.Optimizer, "__getattribute__", _asking).by
"""While entered, a `Taker` gives optimizers of version 1 another `apply_gradients`."""
