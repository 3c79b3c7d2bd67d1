"""Rounds of measurements: every case once a round, in another order each time."""

import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarking import names, processes


class Case(NamedTuple):
    """What is measured in one process.

    Attributes:
        model: One of `names.MODELS`.
        towers: K.
        subject: As on the command line.
        workers: W, how many such processes train together.
    """

    model: str
    towers: int
    subject: str
    workers: int = 1


class Options(NamedTuple):
    """How it is measured.

    Attributes:
        rounds: How often.
        seconds: How long steps and predictions are timed each time.
        python: The interpreter.
        beside: Another checkout, for subjects that end in `@beside`; None: none.
        is_fed: Whether batches come from datasets.
        on_cpu: Whether GPUs are left alone.
        file: Where results are written after each round; None: nowhere.
        make: Makes what measures, from the interpreter and a checkout.
    """

    rounds: int
    seconds: float
    python: str
    beside: str | None = None
    is_fed: bool = False
    on_cpu: bool = False
    file: str | None = None
    make: Callable[[str, pathlib.Path], Any] = processes.Worker


Cases = dict[Case, set[str]]  # and which measures each needs
Results = dict[Case, list[dict]]  # one mapping a round


def cases(
    models: Sequence[str], towers: Sequence[int], subjects: Sequence[str], measures: Sequence[str]
) -> Cases:
    """Returns all combinations; one device is measured once for each K, to be paired with it."""
    return {
        Case(model, count, subject): set(measures)
        for model in models
        for count in towers
        for subject in subjects
    }


def run(wanted: Cases, options: Options) -> tuple[Results, dict]:
    """Measures all cases, round by round.

    A case that fails in a round is not measured again; its error is its result.

    Returns:
        The results, and what they were measured with.
    """
    root = pathlib.Path(__file__).parent.parent.parent
    workers = {False: options.make(options.python, root)}
    if options.beside is not None:
        beside = pathlib.Path(options.beside).resolve()
        workers[True] = options.make(options.python, beside)
    machine = {**processes.machine(), **workers[False].versions}
    results: Results = {case: [] for case in wanted}
    order = random.Random(0)
    try:
        for number in range(options.rounds):
            begun = time.monotonic()
            _round(wanted, options, workers, results, order)
            if options.file:
                save(results, machine, options.file)
            took = time.monotonic() - begun
            print(f"round {number + 1} of {options.rounds}: {took:.0f} s", file=sys.stderr)
    finally:
        for worker in workers.values():
            worker.close()
    return results, machine


def _round(
    wanted: Cases, options: Options, workers: dict, results: Results, order: random.Random
) -> None:
    """Measures each case once; the subjects of one model, K and W one after the other."""
    groups: dict = {}
    for case in wanted:
        groups.setdefault((case.model, case.towers, case.workers), []).append(case)
    for group in groups.values():
        order.shuffle(group)
        for case in group:
            if any("error" in result for result in results[case]):
                continue
            subject = names.parse(case.subject)
            # One device does not know how many towers and workers it is compared with.
            places = (1, 1) if subject.kind == "one" else (case.towers, case.workers)
            taken = tuple(sorted(wanted[case]))
            how = (options.seconds, options.is_fed, options.on_cpu)
            request = names.Request(case.subject, case.model, *places, taken, *how)
            result = workers[subject.is_beside].ask(request)
            if "error" in result:
                print(f"{' '.join(map(str, case))}: {result['error']}", file=sys.stderr)
            results[case].append(result)


def save(results: Results, machine: dict, file: str) -> None:
    """Writes results as JSON."""
    rows = [{**case._asdict(), "rounds": rounds} for case, rounds in results.items()]
    text = json.dumps({"machine": machine, "results": rows}, indent=1)
    pathlib.Path(file).write_text(text + "\n", encoding="utf-8")


def load(files: Sequence[str]) -> tuple[Results, dict]:
    """Reads what `save` wrote; rounds of several files follow each other."""
    results: Results = {}
    machine: dict = {}
    for file in files:
        read = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        machine = read["machine"]
        for row in read["results"]:
            case = Case(row["model"], row["towers"], row["subject"], row.get("workers", 1))
            results.setdefault(case, []).extend(row["rounds"])
    return results, machine


def values(results: Results, case: Case, measure: str) -> list[float | None]:
    """Returns a measure of a case, round by round; None where it was not taken."""
    return [result.get(measure) for result in results.get(case, [])]


def ratio(results: Results, left: Case, right: Case, measure: str) -> float | None:
    """Returns the median of left / right within each round that has both; None: no round."""
    both = zip(values(results, left, measure), values(results, right, measure), strict=False)
    ratios = [a / b for a, b in both if a is not None and b]
    return statistics.median(ratios) if ratios else None


def median(results: Results, case: Case, measure: str) -> float | None:
    """Returns the median over rounds; None where no round has it."""
    found = [value for value in values(results, case, measure) if value is not None]
    return statistics.median(found) if found else None
