"""A plugin of pytest: tells coverage which test runs, and keeps how long each takes.

So it is known which tests reach a line, and which of them are the quickest.
"""

import json
import os
import pathlib
from collections import Counter

import coverage
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build" / "mutants"
_FAILED = "failed.txt"
_durations: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Gives the lines that are run from here on to a test."""
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if current is not None:
            current.switch_context("")


def pytest_runtest_logreport(report):
    """Adds up what a test takes; one that fails reaches nothing."""
    before = _durations.get(report.nodeid, 0.0)
    failed = float("inf") if report.outcome != "passed" else 0.0
    _durations[report.nodeid] = before + report.duration + failed


def pytest_sessionfinish(session):
    """Writes the durations of this process."""
    if not hasattr(session.config, "workerinput") and _durations:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"durations-{os.getpid()}.json").write_text(json.dumps(_durations))


class Failures:
    """A plugin of pytest: writes down which tests fail.

    Args:
        folder: Where.
    """

    def __init__(self, folder: pathlib.Path):
        self._path = folder / _FAILED
        self._path.write_text("")

    def pytest_runtest_logreport(self, report):
        """Adds a test."""
        if report.failed:
            with self._path.open("a") as file:
                file.write(report.nodeid + "\n")


def failed(folder: pathlib.Path) -> list[str]:
    """Returns the tests that `Failures` wrote down; none: pytest itself has failed."""
    return (folder / _FAILED).read_text().splitlines()


def seconds_of() -> dict[str, float]:
    """Returns how long each test took that passed."""
    durations: dict[str, float] = {}
    for kept in FOLDER.glob("durations-*.json"):
        durations |= json.loads(kept.read_text())
    return {test: took for test, took in durations.items() if took < float("inf")}


def in_turns(seconds: dict[str, float], budget: float) -> list[str]:
    """Returns tests that end within a budget: of each function one in turn, the quickest first."""
    quickest = sorted(seconds, key=lambda test: (seconds[test], test))
    turns: Counter[str] = Counter()
    order = []
    for test in quickest:
        function = test.partition("[")[0]
        order.append((turns[function], test))
        turns[function] += 1
    chosen = quickest[:1]
    left = budget - sum(map(seconds.__getitem__, chosen))
    for _, test in sorted(order, key=lambda one: (one[0], seconds[one[1]])):
        if seconds[test] <= left and test not in chosen:
            chosen.append(test)
            left -= seconds[test]
    return chosen
