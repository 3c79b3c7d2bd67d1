"""How far two values are apart, and how much of that may be noise.

A difference counts where it is above

    16 · noise  +  256 · ε · s  +  16 · ε · S  +  8 · ε · m

with `noise` the largest relative difference that one device makes of itself, over all batches,
times s: by weights that are rounded otherwise, in the precision in which the value is computed,
and by another order of the rows as far as additions in another order make it (what makes more of
it depends on the order of rows); s the
largest number of the value on one device; S the largest s of all values of its kind, since what
cancels to zero leaves a rest of the size of what cancelled; m the largest number that the value
is a difference of (a weight, of which the change is compared); and ε the distance of the value's
dtype from 1 to the next number. Whole numbers, truths and texts have ε = 0.
"""

import collections
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.verification import races, runs

NOISE = 16.0
FLOOR = 256.0
OF_KIND = 16.0
ROUNDING = 8.0
# More than the order of additions makes, as a part of s: ε times this, or the ε of the precision
# in which a value is computed, times that.
ORDER = 8192.0
COMPUTED = 32.0


class Repeated(NamedTuple):
    """One device once more, with nothing but noise that makes other values.

    Attributes:
        reordered: What came out of each batch with its rows in another order, and the orders.
        rounded: What came out of each batch from weights that are rounded otherwise.
        computed: The ε of the precision in which values are computed; 0: that of variables.
    """

    reordered: list[tuple[list[runs.Outcome], list[npt.NDArray[Any]]]]
    rounded: list[list[runs.Outcome]]
    computed: float = 0.0


class Measure(NamedTuple):
    """One value after one batch, on one device and on K towers.

    Attributes:
        key: What it is.
        place: Which batch, for people.
        difference: The largest one between the towers and one device.
        noise: The largest one between one device and itself where only noise differs.
        order: The largest one between one device and itself with the rows in another order,
            where that matters to the value; else 0.
        scale: s, the largest number on one device.
        epsilon: ε.
        rounding: ε · m.
        reassociated: The most that additions in another order make of it.
        is_random: Whether it depends on random numbers, or on what does, and is left out.
        fault: What makes the values incomparable; empty where they can be compared.
        opened: What the model leaves open, if the value depends on that.
        is_open: Whether it is left out for that: both sides were not given the same order.
    """

    key: runs.Key
    place: str
    difference: float = math.inf
    noise: float = 0.0
    order: float = 0.0
    scale: float = 0.0
    epsilon: float = 0.0
    rounding: float = 0.0
    reassociated: float = 0.0
    is_random: bool = False
    fault: str = ""
    opened: tuple[races.Race, ...] = ()
    is_open: bool = False

    @property
    def is_compared(self) -> bool:
        """Whether a difference would say anything."""
        return not self.is_random and not self.is_open


def measure(
    key: runs.Key, place: str, i: int, one: runs.Quantity, towers: runs.Quantity, repeated: Repeated
) -> Measure:
    """Measures one value after one batch.

    Args:
        key: What it is.
        place: Which batch, for people.
        i: Which one, from 0.
        one: On one device.
        towers: On K towers, with all copies.
        repeated: One device, once more.
    """
    value = one.copies[0]
    least, size = epsilon(value), scale(value)
    reassociated = max(least * ORDER, repeated.computed * COMPUTED) * size
    by_order = [
        _apart(key, value, outcomes[i][key].copies[0], orders[i])
        for outcomes, orders in repeated.reordered
    ]
    by_rounding = [difference(value, outcomes[i][key].copies[0]) for outcomes in repeated.rounded]
    order = max(by_order, default=0.0)
    return Measure(
        key,
        place,
        difference=max(difference(value, copy) for copy in towers.copies),
        noise=max([*by_rounding, order if order <= reassociated else 0.0]),
        order=order if order > reassociated else 0.0,
        scale=size,
        epsilon=least,
        rounding=least * one.magnitude,
        reassociated=reassociated,
    )


def _apart(
    key: runs.Key, value: npt.NDArray[Any], other: npt.NDArray[Any], order: npt.NDArray[Any]
) -> float:
    """Returns what another order of the rows makes of a value; its rows are put back."""
    apart = difference(value, other)
    has_rows = np.shape(value)[:1] == (len(order),)
    if has_rows and key.what in (runs.PREDICTIONS, runs.EXPORTS):
        back = other[np.argsort(order)]
        apart = min(apart, difference(value, back))  # what has no rows may be as long
    return apart


class Noises:
    """The noise of all batches, joined.

    Args:
        measures: Of all batches.
    """

    def __init__(self, measures: Iterable[Measure]):
        # The largest of each key, as a part of the scale: by noise, and by the order of rows.
        self._relative: dict[runs.Key, float] = collections.defaultdict(float)
        self._orders: dict[runs.Key, float] = collections.defaultdict(float)
        self._scales: dict[str, float] = collections.defaultdict(float)  # S of each kind
        for one in measures:
            if one.is_compared and not one.fault and one.scale:
                key, what = one.key, one.key.what
                self._relative[key] = max(self._relative[key], one.noise / one.scale)
                self._orders[key] = max(self._orders[key], one.order / one.scale)
                self._scales[what] = max(self._scales[what], one.scale)

    def of(self, measure: Measure) -> float:
        """Returns the noise of a value, in its own unit."""
        return max(measure.noise, self._relative[measure.key] * measure.scale)

    def allowed(self, measure: Measure) -> float:
        """Returns the largest difference that does not count."""
        return NOISE * self.of(measure) + self._floor(measure)

    def _floor(self, measure: Measure) -> float:
        """Returns the largest difference that does not count where nothing makes noise."""
        floor = FLOOR * measure.scale + OF_KIND * self._scales[measure.key.what]
        return measure.epsilon * floor + ROUNDING * measure.rounding

    def counts(self, measure: Measure) -> bool:
        """Whether a difference is one."""
        return measure.is_compared and measure.difference > self.allowed(measure)

    def excess(self, measure: Measure) -> float:
        """Returns how often a difference is as large as is allowed, to be compared."""
        allowed = self.allowed(measure)
        return measure.difference / allowed if allowed else measure.difference

    def depends_on_order(self, measure: Measure) -> bool:
        """Whether another order of the rows makes as much of a difference."""
        order = max(measure.order, self._orders[measure.key] * measure.scale)
        return measure.difference <= NOISE * order + self._floor(measure)

    def depends_on_rounding(self, measure: Measure) -> bool:
        """Whether weights that are rounded otherwise make more than reassociation does.

        What cancels to a rest within the floor is all rounding, and is as it should be.
        """
        is_more = self.of(measure) > measure.reassociated
        return is_more and measure.difference > self._floor(measure)


# Arrays.


def rounded_otherwise(start: runs.Values, seed: int, computed: float = 0.0) -> runs.Values:
    """Returns values of variables, numbers with a fraction one rounding up or down.

    Args:
        start: The values by name.
        seed: Of what is up and what is down.
        computed: The least rounding, as a part of a number: ε, if that is larger than a value's.
    """
    drawn = np.random.RandomState(seed)
    made = {}
    for name, value in start.items():
        least = epsilon(np.asarray(value))
        if least and not tf.as_dtype(value.dtype).is_complex:
            least = max(least, computed)
            signs = drawn.choice([-1.0, 1.0], np.shape(value))
            value = np.asarray(value * (1.0 + least * signs), value.dtype)
        made[name] = value
    return made


def epsilon(value: npt.NDArray[Any]) -> float:
    """Returns ε of a value's dtype, 0 where it is no floating one."""
    return runs.epsilon(tf.as_dtype(value.dtype))


def scale(value: npt.NDArray[Any]) -> float:
    """Returns the largest number of a value that is finite; 1 for truths and texts."""
    numbers = _numbers(value)
    if numbers is None:
        return 1.0
    size = np.abs(numbers)
    return float(np.max(size[np.isfinite(size)], initial=0.0))


def difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Returns the largest difference of two values' numbers.

    Of truths and texts it is the part of them that differ; it is infinite where shapes
    differ, or one is a number where the other is none.
    """
    if one.shape != other.shape:
        return math.inf
    numbers, others = _numbers(one), _numbers(other)
    if numbers is None or others is None:
        return float(np.mean(one != other)) if one.size else 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(numbers - others)
        apart[(numbers == others) | (np.isnan(numbers) & np.isnan(others))] = 0.0
    apart[np.isnan(apart)] = np.inf
    return float(np.max(apart, initial=0.0))


def _numbers(value: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Returns an array in double precision; None for truths and texts."""
    dtype = tf.as_dtype(value.dtype)
    if dtype.is_complex:
        return np.atleast_1d(value.astype(np.complex128))
    if dtype.is_floating or dtype.is_integer:
        return np.atleast_1d(value.astype(np.float64))
    return None
