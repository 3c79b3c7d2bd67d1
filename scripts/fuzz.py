#!/usr/bin/env python3
"""Reads mutated files for as long as you like, guided by the lines of the app that they reach.

    pip install -e '.[dev,fuzz]'
    scripts/fuzz.py --what config --minutes 5

What is read, and what may come of it, is that of tests/app/test_fuzz.py: an error of ours, or
nothing. The first thing else ends the script with its traceback, the mutated input above it, and
exit code 77; then `pytest tests/app/test_fuzz.py` tries that input first. What reached new lines
is kept in the folder .fuzz, where the next run begins.
"""

import argparse
import importlib
import os
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # the checkout, so that it also runs without being installed

WHAT = ("config", "csv", "npz", "tfrecord", "tf_config")
LONGEST = 60  # seconds that one input may take
MEMORY = 6 * 2**10  # megabytes that the process may have
LARGEST = 2**13  # bytes that hypothesis makes an input from
SEEDS = 32


def main() -> None:
    """Fuzzes one kind of input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=WHAT, required=True, help="what is read")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (5)")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import atheris
    except ImportError:
        parser.error("atheris is not installed: pip install -e '.[dev,fuzz]'")
    from replicate.compat import tensorflow  # noqa: F401 - not to be instrumented

    with atheris.instrument_imports(include=["replicate.app", "replicate.strategy.cluster"]):
        tests = importlib.import_module("tests.app.test_fuzz")
    corpus = ROOT / ".fuzz" / options.what
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(SEEDS if not any(corpus.iterdir()) else 0):
        (corpus / f"seed-{number}").write_bytes(random.Random(number).randbytes(LARGEST // 8))
    limits = {
        "max_total_time": round(options.minutes * 60),
        "timeout": LONGEST,
        "rss_limit_mb": MEMORY,
        "max_len": LARGEST,
        "len_control": 0,  # hypothesis makes nothing of a few bytes
        "artifact_prefix": f"{ROOT / '.fuzz'}/{options.what}-",
    }
    arguments = [f"-{name}={value}" for name, value in limits.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], tests.one_input(options.what))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
