"""How far two values are apart, and how much of that may be noise.

A difference counts where it is above

    16 · noise  +  256 · ε · s  +  16 · ε · S  +  8 · ε · m

with `noise` the largest relative difference that another order of the rows makes on one
device, over all batches, times s; s the largest number of the value on one device; S the
largest s of all values of its kind, since what cancels to zero leaves a rest of the size
of what cancelled; m the largest number that the value is a difference of (a weight, of
which the change is compared); and ε the distance of the value's dtype from 1 to the next
number. Whole numbers, truths and texts have ε = 0.

Where one device runs from weights that are rounded otherwise, too, what another order of the
rows makes is noise only as far as additions in another order make it; else the order matters to
the value, and its noise is what the weights' rounding makes.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
        scale: s, the largest number on one device.
        rounding: ε · m.
        epsilon: ε.
        is_random: Whether it depends on random numbers, or on what does, and is left out.
        fault: What makes the values incomparable; empty where they can be compared.
        is_by_rounding: Whether the noise is that of rounding, whatever the order of rows makes.
        is_ordered: Whether the order of rows matters to it, which is not its noise then.
    """

    key: tracing.Key
    mode: str
    place: str
    difference: float
    noise: float
    scale: float
    rounding: float
    epsilon: float
    is_random: bool
    fault: str = ""
    is_by_rounding: bool = False
    is_ordered: bool = False


class Noises(NamedTuple):
    """What was measured of noise.

    Attributes:
        relative: For each key, the largest noise as a part of the scale.
        scales: For each kind, the largest scale S.
    """

    relative: dict
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

    def depends_on_order(self, measure: Measure) -> bool:
        """Whether another order of rows makes more than reassociation does."""
        return self.of(measure) > _reassociated(measure.epsilon, measure.scale)

    def depends_on_rounding(self, measure: Measure) -> bool:
        """Whether weights that are rounded otherwise make more than reassociation does.

        What cancels to a rest within the floor is all rounding, and is as it should be.
        """
        return self.depends_on_order(measure) and measure.difference > self.floor(measure)


def noises(measures: Iterable[Measure]) -> Noises:
    """Joins the noise of all batches."""
    relative: dict = {}
    scales: dict = {}
    for one in measures:
        if not one.is_random and not one.fault and np.isfinite(one.scale):
            part = one.noise / one.scale if one.scale else 0.0
            relative[one.key] = max(relative.get(one.key, 0.0), part)
            scales[one.key.what] = max(scales.get(one.key.what, 0.0), one.scale)
    return Noises(relative, scales)


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
    others = list(others)
    by_rounding = [difference(value, other.copies[0]) for other, order in others if order is None]
    by_order = [
        _apart(key, value, other.copies[0], order) for other, order in others if order is not None
    ]
    noise = max(by_order, default=0.0)
    least, size = epsilon(value), scale(value)
    is_ordered = bool(by_rounding) and noise > _reassociated(least, size)
    if by_rounding:
        noise = max(by_rounding) if is_ordered else max(noise, *by_rounding)
    found = max(difference(value, copy) for copy in towers.copies)
    return Measure(
        key,
        mode,
        place,
        found,
        noise,
        size,
        least * one.magnitude,
        least,
        is_random,
        is_by_rounding=bool(by_rounding),
        is_ordered=is_ordered,
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
    return Measure(key, mode, place, float("inf"), 0.0, 0.0, 0.0, 0.0, False, fault)


def is_apart(one: tracing.Quantity, other: tracing.Quantity | None) -> bool:
    """Whether a value is another one in a second run, by more than rounding."""
    if other is None:
        return True
    value = one.copies[0]
    floor = epsilon(value) * (FLOOR * scale(value) + ROUNDING * one.magnitude)
    return difference(value, other.copies[0]) > floor


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
        return float("inf")
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
