"""`verify`: the same batches through one device and through K towers."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import types
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
    repeats, parts = options.get("accumulate_steps", 1), options.get("micro_batches", 1)
    with tempfile.TemporaryDirectory() as model_dir:
        config = subjects.run_config(config, model_dir)
        given = {"params": params, "config": config}
        sides = subjects.sides(model_fn, optimizer_fn, devices, options, workers, **given)
        settings, offered = config.session_config, {**given, "mode": types.TRAIN}
        form, batches = inputs.read(input_fn, offered, steps * repeats, settings)
        rounds = inputs.rounds(form, batches, len(workers) * parts, repeats, settings)
        start: runs.Values = {}
        modes = [_Mode(mode, sides, form, config, start) for mode in MODES]
        for i, (mode, one_round) in enumerate(itertools.product(modes, rounds)):
            mode.compare(one_round)
            watch(i + 1, len(modes) * len(rounds))
    sizes = dict.fromkeys(batch.row_count for one in rounds for batch in one.batches)
    notes = [note for mode in modes for note in mode.notes]
    if len(workers) * parts == 1:
        notes.append("There is one tower: nothing is split. Name more devices.")
    measured = [one for mode in modes for one in mode.measures]
    failed = {mode.mode: mode.error for mode in modes if mode.error and not mode.measures}
    if not measured:
        raise next(iter(failed.values()))
    rows = judgement.judge(measured, failed, sides)
    return judgement.Verification(rows, workers, tuple(sizes), tuple(dict.fromkeys(notes)))


class _Mode:
    """All comparisons of one mode.

    Args:
        mode: The mode key.
        sides: One device and the towers.
        form: Of the batches.
        config: The RunConfig.
        start: Values that variables start from; the first run adds to it.

    Attributes:
        mode: The mode key.
        measures: What was measured so far.
        notes: What else there is to know about this mode.
        error: What one device raised first; None where it never did.
    """

    def __init__(
        self,
        mode: str,
        sides: subjects.Sides,
        form: inputs.Form,
        config: types.RunConfig,
        start: runs.Values,
    ):
        self.mode = mode
        self._sides, self._form, self._config, self._start = sides, form, config, start
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
        try:
            one = self._one_device(one_round.batches[0].row_count)
            outcomes = one.run(one_round.batches, self._start)
        except Exception as e:  # whatever a model raises that lacks this mode
            if self.mode == types.TRAIN and not self.measures and self._form.has_labels():
                raise
            if self.error is None:
                self.error = e
                self._note_failure(one_round, "one device raises", e)
            return
        try:
            replicated = self._build("towers", one_round.batches[0].row_count)
            towers = replicated.run(one_round.batches, self._start)
        except Exception as e:  # noqa: BLE001 - whatever a model raises when it is replicated
            self.measures += self._faults(one_round, outcomes, e)
            return
        mark = _marking(one, replicated, self._random_keys(one))
        repeated = self._repeated(one, one_round)
        measured = [mark(each) for each in _measured(one_round, outcomes, towers, repeated)]
        noises = measures.Noises([*self.measures, *measured])
        if any(not each.fault and noises.counts(each) for each in measured):
            self._round(repeated, one, one_round, _MORE_REPEATS)
            measured = [mark(each) for each in _measured(one_round, outcomes, towers, repeated)]
        self.measures += measured

    def _build(self, side: str, row_count: int) -> runs.Built:
        """Builds a side of the model, once for each batch size that its graph knows."""
        key = (side, row_count if self._form.is_static() else None)
        if key not in self._built:
            build, settings = getattr(self._sides, side), self._config.session_config
            is_one = side != "towers"
            made = runs.Built(build, self._form, row_count, self.mode, settings, is_one)
            self._built[key] = made
        return self._built[key]

    def _one_device(self, row_count: int) -> runs.Built:
        """Returns what the towers are compared with."""
        one = self._build("one", row_count)
        if self.mode != types.TRAIN:
            return one
        if not self._sides.is_through_replication:
            try:
                names = self._build("towers", row_count).variable_names
            except Exception:  # noqa: BLE001 - told where the towers are run
                return one
            if names == one.variable_names:
                return one
        self.notes.append(_ALONE)
        return self._build("alone", row_count)

    def _repeated(self, one: runs.Built, one_round: inputs.Round) -> measures.Repeated:
        """Runs one device so that noise alone makes other values.

        The rows are in other orders, unless each is drawn numbers for; or weights are rounded
        otherwise, in the precision in which values are computed.
        """
        orders = () if one.drawing else one_round.reordered()
        reordered = [(one.run(batches, self._start), order) for batches, order in orders]
        repeated = measures.Repeated(reordered, [], one.precision)
        self._round(repeated, one, one_round, _REPEATS)
        return repeated

    def _round(
        self, repeated: measures.Repeated, one: runs.Built, one_round: inputs.Round, number: int
    ) -> None:
        """Runs one device from more weights that are rounded otherwise."""
        for _ in range(number):
            seed = len(repeated.rounded)
            start = measures.rounded_otherwise(self._start, seed, repeated.computed)
            repeated.rounded.append(one.run(one_round.batches, start))

    def _random_keys(self, one: runs.Built) -> set[runs.Key]:
        """Returns what depends on random numbers that towers draw for themselves."""
        is_split = self._sides.is_split
        found = set() if is_split else one.reached_from(one.drawing)
        if one.drawing and (found or is_split):
            names = ", ".join(op.name for op in one.drawing[:_SHOWN])
            more = ", ..." if len(one.drawing) > _SHOWN else ""
            self.notes.append((_DRAWN if is_split else _RANDOM).format(names=names + more))
        return found

    def _faults(
        self, one_round: inputs.Round, outcomes: list[runs.Outcome], error: Exception
    ) -> Iterator[measures.Measure]:
        """Yields a difference for each kind of value that one device gave."""
        if not any(measure.fault for measure in self.measures):
            self._note_failure(one_round, "the towers raise", error)
        fault = f"the towers raise {type(error).__name__}"
        for what in dict.fromkeys(key.what for key in outcomes[-1]):
            key = runs.Key(what, self.mode)
            yield measures.Measure(key, _place(one_round.batches, 0), fault=fault)

    def _note_failure(self, one_round: inputs.Round, who: str, error: Exception) -> None:
        mode = runs.MODE_NAMES[self.mode]
        told = f"{type(error).__name__}: {messages.first_lines(error).rstrip('.')}"
        self.notes.append(f"In {mode}, with batches {one_round.label}, {who} {told}.")


def _measured(
    one_round: inputs.Round,
    outcomes: Sequence[runs.Outcome],
    towers: Sequence[runs.Outcome],
    repeated: measures.Repeated,
) -> Iterator[measures.Measure]:
    """Measures all values of all batches of a round."""
    for i, (one, others) in enumerate(zip(outcomes, towers, strict=True)):
        place = _place(one_round.batches, i)
        for key in one | others:
            if key not in others:
                yield measures.Measure(key, place, fault=f"the towers have no {key.name}")
            elif key not in one:
                yield measures.Measure(key, place, fault=f"only the towers have {key.name}")
            else:
                yield measures.measure(key, place, i, one[key], others[key], repeated)


def _place(batches: Sequence[inputs.Batch], i: int) -> str:
    count = batches[i].row_count
    return f"batch {i + 1} of {count} row{'' if count == 1 else 's'}"


def _marking(
    one: runs.Built, towers: runs.Built, random: set[runs.Key]
) -> Callable[[measures.Measure], measures.Measure]:
    """Returns what marks measures by what their values depend on.

    Args:
        one: One device.
        towers: The towers, which read first as well, unless nothing is split there.
        random: What depends on random numbers of towers.
    """
    left = [race for race in one.races if towers.races or not race.is_settled]
    opened, is_open = (one.reached_from(map(races.Race.source, each)) for each in (one.races, left))

    def mark(measure: measures.Measure) -> measures.Measure:
        key, found = measure.key, tuple(one.races)
        if measure.fault:
            return measure
        return measure._replace(
            is_random=key in random, opened=found if key in opened else (), is_open=key in is_open
        )

    return mark
