#!/usr/bin/env python3
"""Trains again and again in one process, and looks whether memory and threads stay as they are.

    scripts/soak.py                                   # 200 trainings and 10,000 steps of each
    scripts/soak.py --cycles 50 --steps 1000 --subjects one,split

A cycle makes an Estimator, trains a small model for three steps, and forgets it. Subjects are `one`
(the model_fn itself, on one device: TensorFlow alone), `split` and `call` (replicated over two
devices); each has a process of its own. After every cycle, and after every hundredth of the steps,
garbage is collected, free memory goes back to the system, and memory and threads are counted. A
line is fitted through the last half.

Exits with 1 if a graph outlives its training, if there are more threads at the end than in the
middle, or if memory grows: over cycles by more than TensorFlow alone and `--per-cycle` KiB, over
steps by more than `--per-thousand` KiB for a thousand.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import weakref
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

SUBJECTS = ("one", "split", "call")
STEPS_OF_A_CYCLE = 3
LOOKS = 100  # at a long training
_LIBC = ctypes.CDLL(None)


class Found(NamedTuple):
    """What was counted.

    Attributes:
        memory: Resident KiB, one number for each look.
        threads: Threads of the process, likewise.
        graphs: How many graphs were alive in the end.
    """

    memory: list
    threads: list
    graphs: int

    def slope(self) -> float:
        """Returns by how many KiB memory grows from look to look, in the last half."""
        half = self.memory[len(self.memory) // 2 :]
        middle, mean = (len(half) - 1) / 2, sum(half) / len(half)
        spread = sum((i - middle) ** 2 for i in range(len(half)))
        return sum((i - middle) * (value - mean) for i, value in enumerate(half)) / max(spread, 1)


def main(arguments=None) -> int:
    """Prints a table of the subjects that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--per-cycle", type=float, default=64.0, metavar="KIB")
    parser.add_argument("--per-thousand", type=float, default=256.0, metavar="KIB")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        subject, kind = options.measure
        _show_devices()
        found = _cycles(subject, options.cycles) if kind == "cycles" else _steps(subject, options)
        print(json.dumps(found))
        return 0
    print("| subject | what | memory, MiB | growth, KiB | allowed | threads | graphs left |")
    print("|---|---|---|---|---|---|---|", flush=True)
    subjects, own, is_right = options.subjects.split(","), 0.0, True
    for subject in subjects:
        found = _measured(subject, "cycles", options)
        allowed = own + options.per_cycle
        own = max(found.slope(), 0.0) if subject == "one" else own
        fits = [_tell(subject, "a cycle", found, allowed)]
        found = _measured(subject, "steps", options)
        per_thousand = LOOKS * 1000 / options.steps
        fits += [_tell(subject, "1,000 steps", found, options.per_thousand, per_thousand)]
        is_right = is_right and (subject == "one" or all(fits))
    return 0 if is_right else 1


def _measured(subject: str, kind: str, options: argparse.Namespace) -> Found:
    """Returns what is counted in a process of its own."""
    line = [sys.executable, __file__, "--measure", subject, kind]
    line += ["--cycles", str(options.cycles), "--steps", str(options.steps)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    return Found(*json.loads(done.stdout.splitlines()[-1]))


def _tell(subject: str, what: str, found: Found, allowed: float, looks: float = 1.0) -> bool:
    """Prints a row of the table; returns whether all is within its bounds."""
    growth = found.slope() * looks
    memory = f"{found.memory[0] / 1024:.0f} to {found.memory[-1] / 1024:.0f}"
    threads = f"{found.threads[len(found.threads) // 2]} to {found.threads[-1]}"
    columns = [subject, what, memory, f"{growth:.1f}", f"{allowed:.1f}", threads, found.graphs]
    print(f"| {' | '.join(map(str, columns))} |", flush=True)
    is_flat = found.threads[-1] <= found.threads[len(found.threads) // 2]
    return growth <= allowed and is_flat and not found.graphs


class _Looks:
    """What is counted in this process, look by look."""

    def __init__(self) -> None:
        self._memory: list[float] = []
        self._threads: list[int] = []
        self._graphs: list[weakref.ref] = []

    def at(self, graph: object) -> None:
        """Remembers a graph, but does not keep it alive."""
        self._graphs.append(weakref.ref(graph))

    def look(self) -> None:
        """Counts."""
        gc.collect()
        if hasattr(_LIBC, "malloc_trim"):  # else free pieces between others count as memory
            _LIBC.malloc_trim(0)
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        self._memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1024)
        self._threads.append(len(os.listdir("/proc/self/task")))

    def found(self) -> Found:
        """Returns all that was counted."""
        gc.collect()
        return Found(self._memory, self._threads, sum(one() is not None for one in self._graphs))


def _show_devices() -> None:
    """Shows one CPU as two devices."""
    from replicate.compat.tensorflow import tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def _cycles(subject: str, cycles: int) -> Found:
    looks = _Looks()
    for _ in range(cycles):
        _train(subject, STEPS_OF_A_CYCLE, looks)
        looks.look()
    return looks.found()


def _steps(subject: str, options: argparse.Namespace) -> Found:
    looks = _Looks()
    _train(subject, options.steps, looks, max(options.steps // LOOKS, 1))
    return looks.found()


def _train(subject: str, steps: int, looks: _Looks, every: int = 0) -> None:
    """Makes an Estimator, and trains; counts after so many steps, if any."""
    from replicate import estimator, model_fn
    from replicate.compat.tensorflow import tf, tf1

    class Hook(tf1.train.SessionRunHook):
        def begin(self):
            looks.at(tf1.get_default_graph())
            self._step = 0

        def after_run(self, run_context, run_values):
            self._step += 1
            if every and self._step % every == 0:
                looks.look()

    def one(features, labels, mode):
        hidden = tf1.layers.dense(features, 32, tf.nn.relu, name="hidden")
        logits = tf1.layers.dense(tf1.layers.dropout(hidden, training=True), 10, name="out")
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf1.train.get_global_step()
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss, step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn():
        rows = tf.range(256)
        features = tf.cast(rows[:, None] % tf.range(2, 18)[None], tf.float32)
        return tf.data.Dataset.from_tensor_slices((features, rows % 10)).repeat().batch(32)

    model = one
    if subject != "one":
        model = model_fn.replicate_model_fn(one, devices=2, tower_building=subject)
    with tempfile.TemporaryDirectory() as folder:
        config = estimator.RunConfig(model_dir=folder, log_step_count_steps=None)
        estimator.Estimator(model, config=config).train(input_fn, hooks=[Hook()], steps=steps)
    # NOTE: of each model_dir TensorFlow keeps the writer of event files, with a thread.
    tf1.summary.FileWriterCache.clear()


if __name__ == "__main__":
    sys.exit(main())
