"""A training that is killed or interrupted goes on from its last checkpoint."""

import contextlib
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

TOP = pathlib.Path(__file__).parents[2]
PATIENCE = 120  # seconds; what is waited for takes a few

MODEL = """
import os
import time
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model(features, labels, mode):
    w = tf1.get_variable("w", initializer=1.0)
    loss = tf1.reduce_mean(tf1.square(w * features["x"]))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

def nap(x):
    if "NAP" in os.environ:
        open("napping", "w").close()
    time.sleep(float(os.environ.get("NAP", 0.005)))
    return x

def rows(batch_size):
    data = tf.data.Dataset.from_tensors([1.0]).repeat().batch(batch_size)
    return data.map(lambda x: ({"x": tf.numpy_function(nap, [x], tf.float32)}, x))
"""

CONFIG = """
model_fn: slow_model:model
optimizer: {name: GradientDescent, learning_rate: 1e-3}
devices: {cpu: 2}
model_dir: out
train:
  steps: 1000000
  save_checkpoints_steps: 20
  log_every_steps: 10
  input: {kind: function, function: 'slow_model:rows', batch_size: 2}
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    """Returns a folder with a model whose steps take a while, and its config."""
    (tmp_path / "slow_model.py").write_text(MODEL)
    (tmp_path / "slow.yaml").write_text(CONFIG)
    return tmp_path


@contextlib.contextmanager
def training(folder, *options, **variables):
    """Starts a training; ends it, whatever happens."""
    arguments = [sys.executable, "-m", "replicate", "train", "slow.yaml", *options]
    process = subprocess.Popen(
        arguments, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment() | variables
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def environment():
    """Returns an environment in which the checkout is importable from anywhere."""
    paths = [str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def saved_step(folder):
    """Returns the step of the last checkpoint, 0 where there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"model\.ckpt-(\d+)", (folder / "out" / "checkpoint").read_text())
        return int(found[1])
    return 0


def wait_for(condition, process):
    """Waits until a condition holds, while the process runs."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"it ended with {process.returncode}: {process.stderr.read()}")
        time.sleep(0.02)


@pytest.mark.thorough
def test_a_killed_training_continues_and_an_interrupted_one_saves_first(folder):
    with training(folder) as process:
        wait_for(lambda: saved_step(folder) >= 20, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed_at = saved_step(folder)

    seldom = ["--set", "train.save_checkpoints_steps=500000"]
    with training(folder, *seldom) as process:
        first = read_until(process, "continuing from step")
        assert f"continuing from step {killed_at} in out" in first
        read_until(process, "train ")  # a progress line: steps are being made
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE)[1]
    interrupted_at = saved_step(folder)
    assert process.returncode == 130
    assert interrupted_at > killed_at
    assert f"stopped at step {interrupted_at}; a checkpoint is saved in out" in rest
    assert "Traceback" not in rest

    with training(folder, *seldom, "--set", f"train.steps={interrupted_at + 5}") as process:
        text = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, text
    assert f"continuing from step {interrupted_at}" in text
    assert saved_step(folder) == interrupted_at + 5


@pytest.mark.thorough
def test_a_terminated_training_saves_and_a_second_signal_does_not_wait(folder):
    with training(folder) as process:
        read_until(process, "train ")
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert f"stopped at step {saved_step(folder)}; a checkpoint is saved in out" in text

    with training(folder, NAP="3600") as process:
        wait_for((folder / "napping").exists, process)  # inside TensorFlow, for an hour
        process.send_signal(signal.SIGTERM)
        read_until(process, "stopping after this step; a second Ctrl-C stops at once")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # to be told when it is closed
from replicate.__main__ import main
sys.exit(main())
"""


@pytest.mark.thorough
def test_a_closed_terminal_ends_a_training_with_a_checkpoint(folder):
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seldom = ["--set", "train.save_checkpoints_steps=500000"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, "train", "slow.yaml", *seldom],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(),
        # NOTE: who runs the tests may ignore the signal, as nohup does, and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    os.close(theirs)
    shown = []

    def is_at_work():
        with contextlib.suppress(BlockingIOError, OSError):
            shown.append(os.read(ours, 65536).decode(errors="replace"))
        return re.search(r" [1-9]\d/1000000", "".join(shown))

    end = time.monotonic() + PATIENCE
    while not is_at_work() and time.monotonic() < end:
        time.sleep(0.02)
    os.close(ours)
    try:
        assert process.wait(timeout=PATIENCE) == 130, "".join(shown)
    finally:
        process.kill()
        process.wait()
    assert saved_step(folder) >= 10


@pytest.mark.thorough
def test_who_ignores_a_closed_terminal_is_not_ended_by_it(folder):
    command = f"trap '' HUP; exec {sys.executable} -m replicate train slow.yaml"
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        wait_for(lambda: saved_step(folder) >= 20, process)
        process.send_signal(signal.SIGHUP)
        reached = saved_step(folder)
        wait_for(lambda: saved_step(folder) >= reached + 40, process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.0])
def test_ctrl_c_at_the_start_prints_no_traceback(folder, seconds):
    code = (
        "import os, signal, sys\n"
        "from replicate.__main__ import main\n"
        "signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
        f"signal.setitimer(signal.ITIMER_PROF, {seconds})\n"  # of its own work
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "slow.yaml", "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (130, False), done.stderr


@pytest.mark.thorough
def test_two_trainings_do_not_share_a_directory(folder):
    with training(folder) as first:
        wait_for(lambda: saved_step(folder) >= 20, first)
        with training(folder) as second:
            text = second.communicate(timeout=PATIENCE)[1]
        assert second.returncode == 1
        host = socket.gethostname()
        assert "model_dir: out must have one training at a time; process" in text
        assert f"process {first.pid} on {host}, since 20" in text


def read_until(process, words):
    """Returns the first line of stderr that has these words."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return line
    raise RuntimeError(f"{words!r} never came: {''.join(lines)}")
