"""The later towers of a model that was called once: copies of what the first one returned.

Only what specs are merged from is copied: losses, predictions, metrics and their updates,
export outputs. All else is the first tower's.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from replicate import types
from replicate.strategy import cloning, values

_MERGED = {
    types.TRAIN: ("loss",),
    types.EVAL: ("loss", "predictions", "eval_metric_ops"),
    types.PREDICT: ("predictions", "export_outputs"),
}


def of(
    first: Any, mode: str, devices: Sequence[str], clones: cloning.Cloning, update_ops: str
) -> list:
    """Returns the later towers.

    Args:
        first: The first tower: a `towers.Tower`.
        mode: The Estimator's mode.
        devices: The K towers' devices.
        clones: Copies tensors and operations.
        update_ops: Whose update operations run; see `specs.train`.
    """
    specs = list(clones.column(_Spec(first.spec, _MERGED[mode])))[1:]
    if mode == types.TRAIN and update_ops == "first":
        updates = clones.copied(first.update_ops)
    else:
        updates = list(clones.column(first.update_ops))[1:]
    later = zip(range(1, len(devices)), devices[1:], specs, updates, strict=True)
    return [
        first._replace(tower_id=i, device=device, spec=spec.spec, update_ops=own)
        for i, device, spec, own in later
    ]


class _Spec(cloning.Carried):
    """An EstimatorSpec whose fields are copied.

    Args:
        spec: The spec.
        fields: The names of those of its fields that are merged.
    """

    def __init__(self, spec: Any, fields: Sequence[str]):
        self.spec = spec
        self._fields = fields

    def mapped(self, fn: Callable) -> "_Spec":
        """See base class."""
        found = {name: _mapped(fn, getattr(self.spec, name)) for name in self._fields}
        # NOTE: `_replace` would check, and complete, what has been checked already.
        kept = [
            found.get(name, held) for name, held in zip(self.spec._fields, self.spec, strict=True)
        ]
        return _Spec(type(self.spec)._make(kept), self._fields)


def _mapped(fn: Callable, value: Any) -> Any:
    def leaf(each: Any) -> Any:
        if type(each).__module__.endswith("export_output"):
            made = copy.copy(each)
            vars(made).update({name: _mapped(fn, held) for name, held in vars(each).items()})
            return made
        return fn(each)

    return values.map_nest(leaf, value)
