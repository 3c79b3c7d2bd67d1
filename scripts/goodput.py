#!/usr/bin/env python3
"""Measures how much of its time a launched training uses that loses a worker each minute.

    scripts/goodput.py
    scripts/goodput.py --minutes 10 --every 30 --save-steps 50

Trains configs/digits.yaml by `replicate launch --restarts`: first a minute in which nobody is
killed, which gives the time of a step (with its share of checkpoints), then as long as is asked
for, while a worker that is drawn (the chief is one of them) gets SIGKILL at regular intervals.

    goodput = steps that are saved in the end * seconds of a step / seconds from the start to then

So all else counts as lost: the first start, the steps that are repeated, the delays, the restarts.
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

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(TOP)  # the checkout, so that it also runs without being installed

from replicate.app.cluster import launcher  # noqa: E402

CALM = 60.0  # seconds in which the time of a step is measured
LONGEST = 300.0  # seconds until the first checkpoint, and until a launch has ended


class Launch:
    """A training by `replicate launch`, which is ended on the way out.

    Args:
        model_dir: Where it trains; its last lines are beside it.
        options: What was asked for.
    """

    def __init__(self, model_dir: pathlib.Path, options: argparse.Namespace):
        self.model_dir = model_dir
        command = [sys.executable, "-m", "replicate", "launch", str(TOP / "configs/digits.yaml")]
        command += ["--workers", str(options.workers), "--restarts", "1000"]
        command += ["--model-dir", str(model_dir), "--train.steps", "1000000000"]
        command += ["--train.save_checkpoints_steps", str(options.save_steps)]
        command += ["--devices", "{cpu: 1}", "--eval", "null", "--export", "null"]
        self._output = model_dir.with_suffix(".txt")
        self.began = time.monotonic()
        with self._output.open("wb") as output:
            environment = {**os.environ, "PYTHONPATH": str(TOP)}
            self._process = subprocess.Popen(command, stderr=output, env=environment)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()  # its children end with it
        self._process.wait()

    def reach(self, step: int) -> float:
        """Waits until more than a step is saved; returns when it was."""
        end = time.monotonic() + LONGEST
        while self.saved() <= step:
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"it stays at step {step}: {self._output.read_text()[-2000:]}")
            time.sleep(0.02)
        return time.monotonic()

    def saved(self) -> int:
        """Returns the step of the newest checkpoint; -1 where there is none."""
        found = launcher.saved_step(str(self.model_dir))
        return -1 if found is None else found

    def kill(self, drawn: random.Random) -> str:
        """Kills a worker; returns its name."""
        log = drawn.choice(sorted(self.model_dir.glob("logs/*.log")))
        numbers = re.findall(r"^==== process (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
        try:
            os.kill(int(numbers[-1]), signal.SIGKILL)
        except ProcessLookupError:
            return f"nobody ({log.stem} was not there)"
        return log.stem


def main() -> int:
    """Prints a line for each kill, and the goodput."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        per_step, start = _calm(pathlib.Path(name, "calm"), options)
        print(f"{1 / per_step:.1f} steps/s, {start:.1f} s to the first checkpoint", flush=True)
        steps, seconds, kills = _disturbed(pathlib.Path(name, "disturbed"), options)
    lost = (seconds - steps * per_step - start) / max(kills, 1)
    print(f"{kills} kills in {seconds:.0f} s, {lost:.1f} s lost by each; {steps} steps are saved")
    print(f"goodput {steps * per_step / seconds:.0%}; without the first start", end=" ")
    print(f"{steps * per_step / (seconds - start):.0%}")
    return 0


def _calm(model_dir: pathlib.Path, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the seconds of a step, and those until the first checkpoint that has steps."""
    with Launch(model_dir, options) as launch:
        first = launch.reach(0)
        step = launch.saved()
        time.sleep(CALM)
        last = launch.saved()
        now = launch.reach(last)  # whole intervals between checkpoints
        return (now - first) / (launch.saved() - step), first - launch.began


def _disturbed(model_dir: pathlib.Path, options: argparse.Namespace) -> tuple[int, float, int]:
    """Returns the steps that are saved in the end, after how many seconds, and the kills."""
    drawn, kills = random.Random(options.seed), 0
    with Launch(model_dir, options) as launch:
        end = launch.began + 60 * options.minutes
        while launch.began + (kills + 1) * options.every < end:
            kills += 1
            time.sleep(max(0.0, launch.began + kills * options.every - time.monotonic()))
            step, killed_at, who = launch.saved(), time.monotonic(), launch.kill(drawn)
            back = launch.reach(step) - killed_at
            print(f"{who} killed, step {step} saved; the next one {back:.1f} s later", flush=True)
        time.sleep(max(0.0, end - time.monotonic()))
        return launch.saved(), time.monotonic() - launch.began, kills


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
