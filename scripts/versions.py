"""Writes docs/versions.md from the results that `nox` leaves in build/versions (see noxfile.py).

A pair that was not run keeps what the page has.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Versions

The conformance suite (the contract's behaviour, through public names alone) on every TensorFlow
that is supported, with every Python that has wheels of it: tests that passed, and those that
failed, if any. The suite grows: a pair with fewer tests than another one was run before it, and not
again. `–`: TensorFlow has no wheels for this Python. Made by `nox` and `scripts/versions.py`.
"""
_NONE = "–"


class Result(NamedTuple):
    """What came of one run of the suite."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed:,} passed" + (f", **{self.failed:,} failed**" if self.failed else "")


def read(path: Path) -> Result:
    """Returns the result in a file as pytest writes it."""
    suites = ElementTree.parse(path).getroot().iter("testsuite")
    counts = [
        [int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")]
        for suite in suites
    ]
    tests, failures, errors, skipped = map(sum, zip(*counts, strict=True))
    return Result(tests - failures - errors - skipped, failures + errors, skipped)


def table(results: dict[tuple[str, str], str]) -> str:
    """Returns a table of results by TensorFlow and Python, oldest first."""
    tensorflows, pythons = (sorted({pair[at] for pair in results}, key=_numbers) for at in (0, 1))
    lines = [
        ["TensorFlow", *(f"Python {python}" for python in pythons)],
        ["---"] * (len(pythons) + 1),
        *(
            [tensorflow, *(results.get((tensorflow, python), _NONE) for python in pythons)]
            for tensorflow in tensorflows
        ),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def told(page: Path) -> dict[tuple[str, str], str]:
    """Returns the results that a page has."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    pythons = [cell.removeprefix("Python ") for cell in rows[0][1:]] if rows else []
    return {
        (row[0], python): cell
        for row in rows[2:]
        for python, cell in zip(pythons, row[1:], strict=True)
        if cell != _NONE
    }


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main() -> None:
    """Writes the page; exits with 1 if a test failed, with 2 where there are no results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "build/versions")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/versions.md")
    arguments = parser.parse_args()
    results = {}
    for path in arguments.results.glob("*-*.xml"):
        tensorflow, _, python = path.stem.partition("-")
        results[tensorflow, python] = read(path)
    if not results:
        parser.error(f"{arguments.results} has no results. Run nox first.")
    cells = told(arguments.page) | {pair: str(result) for pair, result in results.items()}
    arguments.page.write_text(f"{HEAD}\n{table(cells)}", encoding="utf-8")
    sys.exit(any(result.failed for result in results.values()))


if __name__ == "__main__":
    main()
