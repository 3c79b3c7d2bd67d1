"""What is disturbed: a small training and what follows it; and what must be left of it."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.app.command import cli
from replicate.app.runs import checkpoints
from replicate.app.training import runner  # noqa: F401 - so that forks have it
from replicate.compat.tensorflow import tf

MODEL = """
import time

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model(features, labels, mode, params):
    w = tf1.get_variable("w", [4, 1], initializer=tf1.zeros_initializer())
    x = features["x"]
    if mode == estimator.ModeKeys.TRAIN:  # draws at random, which a run that continues goes on with
        x = tf.nn.dropout(x, 0.1)
    y = (x @ w)[:, 0]
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"y": y})
    loss = tf1.losses.mean_squared_error(labels, y)
    at, step = params.get("at", 40), tf1.train.get_or_create_global_step()
    is_odd = tf.equal(step, at - 1)
    if "odd" in params and mode == estimator.ModeKeys.TRAIN:
        loss += tf.where(is_odd, float(params["odd"]), 0.0) * (1.0 + tf.reduce_sum(w))
    if "steep" in params and mode == estimator.ModeKeys.TRAIN:  # 0, whose gradient is 0 * infinity
        change, other = tf.reduce_sum(w - tf.stop_gradient(w)), tf.where(is_odd, 0.0, 1.0)
        loss += tf.sqrt((change + 1.0) * other) - other - change / 2.0
    if "bytes" in params:
        size = tf.where(is_odd, tf.constant(params["bytes"], tf.int64), 1)
        loss += tf.cast(tf.fill([size], tf.constant(0, tf.uint8), name="much")[0], tf.float32)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

def rows(params, batch_size):
    def made():
        drawn = np.random.RandomState(0)
        for number in range(params["rows"]):
            if number == params.get("bad"):
                raise ValueError(f"row {number} is bad")
            x = drawn.uniform(-1, 1, 4).astype("f")
            yield x, x.sum()
    shapes = tf.TensorSpec([4]), tf.TensorSpec([])
    found = tf.data.Dataset.from_generator(made, output_signature=shapes)
    return found.map(lambda x, y: ({"x": x}, y))
"""
CONFIG = """
model_fn: model_of_faults:model
optimizer: {name: Adam, learning_rate: 0.005}
devices: {cpu: 2}
seed: 1
train:
  steps: 600
  save_checkpoints_steps: 50
  keep_best: {}
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 24, shuffle: true}
eval:
  every_steps: 300
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 64, shuffle: false}
predict: {input: {kind: npz, file: d.npz, features: [x], batch_size: 64}}
export: {}
"""
PATIENCE = 120.0  # seconds for a command; it takes a few
_LEFT_OVER = re.compile(r"temp-\d+|\.tmp$|_temp$|\.tempstate")


class Ended(NamedTuple):
    """What became of a command.

    Attributes:
        code: The exit code; -9: it was killed.
        out: What it wrote to stdout.
        error: What it wrote to stderr.
        seconds: How long it took.
    """

    code: int
    out: str
    error: str
    seconds: float


class Command:
    """A `replicate` command in a process of its own, forked off this one, which has imported all.

    Args:
        folder: Where it runs.
        line: Its command line, behind `replicate`.
    """

    def __init__(self, folder: pathlib.Path, line: Sequence[str]):
        self._texts = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        self._began = time.monotonic()
        sys.stdout.flush()
        self.number = os.fork()
        if self.number == 0:
            self._run(folder, line)
        self._code: int | None = None

    def _run(self, folder: pathlib.Path, line: Sequence[str]) -> None:
        code = 70
        try:
            os.chdir(folder)
            for number, text in enumerate(self._texts, start=1):
                os.dup2(text.fileno(), number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = cli.main(line)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def has_ended(self) -> bool:
        """Tells whether it has."""
        if self._code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if number else None
        return self._code is not None

    def send(self, number: int) -> None:
        """Sends it a signal."""
        if not self.has_ended():
            os.kill(self.number, number)

    def end(self, patience: float = PATIENCE) -> Ended:
        """Waits for its end; it is killed where that takes too long."""
        limit = time.monotonic() + patience
        while not self.has_ended():
            if time.monotonic() > limit:
                self.send(signal.SIGKILL)
            time.sleep(0.01)
        seconds, texts = time.monotonic() - self._began, []
        for text in self._texts:
            text.seek(0)
            texts.append(text.read())
            text.close()
        return Ended(self._code or 0, *texts, seconds)


def run(folder: pathlib.Path, command: str, model_dir: Any, *options: str) -> Ended:
    """Runs a command on the config, to its end."""
    return Command(folder, line(command, model_dir, *options)).end()


def line(command: str, model_dir: Any, *options: str) -> list[str]:
    """Returns a command line on the config."""
    return [command, "faults.yaml", "--model-dir", str(model_dir), *options]


class Undisturbed(NamedTuple):
    """A training that nobody disturbed, and the commands that follow it.

    Attributes:
        folder: Where config, data and runs are.
        model_dir: Of the training.
        weights: All variables in the end.
        metrics: Of the last evaluation.
        seconds: Command -> how long it takes.
        told: Command -> its stdout.
    """

    folder: pathlib.Path
    model_dir: pathlib.Path
    weights: Mapping[str, np.ndarray]
    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]
    told: Mapping[str, str]

    def copy(self, name: str) -> pathlib.Path:
        """Returns a copy of the model_dir."""
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        return shutil.copytree(self.model_dir, target)


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "train": (),
    "evaluate": ("--json",),
    "predict": ("--output", "predicted.csv"),
    "export": ("--json",),
    "average": ("--last", "3"),
}


def undisturbed(folder: pathlib.Path) -> Undisturbed:
    """Trains and follows it up without a fault."""
    folder.mkdir()
    (folder / "model_of_faults.py").write_text(MODEL)
    (folder / "faults.yaml").write_text(CONFIG)
    x = np.random.RandomState(0).uniform(-1, 1, [100, 4]).astype("f")
    np.savez(folder / "d.npz", x=x, y=x @ np.float32([1, -1, 0.5, 2]))
    model_dir, done = folder / "undisturbed", {}
    for command, options in COMMANDS.items():
        target = model_dir
        if command != "train":
            target = folder / command
            shutil.copytree(model_dir, target)
        done[command] = run(folder, command, target, *options)
        if done[command].code:
            raise SystemExit(f"an undisturbed {command} failed: {done[command].error}")
    seconds = {command: one.seconds for command, one in done.items()}
    told = {command: one.out for command, one in done.items()}
    told["predict"] = (folder / "predicted.csv").read_text()
    metrics = json.loads((model_dir / "metrics.json").read_text())
    return Undisturbed(folder, model_dir, variables(model_dir), metrics, seconds, told)


def variables(path: Any) -> dict[str, np.ndarray]:
    """Returns all variables of a checkpoint, or of the newest one in a folder."""
    read = tf.train.load_checkpoint(str(path))
    return {name: read.get_tensor(name) for name in read.get_variable_to_shape_map()}


def step(model_dir: pathlib.Path) -> int | None:
    """Returns the step of the newest checkpoint; None where there is none."""
    path = checkpoints.path_in(str(model_dir))
    return None if path is None else int(path.rpartition("-")[2])


def wrong_end(calm: Undisturbed, model_dir: pathlib.Path) -> list[str]:
    """Returns what of a training's end is not bit for bit what nobody disturbed."""
    found = same(variables(model_dir), calm.weights, "weights")
    metrics = json.loads((model_dir / "metrics.json").read_text())
    found += [] if metrics == calm.metrics else [f"the metrics are {metrics}, not {calm.metrics}"]
    best = checkpoints.path_in(str(model_dir / "best"))
    if best is None or os.path.basename(best) != "model.ckpt-600":
        found.append(f"the best checkpoint is {best}")
    exports = [one for one in (model_dir / "export").glob("*") if one.name.isdecimal()]
    ends = exports and variables(max(exports) / "variables" / "variables")
    return found + same(ends or {}, {"w": calm.weights["w"]}, "export")


def same(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> list[str]:
    """Returns which variables are not bit for bit what is expected."""
    wrong = [name for name in expected if not np.array_equal(found.get(name), expected[name])]
    return [f"{what}: {name} differs" for name in wrong]


def broken(model_dir: pathlib.Path) -> list[str]:
    """Returns what is there under the name of something whole, and is not."""
    found = []

    def need(path: pathlib.Path, read: Callable[[], Any]) -> None:
        try:
            read()
        except Exception as e:  # noqa: BLE001 - whatever is found in a torn file
            found.append(f"{path.relative_to(model_dir)} is broken: {e}")

    try:
        listed = tf.train.get_checkpoint_state(str(model_dir))
    except ValueError as e:
        return [f"checkpoint is broken: {e}"]
    for one in listed.all_model_checkpoint_paths if listed else ():
        need(pathlib.Path(one), lambda one=one: variables(one))
    for name in ("best", "averaged"):
        if (model_dir / name / "checkpoint").exists():
            need(model_dir / name, lambda name=name: variables(model_dir / name))
    for one in [*model_dir.glob("*.json"), *model_dir.glob("best/*.json")]:
        need(one, lambda one=one: json.loads(one.read_text()))
    for one in model_dir.glob("export/*"):
        if one.name.isdecimal():
            need(one, lambda one=one: variables(one / "variables" / "variables"))
            need(one, lambda one=one: (one / "saved_model.pb").read_bytes()[0])
    return found


def left_over(model_dir: pathlib.Path) -> list[str]:
    """Returns what is half-written."""
    found = [one.relative_to(model_dir) for one in model_dir.rglob("*")]
    return [f"{one} is left" for one in found if _LEFT_OVER.search(one.name)]


@contextlib.contextmanager
def small_disk(place: pathlib.Path, size: str):
    """Yields a function that mounts a disk there anew, with other options; it is taken off then."""

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(place)], check=True, capture_output=True)

    place.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
