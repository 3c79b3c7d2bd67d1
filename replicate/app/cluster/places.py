"""How many workers a launched cluster has, and when: plain arithmetic."""

import time
from typing import NamedTuple

# Seconds before a restart, and before lost workers may return; twice as many with each restart.
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
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


class Places:
    """How many workers are up, and when lost ones may return.

    Args:
        size: How many there are.

    Attributes:
        up: How many are up.
        restarts: How many restarts there were.
    """

    def __init__(self, size: Size):
        self.up = size.most
        self.restarts = 0
        self._size = size
        self._back = time.monotonic()

    def lose(self, count: int) -> float:
        """Takes note of lost workers; returns how many seconds later all others are to be started.

        With enough of them it is at once. Else, and if no worker is lost but another process, lost
        ones are tried again.
        """
        growth = 2.0**self.restarts
        self.restarts += 1
        is_enough = count > 0 and self.up - count >= self._size.least
        delay = 0.0 if is_enough else min(FIRST_DELAY * growth, LONGEST_DELAY)
        self.up = max(self.up - count, self._size.least)
        self._back = time.monotonic() + delay + min(FIRST_ABSENCE * growth, LONGEST_ABSENCE)
        return delay

    @property
    def is_one_due(self) -> bool:
        """Whether workers that were lost may return."""
        return self.up < self._size.most and self._back <= time.monotonic()

    def take_in(self) -> None:
        """Lets all return that were lost."""
        self.up = self._size.most
