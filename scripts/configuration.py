#!/usr/bin/env python3
"""Writes what is derived from the config's model: its JSON Schema, docs/configuration.md."""

import sys
from pathlib import Path

sys.path[0] += "/.."  # the checkout, so that it also runs without being installed


def main() -> None:
    """Writes the files, each where it belongs."""
    from replicate.app.command import reference
    from replicate.app.config import schema

    page = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
    for file, text in {schema.FILE: schema.text(), page: reference.text()}.items():
        file.write_text(text, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
