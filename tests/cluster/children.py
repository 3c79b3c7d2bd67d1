"""Launches of children that stand for trainings; see `child`."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from replicate.app.cluster import launcher, places
from replicate.console import progress
from tests.cluster import processes

TOP = pathlib.Path(__file__).parents[2]
CHILD = pathlib.Path(__file__).with_name("child.py")
PATIENCE = 30  # seconds; what is waited for takes less than two

# A launcher of its own process: `python -c LAUNCHER CHILD FOLDER`.
_LAUNCHER = """
import sys
from replicate.app.cluster import launcher, places
from replicate.console import interrupts, progress
wanted = launcher.Wanted(places.Size(2, 2), 0, 2)
try:
    with interrupts.terminable():
        line = [sys.executable, *sys.argv[1:]]
        launcher.launch(wanted, lambda name: line, sys.argv[2], progress.Display())
except KeyboardInterrupt as e:
    print(e, file=sys.stderr)
    sys.exit(130)
"""


class Said(progress.Display):
    """A display that keeps what is said."""

    def __init__(self):
        super().__init__(True)
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    @property
    def beginnings(self):
        """What was said of clusters that were started again."""
        return [line for line in self.lines if "; restart " in line or "taken in" in line]


def launch(folder, *plan, size=(2, 2), ps=0, grace=PATIENCE, restarts=0, display=None):
    """Launches children; for each cluster the plan has words by names."""
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "clusters").unlink(missing_ok=True)
    for left in folder.glob("*:*.*"):
        left.unlink()
    wanted = launcher.Wanted(places.Size(*size), ps, grace, restarts=restarts)
    line = [sys.executable, str(CHILD), str(folder)]
    launcher.launch(wanted, lambda name: line, str(folder), display or progress.Display(True))


@contextlib.contextmanager
def started(folder, word):
    """Starts a launcher in a process of its own, whose children do what a word says, or two."""
    names = ("chief:0", "worker:0")
    words = dict(zip(names, word.split() * 2, strict=False))
    (folder / "plan.json").write_text(json.dumps([words]))
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(CHILD), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: all((folder / f"{name}.at").exists() for name in names))
        yield process
    finally:
        process.kill()
        process.communicate()
        for name in names:
            with contextlib.suppress(OSError):
                os.kill(process_of(folder, name)[0], signal.SIGKILL)


def clusters(folder):
    """Returns the addresses of each cluster, by jobs."""
    return [json.loads(line) for line in (folder / "clusters").read_text().splitlines()]


def sizes(folder):
    """Returns how many workers each cluster had, its chief among them."""
    return [1 + len(jobs.get("worker", [])) for jobs in clusters(folder)]


def process_of(folder, name):
    """Returns the number of a child's last process, and what TF_CONFIG said to it."""
    return json.loads((folder / f"{name}.json").read_text())


def gone(folder, *names):
    """Tells whether nothing is left of some children."""
    return not any(processes.is_alive(process_of(folder, name)[0]) for name in names)


def wait_for(condition):
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
