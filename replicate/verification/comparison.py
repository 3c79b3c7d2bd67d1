"""`verify`: the same batches through one device and through K towers."""

import tempfile
from collections.abc import Callable
from typing import Any

from replicate import types
from replicate.verification import batches, inputs, judgement, modes, subjects, verdicts

MODES = (types.TRAIN, types.EVAL, types.PREDICT)


def verify(
    model_fn: Callable,
    input_fn: Callable,
    *,
    optimizer_fn: Callable | None = None,
    devices: Any = None,
    params: Any = None,
    config: Any = None,
    steps: int = 2,
    watch: Callable[[int, int], None] | None = None,
    **options: Any,
) -> verdicts.Verification:
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
        sides = subjects.sides(
            model_fn, optimizer_fn, devices, options, workers, params=params, config=config
        )
        session_config = subjects.session_config(config)
        offered = {"params": params, "config": config, "mode": types.TRAIN}
        form, given = inputs.read(input_fn, offered, steps * repeats, session_config)
        rounds = batches.rounds(given, len(workers), repeats)
        return _compare(sides, form, rounds, session_config, workers, watch)


def _compare(sides, form, rounds, session_config, workers, watch) -> verdicts.Verification:
    """Compares mode by mode, then judges what was measured in all of them."""
    start: dict = {}
    made = {}
    for mode in MODES:
        made[mode] = modes.Comparison(sides, form, mode, session_config, start)
        for i, one_round in enumerate(rounds):
            made[mode].compare(one_round)
            _require_training(made[mode], mode, form)
            if watch is not None:
                watch(len(rounds) * MODES.index(mode) + i + 1, len(rounds) * len(MODES))
    measured = [one for compared in made.values() for one in compared.measures]
    if not measured:
        raise next(compared.error for compared in made.values() if compared.error is not None)
    found = judgement.judge(
        measured,
        {mode: compared.error for mode, compared in made.items() if not compared.measures},
        lambda measure: made[measure.mode].explain(measure),
        sides.is_split,
    )
    notes = [note for compared in made.values() for note in compared.notes()]
    if len(workers) == 1:
        notes.append("There is one tower: nothing is split. Name more devices.")
    sizes = dict.fromkeys(batches.row_count(batch) for one in rounds for batch in one.batches)
    return verdicts.Verification(found, workers, tuple(sizes), tuple(verdicts.once(notes)))


def _require_training(compared: modes.Comparison, mode: str, form: inputs.Form) -> None:
    """Raises what a model raises in training, where there are labels: then it should train."""
    is_failed = compared.error is not None and not compared.measures
    if mode == types.TRAIN and is_failed and form.has_labels():
        raise compared.error
