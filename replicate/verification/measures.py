"""How far two values are apart, and how much of that may be noise.

A difference counts where it is above

    16 · noise  +  256 · ε · s  +  16 · ε · S  +  8 · ε · m

with `noise` the largest relative difference that one device makes of itself, over all batches,
times s: by weights that are rounded otherwise, and by another order of the rows as far as
additions in another order make it (what makes more of it depends on the order of rows); s the
largest number of the value on one device; S the largest s of all values of its kind, since what
cancels to zero leaves a rest of the size of what cancelled; m the largest number that the value
is a difference of (a weight, of which the change is compared); and ε the distance of the value's
dtype from 1 to the next number. Whole numbers, truths and texts have ε = 0.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.verification import tracing

NOISE = 16.0
FLOOR = 256.0
OF_KIND = 16.0
ROUNDING = 8.0
ORDER = 8192.0  # ε times this, as a part of s, is more than the order of additions makes

_EPSILONS = {"bfloat16": 2.0**-7}


class Measure(NamedTuple):
    """One value after one batch, on one device and on K towers.

    Attributes:
        key: What it is.
        mode: The mode key.
        place: Which batch, for people.
        difference: The largest one between the towers and one device.
        noise: The largest one between one device and itself where only noise differs.
        order: The largest one between one device and itself with the rows in another order,
            where that matters to the value; else 0.
        scale: s, the largest number on one device.
        rounding: ε · m.
        epsilon: ε.
        is_random: Whether it depends on random numbers, or on what does, and is left out.
        fault: What makes the values incomparable; empty where they can be compared.
    """

    key: tracing.Key
    mode: str
    place: str
    difference: float
    noise: float
    order: float
    scale: float
    rounding: float
    epsilon: float
    is_random: bool
    fault: str = ""


class Noises(NamedTuple):
    """What was measured of noise.

    Attributes:
        relative: For each key, the largest noise as a part of the scale.
        orders: For each key, the same of what the order of rows makes.
        scales: For each kind, the largest scale S.
    """

    relative: dict
    orders: dict
    scales: dict

    def of(self, measure: Measure) -> float:
        """Returns the noise of a value, in its own unit."""
        return max(measure.noise, self.relative.get(measure.key, 0.0) * measure.scale)

    def allowed(self, measure: Measure) -> float:
        """Returns the largest difference that does not count."""
        return NOISE * self.of(measure) + self.floor(measure)

    def floor(self, measure: Measure) -> float:
        """Returns the largest difference that does not count where nothing makes noise."""
        of_kind = self.scales.get(measure.key.what, 0.0)
        floor = FLOOR * measure.scale + OF_KIND * of_kind
        return measure.epsilon * floor + ROUNDING * measure.rounding

    def counts(self, measure: Measure) -> bool:
        """Whether a difference is one."""
        if measure.fault:
            return True
        return not measure.is_random and measure.difference > self.allowed(measure)

    def depends_on_order(self, measure: Measure) -> bool:
        """Whether another order of the rows makes as much of a difference."""
        order = max(measure.order, self.orders.get(measure.key, 0.0) * measure.scale)
        return not measure.fault and measure.difference <= NOISE * order + self.floor(measure)

    def depends_on_rounding(self, measure: Measure) -> bool:
        """Whether weights that are rounded otherwise make more than reassociation does.

        What cancels to a rest within the floor is all rounding, and is as it should be.
        """
        is_shaken = self.of(measure) > _reassociated(measure.epsilon, measure.scale)
        return is_shaken and measure.difference > self.floor(measure)


def noises(measures: Iterable[Measure]) -> Noises:
    """Joins the noise of all batches."""
    found = Noises({}, {}, {})
    for one in measures:
        if not one.is_random and not one.fault and np.isfinite(one.scale):
            _raise(found.relative, one.key, one.noise / one.scale if one.scale else 0.0)
            _raise(found.orders, one.key, one.order / one.scale if one.scale else 0.0)
            _raise(found.scales, one.key.what, one.scale)
    return found


def _raise(largest: dict, key: Any, value: float) -> None:
    largest[key] = max(largest.get(key, 0.0), value)


def measure(
    key: tracing.Key,
    mode: str,
    place: str,
    one: tracing.Quantity,
    towers: tracing.Quantity,
    others: Iterable[tuple],
    is_random: bool,
) -> Measure:
    """Measures one value after one batch.

    Args:
        key: What it is.
        mode: The mode key.
        place: Which batch, for people.
        one: On one device.
        towers: On K towers, with all copies.
        others: Pairs of the value on one device with the rows in another order, and the
            order; None in its place: from weights that are rounded otherwise.
        is_random: Whether it depends on random numbers.
    """
    value = one.copies[0]
    least, size = epsilon(value), scale(value)
    by_order = by_rounding = 0.0
    for other, order in others:
        if order is None:
            by_rounding = max(by_rounding, difference(value, other.copies[0]))
        else:
            by_order = max(by_order, _apart(key, value, other.copies[0], order))
    is_ordered = by_order > _reassociated(least, size)
    return Measure(
        key,
        mode,
        place,
        difference=max(difference(value, copy) for copy in towers.copies),
        noise=by_rounding if is_ordered else max(by_rounding, by_order),
        order=by_order if is_ordered else 0.0,
        scale=size,
        rounding=least * one.magnitude,
        epsilon=least,
        is_random=is_random,
    )


def _apart(key: tracing.Key, value: np.ndarray, other: np.ndarray, order: np.ndarray) -> float:
    """Returns what another order of the rows makes of a value; its rows are put back."""
    apart = difference(value, other)
    has_rows = np.shape(value)[:1] == (len(order),)
    if has_rows and key.what in (tracing.PREDICTIONS, tracing.EXPORTS):
        back = other[np.argsort(order)]
        apart = min(apart, difference(value, back))  # what has no rows may be as long
    return apart


def _reassociated(least: float, size: float) -> float:
    """Returns the most that additions in another order make of a value."""
    return least * ORDER * size


def rounded_otherwise(start: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Returns values of variables, numbers with a fraction one rounding up or down.

    Args:
        start: The values by name.
        seed: Of what is up and what is down.
    """
    drawn = np.random.RandomState(seed)
    made = {}
    for name, value in start.items():
        least = epsilon(np.asarray(value))
        if least and not tf.as_dtype(value.dtype).is_complex:
            signs = drawn.choice([-1.0, 1.0], np.shape(value))
            value = np.asarray(value * (1.0 + least * signs), value.dtype)
        made[name] = value
    return made


def failed(key: tracing.Key, mode: str, place: str, fault: str) -> Measure:
    """Returns the measure of a value that only one side has."""
    return Measure(key, mode, place, math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, False, fault)


def epsilon(value: np.ndarray) -> float:
    """Returns ε of a value's dtype, 0 where it is no floating one."""
    dtype = tf.as_dtype(value.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return 0.0
    known = _EPSILONS.get(dtype.name)
    return float(np.finfo(value.dtype).eps) if known is None else known


def scale(value: np.ndarray) -> float:
    """Returns the largest number of a value that is finite; 1 for truths and texts."""
    numbers = _numbers(value)
    if numbers is None:
        return 1.0
    size = np.abs(numbers)
    return float(np.max(size[np.isfinite(size)], initial=0.0))


def difference(one: np.ndarray, other: np.ndarray) -> float:
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


def _numbers(value: np.ndarray) -> np.ndarray | None:
    """Returns an array in double precision; None for truths and texts."""
    dtype = tf.as_dtype(value.dtype)
    if dtype.is_complex:
        return np.atleast_1d(value.astype(np.complex128))
    if dtype.is_floating or dtype.is_integer:
        return np.atleast_1d(value.astype(np.float64))
    return None
