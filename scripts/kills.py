#!/usr/bin/env python3
"""Kills processes of launched trainings at random moments, and looks at what becomes of that.

    scripts/kills.py --rounds 20 --seed 1

Each round launches a training, kills one of its processes (or the launcher) at a moment that is
drawn, and launches it again until it has come to its end. It must end in time and name who was
killed, or have come to its end; each checkpoint that it leaves must be whole; and in the end the
weights must be those of a training that nobody disturbed (with parameter servers, whose updates
come in any order: close to the optimum). Exit code 1 where one of these does not hold.
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.path[0] += "/.."  # the checkout, so that it also runs without being installed

MODEL = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model(features, labels, mode):
    w = tf1.get_variable("w", [4, 1], tf.float64, initializer=tf1.zeros_initializer())
    loss = tf1.losses.mean_squared_error(labels, (features["x"] @ w)[:, 0])
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())
"""
CONFIG = """
model_fn: model_of_kills:model
optimizer: {{name: Adam, learning_rate: 0.02}}
devices: {{cpu: {towers}}}
seed: 1
train:
  steps: {steps}
  save_checkpoints_steps: 25
  # One batch is all rows, so that a run that goes on does what another one would have done.
  input: {{kind: npz, file: d.npz, features: [x], label: y, batch_size: 32, shuffle: false}}
cluster: {{timeout: 20, grace: 5, communication: ring}}
"""
LAUNCHER = "launcher"
LONGEST = 60.0  # seconds from a kill to the end of all processes: timeout, grace and more


class Layout(NamedTuple):
    """A cluster.

    Attributes:
        name: What it is called.
        options: Of `replicate launch`.
        processes: The names of its logs.
        steps: How many steps it takes.
        tolerance: How far its weights may be from an undisturbed run's.
    """

    name: str
    options: tuple
    processes: tuple
    steps: int
    tolerance: float


TOGETHER = Layout("2 workers", ("--workers", "2"), ("chief", "worker-1"), 400, 1e-9)
SERVED = Layout(
    "2 workers, 1 ps",
    ("--workers", "2", "--ps", "1"),
    ("chief", "worker-1", "ps-0"),
    600,
    0.05,
)


class Round(NamedTuple):
    """What became of one kill.

    Attributes:
        layout: The cluster.
        killed: The process that was killed; None: the training had ended before.
        step: The step that was saved then.
        seconds: From the kill to the end of the launch.
        outcome: How that ended, in words.
        launches: How many launches it took to come to the end.
        faults: What must not be.
    """

    layout: str
    killed: str | None
    step: int | None
    seconds: float
    outcome: str
    launches: int
    faults: tuple


def main() -> int:
    """Runs the rounds and prints their table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--without-ps", action="store_true", help="no parameter servers")
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    layouts = [TOGETHER] if options.without_ps else [TOGETHER, SERVED]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        expected, longest = {}, {}
        for layout in layouts:
            _write(folder / layout.name, layout)
            began = time.monotonic()
            with _launched(folder / layout.name, layout, "undisturbed") as process:
                error = process.communicate(timeout=300)[1]
            if process.returncode:
                raise SystemExit(f"an undisturbed training failed: {error}")
            longest[layout] = time.monotonic() - began
            expected[layout] = _weights(folder / layout.name / "undisturbed")
        found = []
        for number in range(options.rounds):
            layout = layouts[number % len(layouts)]
            place = folder / layout.name
            moment = drawn.uniform(0.2, longest[layout])
            victim = drawn.choice((*layout.processes, LAUNCHER))
            found.append(_round(place, layout, f"{number}", victim, moment, expected[layout]))
            _print(number, found[-1])
    bad = sum(bool(one.faults) for one in found)
    print(f"{len(found)} kills, {bad} of them with faults; seed {options.seed}")
    return 1 if bad else 0


def _write(folder: pathlib.Path, layout: Layout) -> None:
    import numpy as np

    folder.mkdir()
    (folder / "model_of_kills.py").write_text(MODEL)
    (folder / "kills.yaml").write_text(CONFIG.format(steps=layout.steps, towers=1))
    numbers = np.random.RandomState(0)
    x = numbers.uniform(-1, 1, [32, 4])
    np.savez(folder / "d.npz", x=x, y=x @ np.float64([1, -1, 0.5, 2]))


@contextlib.contextmanager
def _launched(folder: pathlib.Path, layout: Layout, model_dir: str):
    """Starts a launch; ends it, whatever happens."""
    command = [sys.executable, "-m", "replicate", "launch", "kills.yaml", *layout.options]
    place = str(pathlib.Path(__file__).resolve().parents[1])
    process = subprocess.Popen(
        [*command, "--model-dir", model_dir],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": place},
    )
    try:
        yield process
    finally:
        process.kill()  # its children end with it
        process.communicate()


def _round(folder, layout, model_dir, victim, moment, expected) -> Round:
    """Kills a process, and lets the training come to its end."""
    faults = []
    with _launched(folder, layout, model_dir) as process:
        time.sleep(moment)
        killed = _kill(folder / model_dir, victim, process)
        step = _step(folder / model_dir)
        began = time.monotonic()
        try:
            error = process.communicate(timeout=LONGEST)[1]
        except subprocess.TimeoutExpired:
            faults.append(f"hung for {LONGEST:g} s")
            process.terminate()
            error = process.communicate()[1]
        while _left(folder / model_dir) and time.monotonic() < began + LONGEST:
            time.sleep(0.05)  # without a launcher they end by themselves
        seconds = time.monotonic() - began
    code, shown = process.returncode, victim.replace("-", " ")
    outcome = f"exit {code}"
    if killed and code == 1 and f"{shown} was ended by SIGKILL" in error:
        outcome += ", named"
    elif code not in (0, -signal.SIGKILL if victim == LAUNCHER else 0):
        faults.append(f"exit {code} without naming {shown}: {error[-300:]!r}")
    faults += _left(folder / model_dir)
    launches = 1
    while code and launches < 4:
        faults += _broken(folder / model_dir)
        with _launched(folder, layout, model_dir) as process:
            error = process.communicate(timeout=300)[1]
        code, launches = process.returncode, launches + 1
    if code:
        faults.append(f"did not come to its end: {error[-300:]!r}")
    else:
        faults += _far(_weights(folder / model_dir), expected, layout)
    who = victim if killed else None
    return Round(layout.name, who, step, seconds, outcome, launches, tuple(faults))


def _processes(model_dir: pathlib.Path) -> dict[str, int]:
    """Returns the number of each process of the last launch, by its log."""
    found = {}
    for log in model_dir.glob("logs/*.log"):
        numbers = re.findall(r"^==== process (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
        found.update({log.stem: int(numbers[-1])} if numbers else {})
    return found


def _kill(model_dir: pathlib.Path, victim: str, launcher: subprocess.Popen) -> bool:
    number = launcher.pid if victim == LAUNCHER else _processes(model_dir).get(victim)
    try:
        os.kill(number, signal.SIGKILL)
    except (TypeError, ProcessLookupError):
        return False
    return True


def _left(model_dir: pathlib.Path) -> list[str]:
    left = [name for name, number in _processes(model_dir).items() if _is_alive(number)]
    return [f"{name} is still there" for name in left]


def _is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def _step(model_dir: pathlib.Path) -> int | None:
    from replicate.app import launched_cluster

    return launched_cluster.saved_step(str(model_dir))


def _weights(model_dir: pathlib.Path) -> dict:
    """Returns the variables of the newest checkpoint; none where there is none yet."""
    from replicate.compat.tensorflow import tf

    if _step(model_dir) is None:
        return {}
    read = tf.train.load_checkpoint(str(model_dir))
    return {name: read.get_tensor(name) for name in read.get_variable_to_shape_map()}


def _broken(model_dir: pathlib.Path) -> list[str]:
    try:
        _weights(model_dir)
    except Exception as e:  # noqa: BLE001 - whatever TensorFlow finds in a torn file
        return [f"a broken checkpoint: {e}"]
    return []


def _far(found: dict, expected: dict, layout: Layout) -> list[str]:
    """Returns which weights are not those of the undisturbed run; slots follow from them."""
    import numpy as np

    names = ["w"] if layout is SERVED else sorted(expected)
    far = {name: float(np.max(np.abs(found[name] - expected[name]))) for name in names}
    return [f"{name} is {by:.3g} off" for name, by in far.items() if by > layout.tolerance]


def _print(number: int, one: Round) -> None:
    victim = one.killed or "nobody: it had ended"
    faults = "; ".join(one.faults) or "same weights"
    print(
        f"{number + 1:3}  {one.layout:16} {victim:10} saved {one.step!s:5} "
        f"{one.seconds:5.1f} s to {one.outcome:14} {one.launches} launches  {faults}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
