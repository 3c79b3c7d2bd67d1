"""Loops and branches of a graph, by what its operations read and wait for alone."""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from replicate.splitting.structure import kinds

Each = TypeVar("Each")


def in_branches(before: Mapping[Each, Sequence[Each]], kind: Callable[[Each], str]) -> set[Each]:
    """Returns what is in a branch, and so may have no value.

    A `Switch`, unless it is a loop's, leads one branch deeper, and a `Merge` leads back.

    Args:
        before: For each operation those that it reads, in order, and those that it waits for.
        kind: Returns an operation's kind.
    """
    depths: dict[Each, int] = {}
    waiting = [(each, False) for each in before]
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
        depth, name = max((depths.get(other, 0) for other in others), default=0), kind(each)
        if name in kinds.SWITCHES and (len(others) < 2 or kind(others[1]) != "LoopCond"):
            depth += 1
        if name in kinds.MERGES and all(kind(other) not in kinds.WAYS_BACK for other in others):
            depth -= 1
        depths[each] = max(depth, 0)
    return {each for each, depth in depths.items() if depth}


def waits_of_exits(
    before: Mapping[Each, Sequence[Each]],
    kind: Callable[[Each], str],
    frame: Callable[[Each], Hashable],
) -> dict[Each, list[Each]]:
    """Returns for each `Exit` all that enters its loop.

    A loop makes a limited number of turns at a time, and the first of them ends when everything has
    entered. So what leaves a loop may wait for what it is not made from, as a counter of turns
    does: nothing that enters may wait for it.

    Args:
        before: For each operation those that it reads, in order, and those that it waits for.
        kind: Returns an operation's kind.
        frame: Returns the attribute `frame_name` of an `Enter`.
    """
    entering: dict[Hashable, list[Each]] = collections.defaultdict(list)
    for each in before:
        if kind(each) in kinds.ENTERS:
            entering[frame(each)].append(each)
    found = {}
    for each in before:
        if kind(each) in kinds.EXITS:
            origin = each
            while kind(origin) not in kinds.ENTERS:  # by a Switch and a Merge
                origin = before[origin][0]
            found[each] = entering[frame(origin)]
    return found
