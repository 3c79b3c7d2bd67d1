#!/usr/bin/env python3
"""Changes the package in small ways, one at a time, and looks whether a test notices.

    coverage run -m pytest -n 2 --quick -p scripts.mutating.reach && coverage combine
    scripts/mutants.py --sample 200 replicate/splitting replicate/strategy replicate/graph

The first line finds out which tests reach which line; the second mutates lines of these folders,
drawn by `--seed`, each in a copy of the checkout, and runs tests that reach it: of each test
function one in turn, the quickest first. A mutant is killed if one of them fails or does not end.
Those that survive are listed, and can be tried again with more tests (`--again OUTPUT --seconds
300`); scripts/mutating/judged.txt says of some why no test can tell them from the package.

Exits with 1 if one survives that is not judged. Linux and macOS only.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.dont_write_bytecode = True  # a mutant has the size and the second of another one

import coverage  # noqa: E402
import pytest  # noqa: E402

from scripts.mutating import mutations, reach  # noqa: E402

JUDGED = ROOT / "scripts" / "mutating" / "judged.txt"
NOT_COPIED = (".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
KILLED, TIMED_OUT, SURVIVED, JUDGED_SO, UNREACHED = (
    "killed",
    "timed out",
    "survived",
    "judged",
    "not reached",
)


class Mutant(NamedTuple):
    """A change to a module, and the tests that ought to notice it."""

    path: str
    change: mutations.Mutation
    tests: list[str]
    seconds: float

    def __str__(self) -> str:
        change = self.change
        return f"{self.path} {change.function}: {_one_line(change.before)} -> {change.after}"


def main() -> int:
    """Mutates the folders that the command line names, and prints what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="of the package, or modules")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="draws them (1)")
    parser.add_argument("--workers", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for each (30)")
    parser.add_argument("--again", type=pathlib.Path, help="only those that this output lists")
    parser.add_argument("--data", default=str(ROOT / "build/coverage"), help="of coverage")
    options = parser.parse_args()
    wanted = list(_mutants(options))
    if options.again:
        listed = options.again.read_text(encoding="utf-8")
        wanted = [one for one in wanted if f": {one} (line {one.change.line})" in listed]
    random.Random(options.seed).shuffle(wanted)
    wanted = wanted[: options.sample]
    judged = {
        line.partition(" # ")[0].strip() for line in JUDGED.read_text(encoding="utf-8").splitlines()
    }
    import tensorflow  # noqa: F401 - once for all who are forked

    counts: Counter[tuple[str, str]] = Counter()
    for mutant, result in _results(wanted, options.workers):
        if result in (SURVIVED, UNREACHED) and str(mutant) in judged:
            result = JUDGED_SO
        counts[mutant.path.split("/")[1], result] += 1
        if result in (SURVIVED, UNREACHED):
            print(f"{result}: {mutant} (line {mutant.change.line})", flush=True)
    print(_table(counts))
    return int(any(result in (SURVIVED, UNREACHED) for _, result in counts))


def _mutants(options: argparse.Namespace) -> Iterator[Mutant]:
    """Yields all changes to the modules of some folders, each with its tests."""
    data = coverage.CoverageData(options.data)
    data.read()
    seconds = reach.seconds_of()
    for folder in options.folders:
        place = ROOT / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tests = data.contexts_by_lineno(str(path))
            for change in mutations.of(path.read_text(encoding="utf-8")):
                reaching = {*tests.get(change.line, ()), *tests.get(change.statement, ())}
                if "" in reaching and (reaching == {""} or not change.function.count(".")):
                    # It is run by an import, or in processes of which no test is known.
                    reaching = set().union(*tests.values())
                took = {test: seconds[test] for test in reaching & seconds.keys()}
                chosen = reach.in_turns(took, options.seconds)
                spent = sum(map(took.__getitem__, chosen))
                yield Mutant(str(path.relative_to(ROOT)), change, chosen, spent)


class _Run:
    """Tests of one mutant, in a process and in a copy of the checkout of their own."""

    def __init__(self, mutant: Mutant, copy: pathlib.Path) -> None:
        self.mutant, self.copy = mutant, copy
        path = copy / mutant.path
        path.write_text(mutant.change.applied(path.read_text("utf-8")), "utf-8")
        self._child = _forked(["-x", *mutant.tests], copy)
        self._end = time.monotonic() + 30 + 4 * mutant.seconds

    def result(self) -> str | None:
        """Returns what came of it, and takes back the change; None while it runs."""
        ended, status = os.waitpid(self._child, os.WNOHANG)
        if not ended and time.monotonic() < self._end:
            return None
        if not ended:
            os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        shutil.copyfile(ROOT / self.mutant.path, self.copy / self.mutant.path)
        if not ended:
            return TIMED_OUT
        return KILLED if status else SURVIVED


def _results(mutants: list[Mutant], workers: int) -> Iterator[tuple[Mutant, str]]:
    """Yields what comes of each mutant; those that a test has killed come last.

    A test that fails in an unchanged copy, too, has killed nothing.
    """
    yield from ((mutant, UNREACHED) for mutant in mutants if not mutant.tests)
    waiting = [mutant for mutant in reversed(mutants) if mutant.tests]
    killed: list[tuple[Mutant, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        free = [pathlib.Path(folder, str(number)) for number in range(workers)]
        for copy in free:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
        running: list[_Run] = []
        while waiting or running:
            while waiting and free:
                running.append(_Run(waiting.pop(), free.pop()))
            time.sleep(0.05)
            for run in list(running):
                if (result := run.result()) is None:
                    continue
                running.remove(run)
                free.append(run.copy)
                if result == KILLED:
                    killed.append((run.mutant, reach.failed(run.copy)))
                else:
                    yield run.mutant, result
        failing = {test for _, tests in killed for test in tests}
        if failing:
            os.waitpid(_forked(sorted(failing), free[0]), 0)
            failing = set(reach.failed(free[0]))
    for mutant, tests in killed:
        yield mutant, SURVIVED if failing.intersection(tests) else KILLED


def _forked(arguments: list[str], copy: pathlib.Path) -> int:
    """Starts a process that runs tests in a copy of the checkout; returns its number."""
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    os.chdir(copy)
    sys.path[0] = str(copy)
    os.environ["PYTHONPATH"] = str(copy)
    for name in [name for name in sys.modules if name.split(".")[0] in ("scripts", "replicate")]:
        del sys.modules[name]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    code = 70
    try:
        code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], [reach.Failures(copy)])
    finally:
        os._exit(code)


def _table(counts: Counter[tuple[str, str]]) -> str:
    results = (KILLED, TIMED_OUT, JUDGED_SO, SURVIVED, UNREACHED)
    lines = [("package", *results), ("---",) * (len(results) + 1)]
    for package in sorted({package for package, _ in counts}):
        lines.append((package, *(str(counts[package, result]) for result in results)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
