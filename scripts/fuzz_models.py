#!/usr/bin/env python3
"""Trains random model_fns on K devices and on one, and finds where they differ.

    scripts/fuzz_models.py --seeds 0:1000 --shrink       # these models
    scripts/fuzz_models.py --seeds 1000: --minutes 60    # from there on, for an hour
    scripts/fuzz_models.py --seed 12                     # prints one model, and what comes of it

A model is drawn from a seed: a few lines out of scripts/fuzzing/grammar, batches of lengths on
which rules break, losses, an optimizer, K, a strategy. It takes three steps in float64, then it may
evaluate or predict. A crash, an exception, a hang, a warning or a number that differs is a failure.
What one device refuses, or what multiplies rounding on one device, is discarded and counted.

Failures are told by their signature. `--shrink` prints the first program of each as a short one
that runs in the checkout; `--output FOLDER` writes them there. Exits with 1 if one failed.
"""

import argparse
import itertools
import os
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

SHRINKING = 240.0  # seconds for one program


def main(arguments: list[str] | None = None) -> int:
    """Judges the models that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    seeds = "from A up to B (0:100), or without end: A:"
    parser.add_argument("--seeds", type=_range, default="0:100", metavar="A:B", help=seeds)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most so long")
    parser.add_argument("--seed", type=int, help="one model alone, which is printed")
    parser.add_argument("--lines", type=int, default=12, help="the most that a model has (12)")
    parser.add_argument("--shrink", action="store_true", help="prints failing models as short ones")
    parser.add_argument("--output", type=pathlib.Path, help="where they are written")
    options = parser.parse_args(arguments)
    from scripts.fuzzing import children

    child = children.Child(options.lines)
    try:
        return _one(child, options) if options.seed is not None else _many(child, options)
    finally:
        child.close()


def _one(child, options: argparse.Namespace) -> int:
    judged = child.grown(options.seed)
    if judged.program is not None:
        print(_small(child, judged, options) if options.shrink else judged.program.source())
    print(judged.verdict.detail)
    print(f"{judged.verdict.kind} {judged.verdict.signature}")
    return int(judged.verdict.kind == "fails")


def _many(child, options: argparse.Namespace) -> int:
    kinds: Counter[str] = Counter()
    signatures: Counter[tuple[str, str]] = Counter()
    last = began = time.monotonic()
    for seed in _seeds(options):
        judged = child.grown(seed)
        if "hang" in judged.verdict.signature:  # or the machine was busy
            judged = child.grown(seed)
        kind, signature, _ = judged.verdict
        kinds[kind] += 1
        if kind != "holds":
            print(f"{seed}: {kind}: {signature}", flush=True)
            signatures[kind, signature] += 1
        if kind == "fails" and signatures[kind, signature] == 1 and options.shrink:
            print(text := _small(child, judged, options), flush=True)
            if options.output:
                options.output.mkdir(parents=True, exist_ok=True)
                (options.output / f"seed_{seed}.py").write_text(text, encoding="utf-8")
        if time.monotonic() - last > 60:
            last = time.monotonic()
            print(f"{seed}: {_summary(kinds, last - began)}", flush=True)
    for (kind, signature), number in signatures.most_common():
        print(f"{number} {kind}: {signature}")
    print(_summary(kinds, time.monotonic() - began))
    return int(kinds["fails"] > 0)


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    began = time.monotonic()
    for seed in options.seeds:
        if time.monotonic() - began >= 60 * options.minutes:
            return
        yield seed


def _range(text: str) -> Iterable[int]:
    first, colon, end = text.partition(":")
    is_range = first.isdecimal() and (end.isdecimal() or (colon and not end))
    if not is_range:
        raise argparse.ArgumentTypeError(f"must be A:B or A:, whole numbers, got {text!r}")
    return range(int(first), int(end)) if end else itertools.count(int(first))


def _small(child, judged, options: argparse.Namespace) -> str:
    """Returns a failing program's text, made as short as time allows."""
    from scripts.fuzzing import shrinking

    program, verdict = judged
    end = time.monotonic() + SHRINKING

    def fails_alike(other) -> bool:
        return time.monotonic() < end and child.judged(other)[:2] == verdict[:2]

    if verdict.kind == "fails":
        program = shrinking.shrunk(program, fails_alike)
    title = f"{program.title}\n\n{verdict.signature}\n"
    return program._replace(title=title).source()


def _summary(kinds: Counter[str], seconds: float) -> str:
    total = sum(kinds.values())
    share = 100 * kinds["discarded"] / max(total, 1)
    return (
        f"{total} models, {kinds['discarded']} discarded ({share:.1f} %), {kinds['fails']} failed,"
        f" {seconds / 60:.0f} minutes"
    )


if __name__ == "__main__":
    sys.exit(main())
