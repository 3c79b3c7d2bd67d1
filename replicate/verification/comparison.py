"""`verify`: the same batches through one device and through K towers."""

import collections
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.verification import inputs, judgement, measures, races, runs, subjects

MODES = (types.TRAIN, types.EVAL, types.PREDICT)

_ALONE = (
    "One device is replicate_model_fn on one device here: TensorFlow alone has no "
    "accumulate_steps or clip_global_norm, or makes other variables of this model."
)
_DRAWN = "Random numbers ({names}) are the same on both sides, so all values are compared."
_RANDOM = "Random numbers ({names}) are each tower's own; values that depend on them are left out."
_SHOWN = 2  # operations in one line
_REPEATS = 2  # runs from weights that are rounded otherwise
# And where something differs: what is within rounding of an edge, as a rectifier's, goes to its
# other side in a part of them only.
_MORE_REPEATS = 16


def verify(
    model_fn: types.ModelFn,
    input_fn: types.Function,
    *,
    optimizer_fn: types.OptimizerFn | None = None,
    devices: Sequence[str] | int | None = None,
    params: Any = None,
    config: types.RunConfig | None = None,
    steps: int = 2,
    watch: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> judgement.Verification:
    """Compares K towers with one device, on a model_fn and its data.

    One device is TensorFlow alone: the model_fn as an Estimator calls it, with the optimizer
    of `optimizer_fn` in it. Both sides start from the same weights and see the same batches:
    as they come, then cut to a size that K does not divide, to fewer rows than towers and to
    one row. The noise is measured on one device, with the rows in other orders and from weights
    that are rounded otherwise. With `tower_building="split"` the towers draw the random numbers
    of one device, and all is compared; with `"call"` what depends on them is left out. All of it
    happens in graphs of its own: nothing is trained and nothing written. Hooks of the model do
    not run; its `config` has a temporary `model_dir`.

    Args:
        model_fn: Any Estimator model_fn.
        input_fn: Returns a `tf.data.Dataset` of features, or of pairs with labels, or the
            tensors. It may name `params`, `config` and `mode`.
        optimizer_fn: See `replicate_model_fn`.
        devices: Likewise. All of them must exist.
        params: For the model_fn.
        config: A `RunConfig`, for the model_fn and the sessions.
        steps: How many batches are trained on one after the other.
        watch: Is told, on the way, how many comparisons are done and how many there are.
        **options: Of `replicate_model_fn`.

    Returns:
        A `Verification`: `holds`, a row for each kind of value, a table as its text.

    Raises:
        DeviceError: If a device does not exist.
        BatchError: If the input_fn gives no batch, or features and labels that disagree.
        ValueError: If an option has no such value.
        Exception: What the model raises on one device in training, where there are labels,
            or in all modes; another mode that it lacks is not compared.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is 1 or more; got {steps!r}. Leave it out for 2.")
    params = {} if params is None else params
    workers = subjects.worker_devices(devices, options.get("strategy"))
    repeats = options.get("accumulate_steps", 1)
    with tempfile.TemporaryDirectory() as model_dir:
        config = subjects.run_config(config, model_dir)
        subject = subjects.Subject(model_fn, optimizer_fn, params, config)
        sides = subjects.sides(subject, devices, options, workers)
        session_config = subjects.session_config(config)
        offered = {"params": params, "config": config, "mode": types.TRAIN}
        form, batches = inputs.read(input_fn, offered, steps * repeats, session_config)
        rounds = inputs.rounds(batches, len(workers), repeats)
        start: runs.Values = {}
        modes = {mode: _Mode(mode, sides, form, session_config, start) for mode in MODES}
        total = len(modes) * len(rounds)
        for i, (mode, one_round) in enumerate(itertools.product(modes.values(), rounds)):
            mode.compare(one_round)
            watch(i + 1, total)
    sizes = dict.fromkeys(inputs.row_count(batch) for one in rounds for batch in one.batches)
    notes = [note for mode in modes.values() for note in mode.notes]
    if len(workers) == 1:
        notes.append("There is one tower: nothing is split. Name more devices.")
    rows = _judged(modes, sides)
    return judgement.Verification(rows, workers, tuple(sizes), tuple(judgement.once(notes)))


def _judged(modes: dict[str, "_Mode"], sides: subjects.Sides) -> tuple[judgement.Row, ...]:
    """Judges what was measured in all modes.

    Raises:
        Exception: What one device raised first, where it could do nothing.
    """
    measured = [one for mode in modes.values() for one in mode.measures]
    lacking = {name: mode for name, mode in modes.items() if not mode.measures}
    failed = {name: mode.error for name, mode in lacking.items() if mode.error is not None}
    if not measured:
        raise next(iter(failed.values()))
    return judgement.judge(measured, failed, sides)


class _Mode:
    """All comparisons of one mode.

    Args:
        mode: The mode key.
        sides: One device and the towers.
        form: Of the batches.
        session_config: Of the sessions.
        start: Values that variables start from; the first run adds to it.

    Attributes:
        measures: What was measured so far.
        notes: What else there is to know about this mode.
        error: What one device raised first; None where it never did.
    """

    def __init__(
        self,
        mode: str,
        sides: subjects.Sides,
        form: inputs.Form,
        session_config: tf1.ConfigProto,
        start: runs.Values,
    ):
        self._mode, self._sides, self._form = mode, sides, form
        self._session_config, self._start = session_config, start
        self._built: dict[tuple[str, int | None], runs.Built] = {}
        self.measures: list[measures.Measure] = []
        self.notes: list[str] = []
        self.error: Exception | None = None

    def compare(self, one_round: inputs.Round) -> None:
        """Runs a round on both sides and measures what came out.

        Where one device cannot do it either, that is noted; where the towers alone cannot,
        it is a difference.

        Raises:
            Exception: What the model raises in training, where there are labels: then it should
                train.
        """
        row_count = inputs.row_count(one_round.batches[0])
        try:
            one = self._one_device(row_count)
            outcomes = one.run(one_round.batches, self._start)
        except Exception as e:  # whatever a model raises that lacks this mode
            if self._mode == types.TRAIN and not self.measures and self._form.has_labels():
                raise
            if self.error is None:
                self.error = e
                self._note_failure(one_round, "one device raises", e)
            return
        try:
            replicated = self._build("towers", row_count)
            towers = replicated.run(one_round.batches, self._start)
        except Exception as e:  # noqa: BLE001 - whatever a model raises when it is replicated
            self.measures += self._faults(one_round, outcomes, e)
            return
        drawing = one.drawing()
        is_random, opened = self._random_keys(one, drawing), _opened(one, replicated)
        repeated = self._repeated(one, one_round, bool(drawing))

        def measured() -> list[measures.Measure]:
            found: list[measures.Measure] = []
            for i, outcome in enumerate(outcomes):
                noisy = functools.partial(repeated.after, i)
                place = _place(one_round, i)
                found += _measures(place, outcome, towers[i], noisy, is_random)
            return list(map(opened.marked, found))

        found = measured()
        noises = measures.Noises([*self.measures, *found])
        if any(not one.fault and noises.counts(one) for one in found):
            self._round(one, one_round, repeated, _MORE_REPEATS)
            found = measured()
        self.measures += found

    def _build(self, side: str, row_count: int) -> runs.Built:
        """Builds a side of the model, once for each batch size that its graph knows."""
        key = (side, row_count if self._form.is_static() else None)
        if key not in self._built:
            build, config = getattr(self._sides, side), self._session_config
            is_one = side != "towers"
            self._built[key] = runs.Built(build, self._form, row_count, self._mode, config, is_one)
        return self._built[key]

    def _one_device(self, row_count: int) -> runs.Built:
        """Returns what the towers are compared with."""
        if self._mode != types.TRAIN or not self._sides.is_through_replication:
            one = self._build("one", row_count)
            names = self._names("towers", row_count)
            is_same = names in (None, one.variable_names)
            if is_same or self._names("alone", row_count) != names:
                return one
        self._note(_ALONE)
        return self._build("alone", row_count)

    def _names(self, side: str, row_count: int) -> frozenset[str] | None:
        """Returns the names of a side's variables; None where it cannot be built."""
        try:
            return self._build(side, row_count).variable_names
        except Exception:  # noqa: BLE001 - told where the side is run
            return None

    def _repeated(self, one: runs.Built, one_round: inputs.Round, draws: bool) -> "_Repeated":
        """Runs one device so that noise alone makes other values.

        The rows are in other orders, unless each is drawn numbers for; or weights are rounded
        otherwise, in each precision in which values are computed.
        """
        reordered = []
        for orders in () if draws else _orders(one_round):
            pairs = zip(one_round.batches, orders, strict=True)
            batches = [[inputs.take(leaf, order) for leaf in batch] for batch, order in pairs]
            reordered.append((one.run(batches, self._start), orders))
        repeated = _Repeated(reordered, collections.defaultdict(list), one.precisions())
        self._round(one, one_round, repeated, _REPEATS)
        return repeated

    def _round(
        self, one: runs.Built, one_round: inputs.Round, repeated: "_Repeated", number: int
    ) -> None:
        """Runs one device from more weights that are rounded otherwise, in each precision."""
        for least in sorted(set(repeated.computed.values())):
            found = repeated.rounded[least]
            for seed in range(len(found), len(found) + number):
                start = measures.rounded_otherwise(self._start, seed, least)
                found.append(one.run(one_round.batches, start))

    def _random_keys(self, one: runs.Built, drawing: list[tf.Operation]) -> set[runs.Key]:
        """Returns what depends on random numbers that towers draw for themselves."""
        is_split = self._sides.is_split
        found = set() if is_split else one.reached_from(drawing)
        if drawing and (found or is_split):
            names = ", ".join(op.name for op in drawing[:_SHOWN])
            more = ", ..." if len(drawing) > _SHOWN else ""
            self._note((_DRAWN if is_split else _RANDOM).format(names=names + more))
        return found

    def _faults(
        self, one_round: inputs.Round, outcomes: list[runs.Outcome], error: Exception
    ) -> Iterator[measures.Measure]:
        """Yields a difference for each kind of value that one device gave."""
        if not any(measure.fault for measure in self.measures):
            self._note_failure(one_round, "the towers raise", error)
        fault = f"the towers raise {type(error).__name__}"
        for what in dict.fromkeys(key.what for key in outcomes[-1]):
            yield measures.failed(runs.Key(what, self._mode), _place(one_round, 0), fault)

    def _note_failure(self, one_round: inputs.Round, who: str, error: Exception) -> None:
        mode = runs.MODE_NAMES[self._mode]
        told = f"{type(error).__name__}: {messages.first_lines(error).rstrip('.')}"
        self._note(f"In {mode}, with batches {one_round.label}, {who} {told}.")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class _Repeated(NamedTuple):
    """One device once more, with nothing but noise that makes other values.

    Attributes:
        reordered: What came out of each batch with its rows in another order, and the orders.
        rounded: What came out of each batch from weights that are rounded otherwise, by how
            much at least.
        computed: The precisions in which values are computed, as `runs.Built.precisions`.
    """

    reordered: list[tuple[list[runs.Outcome], list[npt.NDArray[Any]]]]
    rounded: dict[float, list[list[runs.Outcome]]]
    computed: dict[runs.Key, float]

    def after(self, i: int, key: runs.Key) -> measures.Noisy:
        """Returns one value after batch i."""
        computed = self.computed[key]
        return measures.Noisy(
            [(outcomes[i][key], orders[i]) for outcomes, orders in self.reordered],
            [outcomes[i][key] for outcomes in self.rounded[computed]],
            computed,
        )


class _Opened(NamedTuple):
    """What depends on an order that the model leaves open.

    Attributes:
        races: What is open.
        keys: What depends on it.
        left: What of that cannot be compared: both sides were not given the same order.
    """

    races: tuple[races.Race, ...]
    keys: set[runs.Key]
    left: set[runs.Key]

    def marked(self, measure: measures.Measure) -> measures.Measure:
        """Returns a measure with what the model leaves open of it."""
        if measure.key not in self.keys:
            return measure
        return measure._replace(opened=self.races, is_open=measure.key in self.left)


def _opened(one: runs.Built, towers: runs.Built) -> _Opened:
    """Returns what depends on an order that the model leaves open.

    Args:
        one: One device.
        towers: The towers, which read first as well, unless nothing is split there.
    """
    left = [race for race in one.races if towers.races or not race.is_settled]
    keys, is_open = (
        one.reached_from([source for race in found for source in race.sources()])
        for found in (one.races, left)
    )
    return _Opened(tuple(one.races), keys, is_open)


def _orders(one_round: inputs.Round) -> Iterator[list[npt.NDArray[Any]]]:
    """Yields other orders of the rows of each batch: the reverse, and a drawn one."""
    counts = list(map(inputs.row_count, one_round.batches))
    yield [np.arange(count)[::-1] for count in counts]
    drawn = np.random.RandomState(0)
    yield [drawn.permutation(count) for count in counts]


def _place(one_round: inputs.Round, i: int) -> str:
    count = inputs.row_count(one_round.batches[i])
    return f"batch {i + 1} of {count} row{'' if count == 1 else 's'}"


def _measures(
    place: str,
    one: runs.Outcome,
    towers: runs.Outcome,
    noisy: Callable[[runs.Key], measures.Noisy],
    is_random: set[runs.Key],
) -> Iterator[measures.Measure]:
    """Measures all values of one batch."""
    for key, value in one.items():
        if key in towers:
            random = key in is_random
            yield measures.measure(key, place, value, towers[key], noisy(key), random)
        else:
            yield measures.failed(key, place, f"the towers have no {key.name}")
    for key in towers:
        if key not in one:
            yield measures.failed(key, place, f"only the towers have {key.name}")
