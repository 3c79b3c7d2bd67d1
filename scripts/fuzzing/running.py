"""Runs a random model_fn on one device and on K, and says what differs."""

import os
import pathlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from replicate import model_fn
from replicate.compat.tensorflow import tf
from tests import control_flow, exactness

spec_of = exactness.spec_of
Padded = exactness.Padded

DOUBLE = (1e-8, 1e-9)  # relative and absolute: reassociation alone
SINGLE = (1e-3, 1e-4)  # where a part of a model is in float32
NUDGES = 3  # how often a model is tried on numbers nearly the same
LARGEST = 1e6  # numbers above lose too many digits
_NUMBERS = re.compile(r"(0x)?\d[\da-f.]*")
_OPERATIONS = re.compile(r"\nNode: '[^']*'\n")  # each with a traceback, in front of the text


class Setting(NamedTuple):
    """How a model is run.

    Attributes:
        devices: K.
        sizes: The numbers of rows of successive batches.
        strategy: The strategy's name.
        is_static: Whether the graph knows how many rows there are.
        control_flow: The version of loops and branches.
        modes: The mode keys.
        options: Others of `replicate_model_fn`.
    """

    devices: int
    sizes: tuple[int, ...]
    strategy: str = "parameter_server"
    is_static: bool = False
    control_flow: int = 2
    modes: tuple[str, ...] = ("train",)
    options: tuple[tuple[str, Any], ...] = (("random_numbers", "one_device"),)


class Verdict(NamedTuple):
    """What came of a program.

    Attributes:
        kind: "holds"; "fails"; "discarded": one device cannot run it, or it multiplies rounding.
        signature: The same for failures of one cause, as far as can be told.
        detail: A traceback, or the numbers that differ.
    """

    kind: str
    signature: str = ""
    detail: str = ""


def judge(source: str) -> Verdict:
    """Runs a program's model on one device and on K."""
    found: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "<program>", "exec"), found)
    return judged(found)


def judged(program: dict) -> Verdict:
    """Compares a program's model on K devices with one; see `programs.Program.source`."""
    setting = program["SETTING"]
    tolerance = SINGLE if program.keys() & {"normed", "columns"} else DOUBLE
    with control_flow.of_version(setting.control_flow):
        for mode in setting.modes:
            verdict = _of_mode(program, mode, tolerance)
            if verdict.kind != "holds":
                return verdict
    return Verdict("holds")


def make_devices() -> None:
    """Shows one CPU as eight devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)


def main(program: dict) -> None:
    """Runs a program by itself; exits with 1 if it fails."""
    make_devices()
    verdict = judged(program)
    print(verdict.detail)
    print(f"{verdict.kind}: {verdict.signature}" if verdict.signature else verdict.kind)
    sys.exit(int(verdict.kind == "fails"))


def _of_mode(program: dict, mode: str, tolerance: tuple[float, float]) -> Verdict:
    setting = program["SETTING"]
    batches = [program["batch"](rows, i) for i, rows in enumerate(setting.sizes)]
    model, optimizer_fn = program["model_fn"], program["optimizer_fn"]
    single = model if optimizer_fn is None else exactness.stepping(model, optimizer_fn)
    options = dict(setting.options)
    replicated = model_fn.replicate_model_fn(
        model, optimizer_fn, devices=setting.devices, strategy=setting.strategy, **options
    )

    def run(function: Callable, given: list) -> exactness.Run:
        return exactness.run(function, given, mode, setting.is_static, _fetched)

    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            expected = run(single, batches)
    except Exception as error:  # noqa: BLE001 - whatever one device refuses
        return Verdict("discarded", _signature(error, mode), traceback.format_exc())
    if not _is_tame(expected):
        return Verdict("discarded", "numbers are not finite, or too large")
    if mode == "train" and expected.variables[-1]["global_step:0"] == 0:
        # Gradients of a loop of version 1 that wait for something in the loop have no value there.
        return Verdict("discarded", "one device takes no step")
    expects = {str(warning.message) for warning in heard}
    try:
        with warnings.catch_warnings(record=True) as heard, exactness.quiet():
            warnings.simplefilter("always")
            found = run(replicated, batches)
    except Exception as error:  # noqa: BLE001 - whatever is raised is a fault
        return Verdict("fails", _signature(error, mode), traceback.format_exc())
    if more := [str(one.message) for one in heard if str(one.message) not in expects]:
        return Verdict("fails", f"warning in {mode}: {_NUMBERS.sub('#', more[0])[:80]}", more[0])
    share = 1e-14 if tolerance == DOUBLE else 1e-7

    def nudged(seed: int) -> exactness.Run:
        nearly = _of_nudged_weights(single, share, seed)
        return run(nearly, _nudged(batches, share, seed))

    return _compared(found, expected, mode, tolerance, nudged)


def _compared(found, expected, mode: str, tolerance: tuple, nudged: Callable) -> Verdict:
    """Compares what K devices gave with what one gave, and with one on numbers nearly the same."""
    try:
        _require_same(found, expected, tolerance)
    except AssertionError as failure:
        try:
            for seed in range(NUDGES):
                _require_same(nudged(seed), expected, tolerance)
        except AssertionError as noise:
            return Verdict("discarded", "rounding is multiplied", str(noise))
        place = _NUMBERS.sub("#", str(failure).partition("\n")[0])[:60]
        kind = "shapes differ" if "shape" in str(failure) else "numbers differ"
        return Verdict("fails", f"{kind} in {mode}: {place}", str(failure))
    return Verdict("holds")


def _require_same(found, expected, tolerance: tuple[float, float]) -> None:
    for part in ("fetched", "variables"):
        with exactness.named(part):
            exactness.compare(getattr(found, part), getattr(expected, part), *tolerance)
    exactness.compare(found.metrics, expected.metrics, *SINGLE)


def _fetched(spec) -> dict:
    fetched = {"loss": spec.loss, "predictions": spec.predictions}
    return {name: value for name, value in fetched.items() if value is not None}


def _is_tame(run: exactness.Run) -> bool:
    """Whether all numbers are finite, and small enough to be compared."""
    numbers = [np.asarray(one) for one in tf.nest.flatten([run.fetched, run.variables])]
    return all(np.all(np.abs(one) < LARGEST) for one in numbers if one.dtype.kind == "f")


def _nudged(batches: list, share: float, seed: int) -> list:
    """Batches whose numbers differ in their last digits, by up to a share."""
    random = np.random.RandomState(seed)

    def nudged(value):
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        return value * (1 + share * random.uniform(-1, 1, value.shape))

    return [exactness.mapped(batch, nudged) for batch in batches]


def _of_nudged_weights(model: Callable, share: float, seed: int) -> Callable:
    """A model_fn whose weights start from numbers that differ in their last digits."""
    random = np.random.RandomState(seed)

    def creator(next_creator, initial_value=None, **kwargs):
        def nudged():
            value = initial_value() if callable(initial_value) else initial_value
            value = tf.convert_to_tensor(value)
            if not value.dtype.is_floating:
                return value
            # Added, not multiplied: a bias of 0 may lie on the edge of a rectifier.
            return value + tf.cast(share * random.uniform(-1, 1, value.shape), value.dtype)

        return next_creator(initial_value=nudged, **kwargs)

    def of_nudged_weights(features, labels, mode):
        with tf.variable_creator_scope(creator):
            return model(features, labels, mode)

    return of_nudged_weights


def _signature(error: BaseException, mode: str) -> str:
    """What failures of one cause have in common: the kind, and where, without numbers."""
    if isinstance(error, tf.errors.DeadlineExceededError):
        return f"hang in {mode}"
    if isinstance(error, AssertionError):
        return f"warning in {mode}: {_NUMBERS.sub('#', str(error))[:80]}"
    if isinstance(error, tf.errors.OpError):
        text = _OPERATIONS.split(error.message)[-1].partition("\n")[0]
        return f"{type(error).__name__} in {mode}: {_NUMBERS.sub('#', text)[:90]}"
    places = [
        f"{pathlib.Path(frame.filename).stem}.{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}replicate{os.sep}" in frame.filename and "<" not in frame.name
    ]
    text = _NUMBERS.sub("#", str(error).partition("\n")[0])[:60]
    if isinstance(error, KeyError):
        text = "a key"
    return f"{type(error).__name__} in {mode} at {' < '.join(places[-1:-3:-1])}: {text}"
