"""Gradients of all towers are added up, the small ones together.

Small tensors that go to one place are laid end to end in each tower, so that they travel, are
masked and are added up as one; where they arrive they are cut again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import packing, shared_reads, whole
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
        place = strategy.sum_places(destination)
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
            cut = _Cut(plan, pack, place, _is_sent(strategy, place))
            plans.append(([members[n] for n in pack], cut))
            wanted = place[:1] if cut.is_sent else place
            asked.append((values.PerDevice(list(flat), joining.rows.devices), list(wanted)))
    together = {n for members, _ in plans for n in members}
    alone = [n for n in range(len(pairs)) if n not in together]
    reduced = strategy.batch_reduce(variables.SUM, [*asked, *[pairs[n] for n in alone]])
    results: list = [None] * len(pairs)
    for n, found in zip(alone, reduced[len(asked) :], strict=True):
        results[n] = found
    for (members, cut), found in zip(plans, reduced, strict=False):
        for n, part in zip(members, cut.parts(found), strict=True):
            results[n] = part
    return results


def _is_sent(strategy: Any, place: Sequence[str]) -> bool:
    """Whether a sum is made and cut on the first device of a place, and sent to the others."""
    first, *others = place
    return strategy.copies_sums and all(shared_reads.may_share(first, other) for other in others)


class _Cut(NamedTuple):
    """How a sum of what was laid end to end becomes its parts again.

    Attributes:
        plan: Knows the shapes.
        pack: The numbers of the parts in the plan.
        place: The devices that want them.
        is_sent: See `_is_sent`.
    """

    plan: packing.Packing
    pack: Sequence[int]
    place: Sequence[str]
    is_sent: bool

    def parts(self, found: Any) -> list:
        """Returns the parts, on each device of the place."""
        copies = found.values if isinstance(found, values.DistributedValues) else (found,)
        made = zip(copies, self.place, strict=not self.is_sent)
        rows = [self.plan.cut(self.pack, copy, device) for copy, device in made]
        if self.is_sent:
            rows += shared_reads.sent(rows[0], self.place[0], self.place[1:])
        if len(rows) == 1:
            return rows[0]
        return [values.Mirrored(column, self.place) for column in zip(*rows, strict=True)]
