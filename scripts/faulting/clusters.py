"""Kills processes of launched trainings at random moments, and looks at what becomes of that.

Each round launches a training, kills one of its processes (or the launcher) at a moment that is
drawn, and launches it again until it has come to its end. Each process is drawn as often as the
others; one moment in four is in the start, the others are between the first checkpoint and the
end. A launch must end in time and name who was killed, or have come to its end; each checkpoint
that it leaves must be whole, and no step that was saved is lost; in the end the weights must be
those of a training that nobody disturbed. With parameter servers, whose updates come in any
order, that cannot be asked for: then the loss must have fallen to a thousandth, and the step must
be the last one.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from faulting import subjects

MODEL = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model(features, labels, mode, params):
    w = tf1.get_variable("w", [4, 1], tf.float64, initializer=tf1.zeros_initializer())
    x = tf.nn.dropout(features["x"], params["drop"])
    loss = tf1.losses.mean_squared_error(labels, (x @ w)[:, 0])
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())
"""
CONFIG = """
model_fn: model_of_kills:model
optimizer: {{name: Adam, learning_rate: 0.02}}
devices: {{cpu: {towers}}}
seed: 1
params: {{drop: {drop}}}
train:
  steps: {steps}
  save_checkpoints_steps: 25
  # One batch is all rows, so that a run that goes on does what another one would have done.
  input: {{kind: npz, file: d.npz, features: [x], label: y, batch_size: 32, shuffle: false}}
cluster: {{timeout: 20, grace: 5, communication: ring}}
"""
LAUNCHER = "launcher"
LONGEST = 60.0  # seconds from a kill to the end of all processes: timeout, grace and more
LAUNCH = 300.0  # seconds that a launch may take that nobody disturbs
ROWS = 32
SLOPES = (1.0, -1.0, 0.5, 2.0)


class Layout(NamedTuple):
    """A cluster.

    Attributes:
        name: What it is called.
        options: Of `replicate launch`.
        processes: The names of its logs.
        steps: How many steps it takes.
    """

    name: str
    options: tuple
    processes: tuple
    steps: int


TOGETHER = Layout("2 workers", ("--workers", "2"), ("chief-0", "worker-0"), 400)
SERVED = Layout(
    "2 workers, 1 ps", ("--workers", "2", "--ps", "1"), ("chief-0", "worker-0", "ps-0"), 1000
)
CLUSTERS = {"workers": [TOGETHER], "servers": [SERVED], "both": [TOGETHER, SERVED]}


class Undisturbed(NamedTuple):
    """A training that nobody disturbed.

    Attributes:
        start: Seconds from the launch to the first checkpoint.
        training: Seconds from there to the end.
        weights: All variables in the end.
    """

    start: float
    training: float
    weights: dict


class Plan(NamedTuple):
    """What a round does.

    Attributes:
        victim: Who is killed.
        in_training: Whether the moment counts from the first checkpoint, not from the launch.
        moment: Seconds.
    """

    victim: str
    in_training: bool
    moment: float


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


def rounds(folder: pathlib.Path, layouts: list[Layout], number: int, drawn: random.Random):
    """Yields so many rounds, as a layout's name and what is wrong; prints each."""
    calm = {layout: _undisturbed(folder / layout.name, layout) for layout in layouts}
    plans = {layout: _plans(drawn, layout, calm[layout]) for layout in layouts}
    for index in range(number):
        layout = layouts[index % len(layouts)]
        plan = next(plans[layout])
        found = _round(folder / layout.name, layout, f"{index}", plan, calm[layout].weights)
        _print(index, found)
        yield layout.name, found.faults


def _plans(drawn: random.Random, layout: Layout, calm: Undisturbed):
    """Yields plans: in any order, each process once in a training, and so on."""
    while True:
        victims = [*layout.processes, LAUNCHER]
        drawn.shuffle(victims)
        for victim in victims:
            in_training = drawn.random() < 0.75
            longest = calm.training if in_training else calm.start
            yield Plan(victim, in_training, drawn.uniform(0.2, longest))


def _undisturbed(folder: pathlib.Path, layout: Layout) -> Undisturbed:
    _write(folder, layout)
    began = time.monotonic()
    with _launched(folder, layout, "undisturbed") as process:
        _await_checkpoint(folder / "undisturbed", process)
        start = time.monotonic() - began
        error = process.communicate(timeout=LAUNCH)[1]
    if process.returncode:
        raise SystemExit(f"an undisturbed training failed: {error}")
    training = time.monotonic() - began - start
    print(f"{layout.name}: {start:.1f} s to the first checkpoint, {training:.1f} s to the end")
    weights = _weights(folder / "undisturbed")
    faults = _far(weights, weights, layout)
    if faults:
        raise SystemExit(f"an undisturbed training went wrong: {faults}")
    return Undisturbed(start, training, weights)


def _await_checkpoint(model_dir: pathlib.Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + LAUNCH
    while _step(model_dir) is None and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def _write(folder: pathlib.Path, layout: Layout) -> None:
    import numpy as np

    folder.mkdir()
    (folder / "model_of_kills.py").write_text(MODEL)
    # Beside servers the loss must fall, and random numbers begin again.
    drop = 0.0 if layout is SERVED else 0.1
    (folder / "kills.yaml").write_text(CONFIG.format(steps=layout.steps, towers=1, drop=drop))
    x = _inputs()
    np.savez(folder / "d.npz", x=x, y=x @ np.float64(SLOPES))


def _inputs():
    import numpy as np

    return np.random.RandomState(0).uniform(-1, 1, [ROWS, len(SLOPES)])


@contextlib.contextmanager
def _launched(folder: pathlib.Path, layout: Layout, model_dir: str):
    """Starts a launch; ends it, whatever happens."""
    command = [sys.executable, "-m", "replicate", "launch", "kills.yaml", *layout.options]
    place = str(pathlib.Path(__file__).resolve().parents[2])
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


def _round(folder, layout, name, plan, expected) -> Round:
    """Kills a process, and lets the training come to its end."""
    faults, model_dir = [], folder / name
    with _launched(folder, layout, name) as process:
        if plan.in_training:
            _await_checkpoint(model_dir, process)
        time.sleep(plan.moment)
        killed = _kill(model_dir, plan.victim, process)
        step = _step(model_dir)
        began = time.monotonic()
        error = _end_of(process, LONGEST, faults)
        while _left(model_dir) and time.monotonic() < began + LONGEST:
            time.sleep(0.05)  # without a launcher they end by themselves
        seconds = time.monotonic() - began
    code, shown = process.returncode, plan.victim.replace("-", ":")
    outcome = f"exit {code}"
    if killed and code == 1 and f"{shown} was ended by SIGKILL" in error:
        outcome += ", named"
    elif code not in (0, -signal.SIGKILL if plan.victim == LAUNCHER else 0):
        faults.append(f"exit {code} without naming {shown}: {error[-300:]!r}")
    faults += [*_left(model_dir), *subjects.broken(model_dir), *_lost(model_dir, step)]
    launches = 1
    while code and launches < 4:
        step = _step(model_dir)
        with _launched(folder, layout, name) as process:
            error = _end_of(process, LAUNCH, faults)
        code, launches = process.returncode, launches + 1
        faults += [*_left(model_dir), *subjects.broken(model_dir), *_lost(model_dir, step)]
        if code:
            faults.append(f"launch {launches}, which nobody disturbed: {error[-300:]!r}")
    if not code:
        faults += _far(_weights(model_dir), expected, layout)
    who = plan.victim if killed else None
    return Round(layout.name, who, step, seconds, outcome, launches, tuple(faults))


def _end_of(process: subprocess.Popen, longest: float, faults: list) -> str:
    """Waits for the end of a launch; returns what it said."""
    try:
        return process.communicate(timeout=longest)[1]
    except subprocess.TimeoutExpired:
        faults.append(f"hung for {longest:g} s")
        process.terminate()
        return process.communicate()[1]


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
    from replicate.app.cluster import launcher

    return launcher.saved_step(str(model_dir))


def _weights(model_dir: pathlib.Path) -> dict:
    """Returns the variables of the newest checkpoint; none where there is none yet."""
    return {} if _step(model_dir) is None else subjects.variables(model_dir)


def _lost(model_dir: pathlib.Path, step: int | None) -> list[str]:
    """Returns whether less is saved than a step that was saved before."""
    now = _step(model_dir)
    if step is None or (now is not None and now >= step):
        return []
    return [f"step {step} was saved, and now {now} is"]


def _far(found: dict, expected: dict, layout: Layout) -> list[str]:
    """Returns what of the end is not as it must be; see the head of this file."""
    import numpy as np

    if layout is SERVED:
        step, most = int(found["global_step"]), layout.steps + 2
        x, y = _inputs(), _inputs() @ np.float64(SLOPES)
        ratio = np.mean((x @ found["w"][:, 0] - y) ** 2) / np.mean(y**2)  # w was 0
        wrong = [] if layout.steps <= step <= most else [f"it ended at step {step}"]
        return wrong + ([] if ratio < 1e-3 else [f"the loss is still {ratio:.3g} of the first"])
    far = {name: float(np.max(np.abs(found[name] - one))) for name, one in expected.items()}
    return [f"{name} is {by:.3g} off" for name, by in far.items() if by > 1e-9]


def _print(number: int, one: Round) -> None:
    victim = one.killed or "nobody: it had ended"
    fine = "loss has fallen" if one.layout == SERVED.name else "same weights"
    faults = "; ".join(one.faults) or fine
    print(
        f"{number + 1:3}  {one.layout:16} {victim:10} saved {one.step!s:5} "
        f"{one.seconds:5.1f} s to {one.outcome:14} {one.launches} launches  {faults}",
        flush=True,
    )
