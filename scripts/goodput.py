#!/usr/bin/env python3
"""Measures how much of its time a launched training uses that loses a worker each minute.

    scripts/goodput.py
    scripts/goodput.py --kills 10 --every 30 --save-steps 50
    scripts/goodput.py --workers 1:2

Trains configs/digits.yaml by `replicate launch --restarts` and kills a worker that is drawn
(the chief is one of them) at regular intervals. With `--workers MIN:MAX` it goes on with those that
are left, and takes lost ones in again.

    goodput = sum of (steps that a start saved * its seconds of a step) / all seconds

A start is one of all processes together; its seconds of a step are those from its first new
checkpoint to its last one. So all else counts as lost: the first start, what is found to be dead,
the delays, the restarts, the steps that are repeated.
"""

import argparse
import itertools
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

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(TOP)  # the checkout, so that it also runs without being installed

from replicate.app.cluster import launcher  # noqa: E402

LONGEST = 300.0  # seconds until the next checkpoint


class Saved(NamedTuple):
    """A new checkpoint.

    Attributes:
        step: Its step.
        seconds: When it was there, in seconds from the start of the launch.
        start: After how many starts of the processes.
    """

    step: int
    seconds: float
    start: int


class Launch:
    """A training by `replicate launch`, which is ended on the way out.

    Args:
        model_dir: Where it trains; what it says is beside it.
        options: What was asked for.
    """

    def __init__(self, model_dir: pathlib.Path, options: argparse.Namespace):
        self._model_dir = model_dir
        command = [sys.executable, "-m", "replicate", "launch", str(TOP / "configs/digits.yaml")]
        command += ["--workers", options.workers, "--restarts", "1000"]
        command += ["--model-dir", str(model_dir), "--train.steps", "1000000000"]
        command += ["--train.save_checkpoints_steps", str(options.save_steps)]
        command += ["--devices", "{cpu: 1}", "--eval", "null", "--export", "null"]
        self._output = model_dir.with_suffix(".txt")
        self._began = time.monotonic()
        with self._output.open("wb") as output:
            environment = {**os.environ, "PYTHONPATH": str(TOP)}
            self._process = subprocess.Popen(command, stderr=output, env=environment)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()  # it ends its children first
        self._process.wait()

    @property
    def seconds(self) -> float:
        """The time since it was started."""
        return time.monotonic() - self._began

    def watch(self, end: float) -> list[Saved]:
        """Looks at it until so many seconds after its start, and for two new checkpoints."""
        seen: list[Saved] = []
        known = launcher.saved_step(str(self._model_dir)) or 0
        while self.seconds < end or len(seen) < 2:
            if self._process.poll() is not None or self.seconds > end + LONGEST:
                raise SystemExit(f"it stays at step {known}: {self._output.read_text()[-2000:]}")
            step = launcher.saved_step(str(self._model_dir)) or 0
            if step > known:
                known = step
                seen.append(Saved(step, self.seconds, len(self._numbers("chief-0"))))
            time.sleep(0.02)
        return seen

    def kill(self, drawn: random.Random) -> str:
        """Kills a worker; returns its name."""
        names = sorted(one.stem for one in self._model_dir.glob("logs/*.log"))
        running: dict[str, int] = {}
        while not running:  # they may just be started again
            last = {name: number for name in names for number in self._numbers(name)[-1:]}
            running = {name: number for name, number in last.items() if self._runs(number)}
        name = drawn.choice(list(running))
        os.kill(running[name], signal.SIGKILL)
        return name

    def _numbers(self, name: str) -> list[int]:
        """Returns the number of each process that a task had."""
        text = (self._model_dir / "logs" / f"{name}.log").read_text(errors="replace")
        return list(map(int, re.findall(r"^==== process (\d+)$", text, re.MULTILINE)))

    def _runs(self, number: int) -> bool:
        """Tells whether a process is one of the launcher's; another may have the number later."""
        try:
            status = pathlib.Path(f"/proc/{number}/status").read_text(encoding="utf-8")
        except OSError:
            return False
        return f"\nPPid:\t{self._process.pid}\n" in status


def main() -> int:
    """Prints a line for each kill, and the goodput."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--workers", default="2", help="also MIN:MAX")
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.kills < 1:
        parser.error(f"--kills counts kills, 1 or more; got {options.kills}")
    drawn, seen, killed = random.Random(options.seed), list[Saved](), 0.0
    with tempfile.TemporaryDirectory() as name, Launch(pathlib.Path(name, "run"), options) as run:
        for number in range(1, options.kills + 2):
            new = run.watch(number * options.every)
            if number > 1:
                print(f"{new[0].seconds - killed:.1f} s to the next checkpoint", flush=True)
            seen += new
            if number <= options.kills:
                killed, who = run.seconds, run.kill(drawn)
                print(f"{who} killed, step {seen[-1].step} saved; ", end="", flush=True)
        _tell(seen, run.seconds, options.kills)
    return 0


def _tell(seen: list[Saved], seconds: float, kills: int) -> None:
    useful, before = 0.0, Saved(0, 0.0, 0)
    for start, listed in itertools.groupby(seen, lambda one: one.start):
        saved = list(listed)
        first, last = saved[0], saved[-1]
        made, took = last.step - first.step, last.seconds - first.seconds
        gap, new = first.seconds - before.seconds, last.step - before.step
        print(f"start {start}: {gap:.1f} s without a checkpoint, then {new} steps saved", end="")
        print(f", {made / took:.1f} a second" if made else "")
        useful += new * took / made if made else 0.0
        before = last
    first_start = seen[0].seconds
    print(f"{first_start:.1f} s from the start to the first checkpoint")
    lost = f"{(seconds - first_start - useful) / kills:.1f} s lost by each of {kills} kills"
    print(f"{before.step} steps saved after {seconds:.0f} s; {lost}")
    print(f"goodput: {useful / seconds:.0%}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
