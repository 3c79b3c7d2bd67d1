"""How many workers a launched cluster has, and when: plain arithmetic, with a clock passed in.

A worker runs in a place. Its task, `chief:0` or `worker:1`, is the role that it has in one cluster:
the first of those that are up is the chief.
"""

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

# Seconds before a restart; each delay is twice the last, while restarts bring no progress.
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
# Seconds before a lost place is tried again; each absence is twice the last, if the place was lost
# again within the longest one.
FIRST_ABSENCE, LONGEST_ABSENCE = 30.0, 600.0
_RESTARTS = 10


class Size(NamedTuple):
    """How many workers a cluster has.

    Attributes:
        least: How many it needs.
        most: How many it begins with, and becomes again.
    """

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        """Whether it always has the same number."""
        return self.least == self.most

    @property
    def restarts(self) -> int:
        """How many restarts there may be where nothing else is wanted."""
        return 0 if self.is_fixed else _RESTARTS


@dataclasses.dataclass(eq=False)
class _Place:
    """Where one worker runs.

    Attributes:
        since: When a worker was last put there.
        absence: How many seconds it stays empty; 0: no worker was lost there.
        back: When that is over.
    """

    since: float
    absence: float = 0.0
    back: float = 0.0

    def lose(self, now: float) -> None:
        """Takes note that its worker is lost."""
        is_again = self.absence and now < self.since + LONGEST_ABSENCE
        self.absence = min(2 * self.absence, LONGEST_ABSENCE) if is_again else FIRST_ABSENCE
        self.back = now + self.absence


class Places:
    """The places of workers: which are up, and when those that are out may return.

    Args:
        size: How many there are.
        restarts: How often all workers may be started again because one is lost.
        step: The step of the last checkpoint; None: there is none.
        clock: Returns seconds.

    Attributes:
        restarts: How many restarts there were.
    """

    def __init__(
        self,
        size: Size,
        restarts: int,
        step: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.restarts = 0
        self._least = size.least
        self._most_restarts = restarts
        self._clock = clock
        self._up = [_Place(clock()) for _ in range(size.most)]
        self._out: list[_Place] = []
        self._delay = FIRST_DELAY
        self._step = step

    def __len__(self) -> int:
        """Returns how many are up."""
        return len(self._up)

    @property
    def may_restart(self) -> bool:
        """Whether a restart is left."""
        return self.restarts < self._most_restarts

    def lose(self, which: Collection[int], step: int | None) -> float:
        """Takes note of a loss; returns how many seconds later the others are to be started.

        With enough of them it is at once. Else lost places are tried again, after a delay that is
        longer if the last restart brought no progress.

        Args:
            which: The numbers of the places that are lost, among those that are up; none: what is
                lost is no worker.
            step: The step of the last checkpoint; None: there is none.
        """
        self.restarts += 1
        self._delay = self._delay if step == self._step else FIRST_DELAY
        self._step = step
        now = self._clock()
        lost = [self._up[number] for number in sorted(which)]
        for place in lost:
            place.lose(now)
        self._up = [place for place in self._up if place not in lost]
        self._out += lost
        delay = 0.0
        if not lost or len(self._up) < self._least:
            delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY)
        begin = now + delay
        self._put_up(sorted(self._out, key=lambda place: place.back)[: self._missing], begin)
        return delay

    @property
    def is_one_due(self) -> bool:
        """Whether a place that is out may return."""
        return any(place.back <= self._clock() for place in self._out)

    def take_in(self) -> None:
        """Puts workers where they may return, behind those that are up."""
        now = self._clock()
        self._put_up([place for place in self._out if place.back <= now], now)

    @property
    def _missing(self) -> int:
        return max(self._least - len(self._up), 0)

    def _put_up(self, places: Collection[_Place], begin: float) -> None:
        """Puts workers in places; all begin at some time."""
        for place in places:
            place.since = begin
        self._up += places
        self._out = [place for place in self._out if place not in places]
        for place in self._out:  # what has just begun is not ended for a newcomer
            place.back = max(place.back, begin + FIRST_ABSENCE)
