#!/usr/bin/env python3
"""Writes into docs/ported.md what `replicate.verify` finds on the models that it tells of.

    python scripts/ported.py [MODEL ...]

Without names all that the page has a table of are verified. Exits with 1 if one differs.
"""

import os
import re
import sys
import textwrap
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_TOP))  # the checkout, so that it also runs without being installed

_PAGE = _TOP / "docs" / "ported.md"
_TABLE = re.compile(r"(<!-- verify (\w+) -->\n)```text\n.*?```", re.DOTALL)


def main(names: list[str]) -> int:
    """Verifies models, one after the other, and writes each one's table into the page."""
    warnings.simplefilter("ignore")
    import replicate
    from tests.models import every

    replicate.devices.make_logical_cpus(max(model.devices for model in every.MODELS.values()))
    held = True
    for name in names or verified(_PAGE.read_text("utf-8")):
        found = every.MODELS[name].verified()
        print(f"{name}\n{found}\n", flush=True)
        lines = [_wrapped(line) for line in str(found).splitlines()]
        page = with_table(_PAGE.read_text("utf-8"), name, "\n".join(lines))
        _PAGE.write_text(page, "utf-8")
        held = held and found.holds
    return 0 if held else 1


def _wrapped(line: str) -> str:
    """Returns a remark in lines that can be read, and any other line as it is."""
    return textwrap.fill(line, 100, subsequent_indent="  ") if line.startswith("* ") else line


def with_table(page: str, name: str, table: str) -> str:
    """Returns the page with this table as that of a model."""

    def written(place: re.Match) -> str:
        return f"{place[1]}```text\n{table}\n```" if place[2] == name else place[0]

    return _TABLE.sub(written, page)


def verified(page: str) -> list[str]:
    """Returns the models that a page has a table of."""
    return [name for _, name in _TABLE.findall(page)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
