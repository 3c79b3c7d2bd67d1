"""Rounds of measurements: every case once a round, in another order each time."""

import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def run(wanted: Cases, options: Options, *, in_turns: bool = False) -> tuple[Results, dict]:
    """Measures all cases, round by round.

    A case that fails in a round is not measured again; its error is its result.

    Args:
        wanted: The cases.
        options: How they are measured.
        in_turns: Whether the subjects of one model and K take turns in one process, with each of
            which a round begins anew. Each turn counts as a round.

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
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            graphs = _graphs(wanted, options, workers, results, folder) if in_turns else {}
            for number in range(options.rounds):
                begun = time.monotonic()
                if in_turns:
                    _turns(graphs, options, workers[False], results)
                else:
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
    for group in _groups(wanted):
        order.shuffle(group)
        for case in group:
            if not any("error" in result for result in results[case]):
                found = _ask(workers, case, options, tuple(sorted(wanted[case])))
                results[case].append(found)


def _groups(cases: Iterable[Case]) -> list[list[Case]]:
    """Returns the cases of each model, K and W."""
    groups: dict = {}
    for case in cases:
        groups.setdefault((case.model, case.towers, case.workers), []).append(case)
    return list(groups.values())


def _ask(
    workers: dict, case: Case, options: Options, measures: tuple, graphs: tuple[str, ...] = ()
) -> dict:
    """Returns what a worker measures of a case."""
    subject = names.parse(case.subject)
    # One device does not know how many towers and workers it is compared with.
    places = (1, 1) if subject.kind == "one" else (case.towers, case.workers)
    how = (options.seconds, options.is_fed, options.on_cpu, graphs)
    request = names.Request(case.subject, case.model, *places, measures, *how)
    result = workers[subject.is_beside].ask(request)
    if "error" in result:
        print(f"{' '.join(map(str, case))}: {result['error']}", file=sys.stderr)
    return result


def _graphs(
    wanted: Cases, options: Options, workers: dict, results: Results, folder: str
) -> dict[Case, str]:
    """Builds the training graph of each case; returns the files where they are."""
    graphs: dict[Case, str] = {}
    for number, case in enumerate(wanted):
        file = os.path.join(folder, str(number))
        result = _ask(workers, case, options, ("graph", *(wanted[case] & {"build"})), (file,))
        if result:
            results[case].append(result)
        if "error" not in result:
            graphs[case] = file
    return graphs


def _turns(graphs: Mapping[Case, str], options: Options, worker: Any, results: Results) -> None:
    """Lets the graphs of each model and K take turns, in a process of their own."""
    for group in _groups(graphs):
        files, first = tuple(graphs[case] for case in group), group[0]
        how = (options.seconds, options.is_fed, options.on_cpu, files)
        found = worker.ask(
            names.Request(first.subject, first.model, first.towers, 1, ("turns",), *how)
        )
        if "error" in found:
            raise SystemExit(f"{first.model}, K = {first.towers}: {found['error']}")
        for case, rates in zip(group, found["turns"], strict=True):
            results[case] += [{"steps": rate} for rate in rates]


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
