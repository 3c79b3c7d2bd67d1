#!/usr/bin/env python3
"""Measures how much of its time a launched training uses that loses a worker each minute.

    scripts/goodput.py
    scripts/goodput.py --kills 10 --every 30 --save-steps 50

Trains configs/digits.yaml by `replicate launch --restarts` and kills a worker that is drawn
(the chief is one of them) at regular intervals.

    goodput = steps that are saved in the end * seconds of a step / seconds from the start to then

The seconds of a step are those of the same launch, from the first new checkpoint after a start to
the last one before a kill. So all else counts as lost: the first start, what is found to be dead,
the delays, the restarts, the steps that are repeated.
"""

import argparse
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


class Stretch(NamedTuple):
    """What was saved between two kills.

    Attributes:
        first: When the first new checkpoint was there, in seconds from the start of the launch.
        steps: How many steps were made between the first new checkpoint and the last one.
        seconds: How long these took.
        saved: The step of the last one.
    """

    first: float
    steps: int
    seconds: float
    saved: int


class Launch:
    """A training by `replicate launch`, which is ended on the way out.

    Args:
        model_dir: Where it trains; what it says is beside it.
        options: What was asked for.
    """

    def __init__(self, model_dir: pathlib.Path, options: argparse.Namespace):
        self._model_dir = model_dir
        command = [sys.executable, "-m", "replicate", "launch", str(TOP / "configs/digits.yaml")]
        command += ["--workers", str(options.workers), "--restarts", "1000"]
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

    def watch(self, end: float) -> Stretch:
        """Looks at it until so many seconds after its start, and for two new checkpoints."""
        seen: list[tuple[int, float]] = []
        known = launcher.saved_step(str(self._model_dir)) or 0
        while self.seconds < end or len(seen) < 2:
            if self._process.poll() is not None or self.seconds > end + LONGEST:
                raise SystemExit(f"it stays at step {known}: {self._output.read_text()[-2000:]}")
            step = launcher.saved_step(str(self._model_dir)) or 0
            if step > known:
                known = step
                seen.append((step, self.seconds))
            time.sleep(0.02)
        (begun, first), (saved, last) = seen[0], seen[-1]
        return Stretch(first, saved - begun, last - first, saved)

    def kill(self, drawn: random.Random) -> str:
        """Kills a worker; returns its name."""
        log = drawn.choice(sorted(self._model_dir.glob("logs/*.log")))
        numbers = re.findall(r"^==== process (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
        os.kill(int(numbers[-1]), signal.SIGKILL)
        return log.stem


def main() -> int:
    """Prints a line for each kill, and the goodput."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn, seen, killed = random.Random(options.seed), [], 0.0
    with tempfile.TemporaryDirectory() as name, Launch(pathlib.Path(name, "run"), options) as run:
        for number in range(1, options.kills + 2):
            seen.append(run.watch(number * options.every))
            if number > 1:
                print(f"{seen[-1].first - killed:.1f} s to the next checkpoint", flush=True)
            if number <= options.kills:
                killed, who = run.seconds, run.kill(drawn)
                print(f"{who} killed, step {seen[-1].saved} saved; ", end="", flush=True)
        _tell(seen, run.seconds)
    return 0


def _tell(seen: list[Stretch], seconds: float) -> None:
    per_step = sum(one.seconds for one in seen) / sum(one.steps for one in seen)
    saved, start, kills = seen[-1].saved, seen[0].first, len(seen) - 1
    useful = saved * per_step
    each = (seconds - start - useful) / kills
    print(f"{1 / per_step:.1f} steps/s; {start:.1f} s from the start to the first checkpoint")
    print(f"{saved} steps saved after {seconds:.0f} s; {each:.1f} s lost by each of {kills} kills")
    print(f"goodput: {useful / seconds:.0%}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
