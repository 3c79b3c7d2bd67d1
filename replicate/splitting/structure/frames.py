"""Loops and branches of a graph, by what its operations read and wait for alone."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from replicate.splitting.structure import kinds, order

Each = TypeVar("Each")


def in_branches(before: Mapping[Each, Sequence[Each]], kind: Callable[[Each], str]) -> set[Each]:
    """Returns what is in a branch, and so may have no value.

    A `Switch`, unless it is a loop's, leads one branch deeper, and a `Merge` leads back.

    Args:
        before: For each operation those that it reads, in order, and those that it waits for.
        kind: Returns an operation's kind.
    """
    begins = {each for each in before if kind(each) in kinds.SWITCHES}
    begins = {each for each in begins if [*map(kind, before[each])][1:2] != ["LoopCond"]}
    depths: dict[Each, int] = {}
    waiting = [(each, False) for each in before if begins]
    while waiting:
        each, is_ready = waiting.pop()
        if each in depths and not is_ready:
            continue
        others = before.get(each, ())
        if not is_ready:
            depths.setdefault(each, 0)  # of a loop's way back nothing is known yet
            waiting.append((each, True))
            waiting.extend((other, False) for other in others if other not in depths)
            continue
        depth = max((depths[other] for other in others), default=0) + (each in begins)
        is_merge = kind(each) in kinds.MERGES
        if is_merge and all(kind(other) not in kinds.WAYS_BACK for other in others):
            depth -= 1
        depths[each] = max(depth, 0)
    return {each for each, depth in depths.items() if depth}


def in_loops(before: Mapping[Each, Sequence[Each]], kind: Callable[[Each], str]) -> set[Each]:
    """Returns what waits in a loop's frame: what is in a loop, or leaves one.

    Args:
        before: For each operation those that it reads or waits for, each of them before it.
        kind: Returns an operation's kind.
    """
    found: set[Each] = set()
    for each, others in before.items():
        inside = (other for other in others if kind(other) not in kinds.EXITS)
        if any(other in found or kind(other) in kinds.ENTERS for other in inside):
            found.add(each)
    return found


class Loop(NamedTuple):
    """All that enters a loop, as something to wait for.

    Attributes:
        name: The attribute `frame_name` of its `Enter`s.
    """

    name: str


def without_turns(
    before: Mapping[Each, Sequence[Each]],
    kind: Callable[[Each], str],
    frame: Callable[[Each], bytes],
) -> dict[Each | Loop, Sequence[Each | Loop]]:
    """Returns what everything waits for that is outside of its loop, each after that.

    A loop makes a limited number of turns at a time, and the first of them ends when everything has
    entered. So what leaves a loop may wait for what it is not made from, as a counter of turns
    does. It waits for all that enters, and for nothing else of what is outside: what a turn takes
    from the turn before is left out. What enters only after something has left the loop, as the
    counter of a gradient that waits for an update, is not waited for: such a loop makes few turns.

    Args:
        before: For each operation those that it reads, in order, and those that it waits for.
        kind: Returns an operation's kind.
        frame: Returns the attribute `frame_name` of an `Enter`.
    """
    entering: dict[Loop, list[Each]] = collections.defaultdict(list)
    found: dict[Each | Loop, Sequence[Each | Loop]] = {}
    for each, others in before.items():
        name, found[each] = kind(each), others
        if name in kinds.ENTERS:
            entering[Loop(frame(each).decode())].append(each)
        elif name in kinds.MERGES:
            found[each] = [other for other in others if kind(other) not in kinds.WAYS_BACK]
        elif name in kinds.EXITS:
            origin = each
            while kind(origin) not in kinds.ENTERS:  # by a Switch and a Merge
                origin = before[origin][0]
            found[each] = [*others, Loop(frame(origin).decode())]
    for loop, entered in entering.items():
        found[loop] = entered
    ordered, has_circles = order.in_order(found)
    if has_circles:
        _leave_out_late(found, entering, ordered)
        ordered, _ = order.in_order(found)
    return {each: found[each] for each in ordered}


def _leave_out_late(
    before: dict[Each | Loop, Sequence[Each | Loop]],
    entering: Mapping[Loop, Sequence[Each]],
    ordered: Sequence[Each | Loop],
) -> None:
    """Leaves out of loops what enters after something has left."""
    bits = {loop: 1 << n for n, loop in enumerate(entering)}
    left: dict[Each | Loop, int] = dict.fromkeys(before, 0)  # the loops that each comes behind
    is_changed = True
    while is_changed:
        is_changed = False
        for each in ordered:
            found = left[each]
            for other in before[each]:
                found |= left[other]
                if isinstance(other, Loop):
                    found |= bits[other]
            is_changed |= found != left[each]
            left[each] = found
    for loop, entered in entering.items():
        before[loop] = [each for each in entered if not left[each] & bits[loop]]
