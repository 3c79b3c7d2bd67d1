#!/usr/bin/env python3
"""Builds the API reference into a folder: `scripts/docs` calls this in its environment."""

import sys
from pathlib import Path

sys.path[0] += "/.."  # the checkout, so that it also runs without being installed

MODULES = ("replicate", "replicate.devices", "replicate.errors", "replicate.strategy")
OTHERS = ("!replicate.strategy\\..+", "replicate.estimator")


def main(folder: str = "build/docs") -> None:
    """Writes one page for each public module."""
    import pdoc

    import replicate
    from replicate import estimator

    for name in replicate.__all__:
        getattr(replicate, name)  # is loaded on first use, and pdoc looks at what is there
    estimator.__all__ = ["install"]  # all else is described by TensorFlow
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc(MODULES[0], "!replicate\\..+", *MODULES[1:], *OTHERS, output_directory=Path(folder))
    print(Path(folder) / "index.html")


if __name__ == "__main__":
    main(*sys.argv[1:])
