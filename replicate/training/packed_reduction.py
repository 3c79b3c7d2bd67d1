"""Gradients of all towers are added up, the small ones together.

Small tensors that go to one place are laid end to end in each tower, so that they travel, are
masked and are added up as one; where they arrive they are cut again.
"""

from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf
from replicate.graph import packing, whole
from replicate.strategy import values, variables

# A transfer costs about as much as copying this many bytes twice.
PACK_BYTES = 1 << 14


def batch_sum(joining: whole.Whole, strategy: Any, pairs: Sequence[tuple]) -> list:
    """Adds up N values over towers; see `DistributionStrategy.batch_reduce`.

    Args:
        joining: Knows the towers' rows and devices.
        strategy: The strategy; the code runs across towers.
        pairs: N pairs of a PerDevice and its destination.
    """
    by_place: dict[tuple, list[int]] = {}
    for n, (value, destination) in enumerate(pairs):
        place = tuple(dict.fromkeys(strategy.destinations_of(destination)))
        if all(place) and all(isinstance(part, tf.Tensor) for part in value.values):
            by_place.setdefault(place, []).append(n)
    plans = []
    asked: list = []
    for place, members in by_place.items():
        rows = list(zip(*[pairs[n][0].values for n in members], strict=True))
        plan = packing.Packing(rows, PACK_BYTES)
        for pack in plan.packs:
            parts = [pairs[members[n]][0].values for n in pack]
            flat = joining.for_each(packing.end_to_end, *parts)
            plans.append((plan, [members[n] for n in pack], pack, place))
            asked.append((values.PerDevice(list(flat), joining.rows.devices), list(place)))
    together = {n for _, members, _, _ in plans for n in members}
    alone = [n for n in range(len(pairs)) if n not in together]
    reduced = strategy.batch_reduce(variables.SUM, [*asked, *[pairs[n] for n in alone]])
    results: list = [None] * len(pairs)
    for n, found in zip(alone, reduced[len(asked) :], strict=True):
        results[n] = found
    for (plan, members, pack, place), found in zip(plans, reduced, strict=False):
        for n, part in zip(members, _cut(plan, pack, found, place), strict=True):
            results[n] = part
    return results


def _cut(plan: packing.Packing, pack: Sequence[int], found: Any, place: Sequence[str]) -> list:
    """Returns the parts of what was laid end to end, on each device of a place."""
    copies = found.values if isinstance(found, values.DistributedValues) else (found,)
    rows = [plan.cut(pack, copy, device) for copy, device in zip(copies, place, strict=True)]
    if len(rows) == 1:
        return rows[0]
    return [values.Mirrored(column, place) for column in zip(*rows, strict=True)]
