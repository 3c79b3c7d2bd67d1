"""The cases of one process: each is tried once with what is drawn, and returns what is wrong."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from faulting import subjects

FULL = "must have room for checkpoints and summaries, but the disk is full"


class Case(NamedTuple):
    """A kind of fault.

    Attributes:
        name: What happens.
        must: What must hold then.
        times: How often it is tried, by default.
        attempt: Tries it; is given what is undisturbed, and what draws. Returns what is wrong.
    """

    name: str
    must: str
    times: int
    attempt: Callable[[subjects.Undisturbed, random.Random], Sequence[str]]


class Skipped(Exception):
    """This machine cannot show the case."""


def killed(command: str, how: signal.Signals) -> Case:
    """Returns the case of a signal at a random moment of a command."""

    def attempt(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
        is_training = command == "train"
        model_dir = calm.folder / "killed" if is_training else calm.copy("killed")
        if is_training:
            shutil.rmtree(model_dir, ignore_errors=True)
        line = subjects.line(command, model_dir, *subjects.COMMANDS[command])
        process = subjects.Command(calm.folder, line)
        time.sleep(drawn.uniform(0, calm.seconds[command]))
        process.send(how)
        done, step = process.end(), subjects.step(model_dir)
        faults = subjects.broken(model_dir)
        if how == signal.SIGKILL:
            faults += [] if done.code in (0, -how) else [f"exit {done.code}: {done.error}"]
        else:
            faults += [] if done.code in (0, 130) else [f"exit {done.code}: {done.error}"]
            faults += subjects.left_over(model_dir)
            saved = re.search(r"stopped at step (\d+); a checkpoint is saved", done.error)
            if saved and int(saved[1]) != step:
                faults.append(f"step {step} is saved, told was {done.error}")
        again = subjects.run(calm.folder, command, model_dir, *subjects.COMMANDS[command])
        if again.code:
            return [*faults, f"then: exit {again.code}: {again.error}"]
        if (
            step
            and is_training
            and step < 600
            and f"continuing from step {step} " not in again.error
        ):
            faults.append(f"step {step} was saved, then: {again.error}")
        return [*faults, *subjects.broken(model_dir), *_wrong(calm, command, model_dir, again)]

    kept = "the run continues to the same bits" if command == "train" else "again, it is the same"
    must = f"checkpoints, exports and records are whole; {kept}"
    return Case(f"{how.name} in {command}", must, 9 if command == "train" else 6, attempt)


def _wrong(
    calm: subjects.Undisturbed, command: str, model_dir: pathlib.Path, done: subjects.Ended
) -> list[str]:
    """Returns in what a command's result is not that of one that nobody disturbed."""
    if command == "train":
        return subjects.wrong_end(calm, model_dir)
    if command == "evaluate":
        return [] if done.out == calm.told[command] else [f"it says {done.out}"]
    if command == "export":
        path = pathlib.Path(json.loads(done.out)["path"]) / "variables" / "variables"
        return subjects.same(subjects.variables(path), {"w": calm.weights["w"]}, "export")
    if command == "average":
        expected = subjects.variables(calm.folder / "average" / "averaged")
        return subjects.same(subjects.variables(model_dir / "averaged"), expected, "averaged")
    found = (calm.folder / "predicted.csv").read_text()
    return [] if found == calm.told[command] else ["other rows are predicted"]


DAMAGES = ("a byte of data", "data cut short", "no data", "a byte of the index")
DAMAGES += ("index cut short", "no index", "a torn checkpoint state")


def damaged(command: str) -> Case:
    """Returns the case of a newest checkpoint that is damaged ahead of a command."""

    def attempt(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
        more, longer = ("--train.steps", "700"), calm.folder / "longer"
        if command == "train" and not longer.exists():
            subjects.run(calm.folder, command, calm.copy("longer"), *more)
        model_dir, how = calm.copy("damaged"), drawn.choice(DAMAGES)
        _damage(model_dir, how, drawn)
        options = more if command == "train" else subjects.COMMANDS[command]
        done = subjects.run(calm.folder, command, model_dir, *options)
        told = re.search(
            r"must (be a readable|name a) checkpoint.*model.ckpt-\d+", done.error, re.S
        )
        if done.code:
            faults = [f"exit {done.code}"]
        elif command == "train":
            expected = subjects.variables(longer)
            faults = subjects.same(subjects.variables(model_dir), expected, "weights")
        else:  # of some bytes nothing depends: those of slots, in an evaluation
            faults = [] if told else _wrong(calm, command, model_dir, done)
        return [f"{how}: {one}; {done.error}" for one in faults]

    must = "the checkpoint before is taken, and that is said, or the result is the same"
    must = "the run goes on from the one before, to the same bits" if command == "train" else must
    times = len(DAMAGES) * (2 if command == "train" else 1)
    return Case(f"a damaged checkpoint, then {command}", must, times, attempt)


def _damage(model_dir: pathlib.Path, how: str, drawn: random.Random) -> None:
    step = subjects.step(model_dir)
    path = drawn.choice(sorted(model_dir.glob(f"model.ckpt-{step}.data-*")))
    if "index" in how:
        path = model_dir / f"model.ckpt-{step}.index"
    if "state" in how:
        path = model_dir / "checkpoint"
    content = path.read_bytes()
    if how.startswith("no "):
        path.unlink()
    elif not content:
        return
    elif how.startswith("a byte"):
        at = drawn.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
    else:
        path.write_bytes(content[: drawn.randrange(min(len(content), 20))])


def _disk_is_full(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    place = calm.folder / "disk"
    with _disk(place, f"{drawn.randrange(40, 700)}k") as remount:
        model_dir = place / "run"
        done = subjects.run(calm.folder, "train", model_dir)
        faults, step = subjects.broken(model_dir), subjects.step(model_dir)
        said = f"Step {step} is saved." if step is not None else "Nothing is saved yet."
        if done.code == 1 and not (FULL in done.error and said in done.error):
            faults.append(f"it says {done.error}")
        if done.code not in (0, 1):
            faults.append(f"exit {done.code}: {done.error}")
        remount("size=50m")
        again = subjects.run(calm.folder, "train", model_dir)
        if again.code:
            return [*faults, f"then: exit {again.code}: {again.error}"]
        return [*faults, *subjects.broken(model_dir), *subjects.wrong_end(calm, model_dir)]


def _nothing_can_be_written(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    place, faults = calm.folder / "disk", []
    with _disk(place, "50m") as remount:
        model_dir = shutil.copytree(calm.model_dir, place / "run")
        remount("ro")
        for command, options in subjects.COMMANDS.items():
            more = ("--train.steps", "700") if command == "train" else ()
            done = subjects.run(calm.folder, command, model_dir, *options, *more)
            is_told = str(place) in done.error and "Traceback" not in done.error
            is_right = done.code == 1 and is_told
            if command in ("evaluate", "predict"):  # they give their result all the same
                is_right = done.code == 0
            if not is_right:
                faults.append(f"{command}: exit {done.code}: {done.error}")
    return faults


def _disk(place: pathlib.Path, size: str):
    if os.geteuid():
        raise Skipped("only root may mount a small disk")
    return subjects.small_disk(place, size)


def _files_in_place_of_folders(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    model_dir, faults = calm.copy("files"), []
    for name in ("export", "averaged", "best", "eval"):
        shutil.rmtree(model_dir / name, ignore_errors=True)
        (model_dir / name).write_text("mine")
    for command in ("evaluate", "export", "average"):
        done = subjects.run(calm.folder, command, model_dir, *subjects.COMMANDS[command])
        if done.code != 1 or "Traceback" in done.error or str(model_dir) not in done.error:
            faults.append(f"{command}: exit {done.code}: {done.error}")
    done = subjects.run(calm.folder, "train", model_dir / "export")
    if done.code != 1 or "must be a directory that can be written" not in done.error:
        faults.append(f"train: exit {done.code}: {done.error}")
    return faults


def _numbers_end(params: str) -> Case:
    """Returns the case of a loss, or of a gradient, that is not finite at a step."""

    def attempt(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
        at = drawn.choice((drawn.randrange(10, 590), drawn.randrange(50, 590, 50)))
        words = f"but became NaN at step {at + 1}." if "steep" in params else f" at step {at}."
        words = f"but after step {at} these do not: w" if at % 50 == 0 else words
        faults = _ended(calm, f"{{{params}, at: {at}}}", (at - 1) // 50 * 50, words)
        again = subjects.run(calm.folder, "train", calm.folder / "ended")
        return [*faults, *_then(calm, again)]

    must = "the step is named; the last good checkpoint is the newest; mended, the same bits"
    return Case(f"a model with {params}", must, 5, attempt)


def _ended(calm: subjects.Undisturbed, params: str, step: int, *words: str) -> list[str]:
    """Trains with other params; returns what is wrong with how that ends."""
    model_dir = calm.folder / "ended"
    shutil.rmtree(model_dir, ignore_errors=True)
    done = subjects.run(calm.folder, "train", model_dir, "--set", f"params={params}")
    faults = subjects.broken(model_dir) if model_dir.exists() else []
    is_told = all(one in done.error for one in words) and "Traceback" not in done.error
    if done.code != 1 or not is_told:
        faults.append(f"params={params}: exit {done.code}, it says {done.error}")
    if subjects.step(model_dir) != step:
        faults.append(f"step {subjects.step(model_dir)} is saved, not {step}")
    return faults


def _then(calm: subjects.Undisturbed, again: subjects.Ended) -> list[str]:
    if again.code:
        return [f"then: exit {again.code}: {again.error}"]
    return subjects.wrong_end(calm, calm.folder / "ended")


def _memory_ends(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    at = drawn.randrange(10, 590)
    params, told = f"{{bytes: {2**46}, at: {at}}}", (f"[{2**46}]", f" {2**46:,} bytes do not fit")
    told += ("The operation is ",)
    faults = _ended(calm, params, (at - 1) // 50 * 50, *told)
    return [*faults, *_then(calm, subjects.run(calm.folder, "train", calm.folder / "ended"))]


def _input_raises(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    bad, kind = drawn.randrange(24, 24 * 300), "{kind: function, function: 'model_of_faults:rows'"
    given = ("--set", f"train.input={kind}, batch_size: 24}}")
    model_dir = calm.folder / "raised"
    shutil.rmtree(model_dir, ignore_errors=True)
    params = f"params={{rows: {24 * 700}, bad: {bad}}}"
    done = subjects.run(calm.folder, "train", model_dir, *given, "--set", params)
    faults = subjects.broken(model_dir)
    said = "train.input: model_of_faults:rows: must be readable as the config says: "
    if done.code != 1 or said not in done.error or f"row {bad} is bad" not in done.error:
        faults.append(f"exit {done.code}: {done.error}")
    step = subjects.step(model_dir)
    if step != (bad // 24) // 50 * 50:
        faults.append(f"row {bad} is bad, and step {step} is saved")
    mended = f"params={{rows: {24 * 700}}}"
    again = subjects.run(calm.folder, "train", model_dir, *given, "--set", mended)
    whole = calm.folder / "whole"
    if not whole.exists():
        subjects.run(calm.folder, "train", whole, *given, "--set", mended)
    if again.code:
        return [*faults, f"then: exit {again.code}: {again.error}"]
    return [
        *faults,
        *subjects.same(subjects.variables(model_dir), subjects.variables(whole), "end"),
    ]


def _input_is_empty(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    model_dir = calm.folder / "empty"
    shutil.rmtree(model_dir, ignore_errors=True)
    kind = "{kind: function, function: 'model_of_faults:rows', batch_size: 24}"
    params = ("--set", "params={rows: 0}")
    done = subjects.run(calm.folder, "train", model_dir, "--set", f"train.input={kind}", *params)
    other = subjects.run(
        calm.folder, "evaluate", calm.model_dir, "--set", f"eval.input={kind}", *params
    )
    faults = []
    for section, one in (("train", done), ("eval", other)):
        if one.code != 1 or f"{section}.input: must have rows, has none" not in one.error:
            faults.append(f"exit {one.code}: {one.error}")
    return faults


def _two_at_once(calm: subjects.Undisturbed, drawn: random.Random) -> Sequence[str]:
    model_dir = calm.folder / "twice"
    shutil.rmtree(model_dir, ignore_errors=True)
    first = subjects.Command(calm.folder, subjects.line("train", model_dir))
    while not (model_dir / "training.lock.json").exists() and not first.has_ended():
        time.sleep(0.01)
    time.sleep(drawn.uniform(0, calm.seconds["train"] / 3))
    second = subjects.run(calm.folder, "train", model_dir)
    done, faults = first.end(), []
    said = f"must have one training at a time; process {first.number} on "
    if second.code != 1 or said not in second.error:
        faults.append(f"the second one: exit {second.code}: {second.error}")
    faults += [f"the first one: exit {done.code}: {done.error}"] if done.code else []
    return faults or subjects.wrong_end(calm, model_dir)


def all_of() -> Sequence[Case]:
    """Returns the cases of one process."""
    signals = (signal.SIGKILL, signal.SIGTERM)
    told = "it says what is full and what is saved; with room, the same bits"
    refused = "a text names the place; nothing is half-written"
    return [
        *(
            killed(one, how)
            for one in ("train", "evaluate", "export", "average")
            for how in signals
        ),
        *(damaged(one) for one in ("train", "evaluate", "predict", "export")),
        Case("the disk is full in a training", told, 8, _disk_is_full),
        Case("the disk is read-only", refused, 1, _nothing_can_be_written),
        Case("files are where folders must be", refused, 1, _files_in_place_of_folders),
        *(_numbers_end(one) for one in ("odd: nan", "odd: inf", "steep: true")),
        Case(
            "no memory for a tensor",
            "its shape, bytes and place are told; then the same bits",
            2,
            _memory_ends,
        ),
        Case("an input_fn raises", "the input is named; mended, the same bits", 4, _input_raises),
        Case("an input ends at once", "that is said, by its key", 1, _input_is_empty),
        Case(
            "two trainings at once", "the second is refused, and names the first", 4, _two_at_once
        ),
    ]
