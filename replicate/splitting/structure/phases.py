"""Parts of one device take turns: what of a part may wait until the part before is done.

Where values of several parts become one, and parts read that, a *phase* of the parts ends. Each
operation belongs to the last phase in which it can be: what is counted over all rows for a loss
comes before the forward pass, which only the gradients behind that number need. In each phase parts
take turns. What is made of several parts belongs to the phase of the first part that reads it, so
that an order by phases, and in these by parts, has no circle.
"""

import collections
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Each = TypeVar("Each", bound=Hashable)


class Turn(NamedTuple):
    """What a part computes in a phase.

    Attributes:
        part: The part; None: no part's own.
        phase: The phase, from 0.
    """

    part: int | None
    phase: int


class Kind(NamedTuple):
    """What is alike in operations of which one may wait for another one.

    Attributes:
        phase: The phase.
        bits: What else is.
    """

    phase: int
    bits: int


class Phases(Generic[Each]):
    """The phases of a graph's parts.

    Args:
        before: For each operation those that it comes after, each of them before it; no circles.
        parts: Of operations that are a part's own the number of the part.
        may_join: Whether another operation may belong to the part that alone reads it.
        aside: What no step runs, as a summary: no part waits for it.

    Attributes:
        parts: As given, with what a part alone reads.
    """

    def __init__(
        self,
        before: dict[Each, Sequence[Each]],
        parts: dict[Each, int],
        may_join: Callable[[Each], bool],
        aside: Collection[Each] = (),
    ):
        before = {
            each: [one for one in others if one not in aside]
            for each, others in before.items()
            if each not in aside
        }
        self._before = before
        self._users: dict[Each, list[Each]] = collections.defaultdict(list)
        for each, others in before.items():
            for other in others:
                self._users[other].append(each)
        self.parts = {each: part for each, part in parts.items() if each in before}
        for each in reversed(before):
            readers = {self.parts.get(user) for user in self._users[each]}
            part = readers.pop() if len(readers) == 1 else None
            if part is not None and each not in self.parts and may_join(each):
                self.parts[each] = part
        self._of = self._find()
        self._number = max(self._of.values(), default=-1) + 1

    def turn(self, each: Each) -> Turn:
        """Returns when an operation runs; what no step runs is behind all phases."""
        return Turn(self.parts.get(each), self._of.get(each, self._number))

    def _find(self) -> dict[Each, int]:
        if not self.parts:
            return {}
        first: dict[Each, int] = {}
        for each, others in self._before.items():
            first[each] = max((first[one] + self._leaves(one, each) for one in others), default=0)
        last, found = max(first[each] for each in self.parts), dict[Each, int]()
        for each in reversed(self._before):
            found[each] = min(
                (found[user] - self._leaves(each, user) for user in self._users[each]),
                default=last + (each not in self.parts),
            )
        return found

    def _leaves(self, each: Each, user: Each) -> bool:
        """Whether a value of a part is read by what is not the part's."""
        return each in self.parts and self.parts.get(user) != self.parts[each]

    def begins(self, each: Each) -> bool:
        """Whether an operation reads nothing that its part makes in the same phase."""
        return all(self.turn(other) != self.turn(each) for other in self._before[each])

    def ends(self, each: Each) -> bool:
        """Whether nothing that its part makes in the same phase reads an operation."""
        return all(self.turn(user) != self.turn(each) for user in self._users[each])

    def in_turn(
        self, number: int, bits_of: Callable[[Each], int | None]
    ) -> Iterator[tuple[int, Kind, list[Each], list[Each]]]:
        """Yields what waits for what: of each part that another one follows on its device.

        Args:
            number: How many parts each device has.
            bits_of: Returns what is alike in operations that may wait for each other; None: an
                operation waits for none, and none for it.

        Yields:
            The part, what else is alike, the ends of a phase, and the next part's begins.
        """
        ends: dict[tuple[int, Kind], list[Each]] = collections.defaultdict(list)
        begins: dict[tuple[int, Kind], list[Each]] = collections.defaultdict(list)
        for each, part in self.parts.items():
            bits = bits_of(each)
            if bits is not None:
                kind = Kind(self.turn(each).phase, bits)
                ends[part, kind] += [each] * self.ends(each)
                begins[part, kind] += [each] * self.begins(each)
        for (part, kind), found in ends.items():
            following = begins.get((part + 1, kind))
            if found and following and (part + 1) % number:
                yield part, kind, found, following

    def held(
        self,
        origins: Container[Each],
        size_of: Callable[[Each], int],
        bits_of: Callable[[Each], int],
    ) -> list[tuple[Each, Each]]:
        """Returns what the first part makes and keeps until all parts have come to one point.

        Args:
            origins: Whatever is made of these is worth telling.
            size_of: How much an operation makes.
            bits_of: See `in_turn`.

        Returns:
            Each kept value with an operation that wants it in a later phase, or behind more bits;
            nothing if that is less than a tenth of what the part makes.
        """
        behind: set[Each] = set()
        kept: dict[Each, Each] = {}
        made: dict[Each, int] = {}
        for each, others in self._before.items():
            if each in origins or not behind.isdisjoint(others):
                behind.add(each)
                if self.parts.get(each) == 0:
                    made[each] = size_of(each)
        for each in filter(made.get, made):
            for user in self._users[each]:
                is_later = self._of[user] > self._of[each] or bits_of(user) & ~bits_of(each)
                if is_later and self.parts.get(user) == 0:
                    kept[each] = user
        is_much = 10 * sum(map(made.__getitem__, kept)) >= sum(made.values())
        return list(kept.items()) if is_much else []

    def end(self, each: Each) -> Each:
        """Returns the operation by which one of a part goes into what is made of several parts."""
        while not any(self._leaves(each, user) for user in self._users[each]):
            turn = self.turn(each)
            each = next(user for user in self._users[each] if self.turn(user) == turn)
        return each
