#!/usr/bin/env python3
"""Disturbs runs: kills, full disks, damaged files, numbers that are none; and tells what follows.

    scripts/faults.py                         # all cases, as often as their table says
    scripts/faults.py --only SIGKILL --times 20 --seed 1
    scripts/faults.py --clusters both --rounds 20    # kills in launched trainings besides

A case is drawn by the seed: moments, places, sizes. Most trainings must end bit for bit as one
that nobody disturbed. Small disks are mounted: only root may do that, others leave them out. Exit
code 1 where something does not hold.
"""

import argparse
import os
import pathlib
import random
import sys
import tempfile
from typing import NamedTuple

sys.path.insert(1, f"{sys.path[0]}/..")  # the checkout, so that it also runs uninstalled
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from faulting import cases, clusters, subjects


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: The case.
        must: What must hold.
        times: How often it was tried.
        bad: How often it did not hold; None: this machine cannot show it.
    """

    name: str
    must: str
    times: int
    bad: int | None


def main() -> int:
    """Tries the cases and prints their table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of the names of the cases")
    parser.add_argument("--times", type=int, help="how often each is tried")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--clusters", choices=clusters.CLUSTERS)
    parser.add_argument("--rounds", type=int, default=20, help="kills in clusters")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = _of_one_process(folder / "one", options)
        rows += _of_clusters(folder, options) if options.clusters else []
    _print(rows)
    return 1 if any(row.bad for row in rows) else 0


def _of_one_process(folder: pathlib.Path, options: argparse.Namespace) -> list[Row]:
    wanted = [case for case in cases.all_of() if options.only in case.name]
    if not wanted:
        return []
    calm, rows = subjects.undisturbed(folder), []
    for case in wanted:
        drawn = random.Random(f"{options.seed} {case.name}")
        times, bad = options.times or case.times, 0
        try:
            for number in range(times):
                faults = case.attempt(calm, drawn)
                bad += bool(faults)
                for fault in faults:
                    print(f"{case.name}, {number + 1}: {fault}", flush=True)
            rows.append(Row(case.name, case.must, times, bad))
        except cases.Skipped as e:
            rows.append(Row(case.name, str(e), 0, None))
        print(f"{case.name}: {times} times, {bad} with faults", flush=True)
    return rows


def _of_clusters(folder: pathlib.Path, options: argparse.Namespace) -> list[Row]:
    layouts = clusters.CLUSTERS[options.clusters]
    found = list(clusters.rounds(folder, layouts, options.rounds, random.Random(options.seed)))
    must = "it ends in time and says who was killed; launched again, "
    rows = []
    for layout in layouts:
        faults = [bool(one) for name, one in found if name == layout.name]
        ends = "the loss falls" if layout is clusters.SERVED else "the same weights"
        rows.append(Row(f"SIGKILL in {layout.name}", must + ends, len(faults), sum(faults)))
    return rows


def _print(rows: list[Row]) -> None:
    print("\n| case | times | must hold | result |\n|---|---|---|---|")
    for row in rows:
        result = "cannot be shown here" if row.bad is None else f"{row.bad} failed"
        print(f"| {row.name} | {row.times} | {row.must} | {result if row.bad != 0 else 'holds'} |")
    print(f"\n{sum(row.times for row in rows)} faults, {sum(row.bad or 0 for row in rows)} failed")


if __name__ == "__main__":
    sys.exit(main())
