"""One mode of a model, on one device and over K towers, round by round."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from replicate import types
from replicate.verification import (
    batches,
    explanations,
    inputs,
    measures,
    randomness,
    subjects,
    tracing,
)

_ALONE = (
    "One device is replicate_model_fn on one device here: TensorFlow alone has no "
    "accumulate_steps, clip_global_norm or second optimizer, and partitions variables."
)
_SHOWN = 2  # random operations in one line
_REPEATS = 2  # runs that measure the noise


class Comparison:
    """All comparisons of one mode.

    Args:
        sides: One device and the towers.
        form: Of the batches.
        mode: The mode key.
        session_config: Of the sessions.
        start: Values that variables start from, by name; the first run adds to it.

    Attributes:
        measures: What was measured so far.
        error: What one device raised first; None where it never did.
    """

    def __init__(
        self,
        sides: subjects.Sides,
        form: inputs.Form,
        mode: str,
        session_config: Any,
        start: dict[str, np.ndarray],
    ):
        self._sides = sides
        self._form = form
        self._mode = mode
        self._session_config = session_config
        self._start = start
        self._traces: dict[tuple, tracing.Trace] = {}
        self._notes: list[str] = []
        self._row_count = 1  # of the largest batch that one device could run
        self.measures: list[measures.Measure] = []
        self.error: Exception | None = None

    def compare(self, one_round: batches.Round) -> None:
        """Runs a round on both sides and measures what came out.

        Where one device cannot do it either, that is noted; where the towers alone cannot,
        it is a difference.
        """
        row_count = batches.row_count(one_round.batches[0])
        try:
            one = self._one_device(row_count)
            outcomes = one.run(one_round.batches, self._start)
        except Exception as e:  # noqa: BLE001 - whatever a model raises that lacks this mode
            self._note_missing(one_round, e)
            return
        self._row_count = max(self._row_count, row_count)
        try:
            found = self._trace("towers", row_count).run(one_round.batches, self._start)
        except Exception as e:  # noqa: BLE001 - whatever a model raises when it is replicated
            self.measures += self._faults(one_round, outcomes, e)
            return
        drawing = randomness.operations(one)
        is_random = self._random_keys(one, drawing)
        others = list(self._others(one, one_round, bool(drawing)))
        for i, outcome in enumerate(outcomes):
            noisy = [(run[i], orders[i]) for run, orders in others]
            place = _place(one_round, i)
            self.measures += _measures(outcome, found[i], noisy, is_random, self._mode, place)

    def _others(self, one: tracing.Trace, one_round: batches.Round, draws: bool) -> Iterator[tuple]:
        """Runs one device so that noise alone makes other values; yields them with the orders.

        The rows are in other orders, unless each is drawn numbers for; or weights are rounded
        otherwise.
        """
        for kind in range(0 if draws else _REPEATS):
            orders = _orders(one_round, kind)
            yield one.run(_reordered(one_round, orders), self._start), orders
        for kind in range(_REPEATS):
            start = measures.rounded_otherwise(self._start, kind)
            yield one.run(one_round.batches, start), [None] * len(one_round.batches)

    def _trace(self, side: str, row_count: int) -> tracing.Trace:
        """Builds a side of the model, once for each batch size that its graph knows."""
        key = (side, row_count if self._form.is_static() else None)
        if key not in self._traces:
            build = getattr(self._sides, side)
            self._traces[key] = tracing.Trace(
                build, self._form, row_count, self._mode, self._session_config
            )
        return self._traces[key]

    def _one_device(self, row_count: int) -> tracing.Trace:
        """Returns what the towers are compared with."""
        if self._mode != types.TRAIN or not self._sides.is_through_replication:
            one = self._trace("one", row_count)
            names = self._names("towers", row_count)
            is_same = names in (None, one.variable_names)
            if is_same or self._names("alone", row_count) != names:
                return one
        self._note(_ALONE)
        return self._trace("alone", row_count)

    def _names(self, side: str, row_count: int) -> frozenset | None:
        """Returns the names of a side's variables; None where it cannot be built."""
        try:
            return self._trace(side, row_count).variable_names
        except Exception:  # noqa: BLE001 - told where the side is run
            return None

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _note_missing(self, one_round: batches.Round, error: Exception) -> None:
        if self.error is None:
            self.error = error
            self._note_failure(one_round, "one device raises", error)

    def _note_failure(self, one_round: batches.Round, who: str, error: Exception) -> None:
        mode = tracing.MODE_NAMES[self._mode]
        self._note(f"In {mode}, with batches {one_round.label}, {who} {_text(error)}.")

    def _faults(self, one_round, outcomes, error) -> Iterator[measures.Measure]:
        """Returns a difference for each kind of value that one device gave."""
        if not any(measure.fault for measure in self.measures):
            self._note_failure(one_round, "the towers raise", error)
        for what in dict.fromkeys(key.what for key in outcomes[-1]):
            key = tracing.Key(what, self._mode)
            fault = f"the towers raise {type(error).__name__}"
            yield measures.failed(key, self._mode, _place(one_round, 0), fault)

    def _random_keys(self, one: tracing.Trace, drawing: Sequence) -> set[tracing.Key]:
        """Returns what depends on random numbers that towers draw for themselves."""
        is_split = self._sides.is_split
        found = set() if is_split else randomness.reached(one, drawing)
        if drawing and (found or is_split):
            names = ", ".join(op.name for op in drawing[:_SHOWN])
            text = explanations.DRAWN if is_split else explanations.RANDOM
            self._note(text.format(names=names + (", ..." if len(drawing) > _SHOWN else "")))
        return found

    def explain(self, measure: measures.Measure) -> Iterable[str]:
        """Returns what is known to make such a difference, and is in this model."""
        if measure.fault:
            return ()
        if self._sides.is_split:
            return (explanations.SPLIT,)
        one = self._trace("one", self._row_count)
        return explanations.of_towers(one, measure.key.what, *self._sides.joined)

    def notes(self) -> list[str]:
        """Returns what else there is to know about this mode."""
        return self._notes


def _text(error: Exception) -> str:
    lines = [line for line in str(getattr(error, "message", None) or error).splitlines() if line]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else ''}"


def _place(one_round: batches.Round, i: int) -> str:
    count = batches.row_count(one_round.batches[i])
    return f"batch {i + 1} of {count} row{'' if count == 1 else 's'}"


def _orders(one_round: batches.Round, kind: int) -> list[np.ndarray]:
    """Returns another order of the rows for each batch: the reverse, and a drawn one."""
    counts = [batches.row_count(batch) for batch in one_round.batches]
    if kind == 0:
        return [np.arange(count)[::-1] for count in counts]
    drawn = np.random.RandomState(0)
    return [drawn.permutation(count) for count in counts]


def _reordered(one_round: batches.Round, orders: Sequence[np.ndarray]) -> list[list]:
    pairs = zip(one_round.batches, orders, strict=True)
    return [batches.reordered(batch, order) for batch, order in pairs]


def _measures(one, towers, noisy, is_random, mode, place) -> Iterator[measures.Measure]:
    """Measures all values of one batch."""
    for key, quantity in one.items():
        found = towers.get(key)
        if found is None:
            fault = f"the towers have no {key.name}"
            yield measures.failed(key, mode, place, fault)
        else:
            others = [(run.get(key), order) for run, order in noisy]
            yield measures.measure(key, mode, place, quantity, found, others, key in is_random)
    for key in towers:
        if key not in one:
            yield measures.failed(key, mode, place, f"only the towers have {key.name}")
