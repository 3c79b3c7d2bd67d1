#!/usr/bin/env python3
"""Measures what tests must not assert on: time and memory of replicate and of its peers.

scripts/benchmark.py steps --models mlp,deep --towers 2,8 --subjects ours,mirrored,loop
scripts/benchmark.py build --models deep --towers 8,32 --subjects ours:clone,ours:call,one
scripts/benchmark.py all --subjects ours,ours@beside --beside ../before
scripts/benchmark.py profile --models deep --towers 8 --subjects ours,loop,limit
scripts/benchmark.py table             the figures that must hold, and whether they do
scripts/benchmark.py show FILE...      tables of what --json wrote

Subjects: one (one device), ours[:call|:clone|:auto][:STRATEGY][:own|:fn], mirrored and central
(TensorFlow's strategies), loop (by hand), limit (no transfers, K updates), bound (no transfers,
one update). The first one is set in ratio to each other one. docs/performance.md has the rest.
"""

import argparse
import sys

from benchmarking import goals, names, processes, rounds, tables

COMMANDS = {
    "steps": ("steps",),
    "build": ("build", "first", "nodes", "memory"),
    "predict": ("predict",),
    "save": ("checkpoint", "export"),
    "all": tuple(names.MEASURES),
    "profile": ("profile",),
}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, measures in COMMANDS.items():
        command = commands.add_parser(name, help=f"measures {', '.join(measures)}")
        _add_choice(command, profile=name == "profile")
        _add_method(command, 1 if name == "profile" else 5)
    command = commands.add_parser("table", help="the figures that must hold")
    command.add_argument("--models", type=_models, default=names.MODELS)
    _add_method(command, 5)
    command = commands.add_parser("show", help="tables of what --json wrote")
    command.add_argument("files", nargs="+", metavar="FILE")
    command.add_argument("--plot", metavar="FILE")
    options = parser.parse_args()
    if options.command == "show":
        _show(options)
    else:
        _measure(options, parser)


def _add_choice(command: argparse.ArgumentParser, profile: bool) -> None:
    """Adds what is measured."""
    subjects = "ours,ours:mirrored,mirrored,central,loop,limit,bound" if profile else "ours,one"
    add = command.add_argument
    add("--models", type=_models, default=("mlp", "deep"), help=f"of {', '.join(names.MODELS)}")
    add("--towers", type=_numbers, default=(8,) if profile else (2, 8), help="K, as in 2,4,8")
    add("--subjects", type=_subjects, default=_subjects(subjects), help=subjects)


def _add_method(command: argparse.ArgumentParser, rounds_of_it: int) -> None:
    """Adds how it is measured."""
    add = command.add_argument
    add("--rounds", type=int, default=rounds_of_it, help=f"how many ({rounds_of_it})")
    add("--seconds", type=float, default=1.5, help="of timed steps, each round (1.5)")
    add("--python", default=sys.executable, help="another interpreter, with another TensorFlow")
    add("--beside", metavar="CHECKOUT", help="of subjects that end in @beside")
    add("--dataset", action="store_true", help="batches from tf.data, not held by the devices")
    add("--cpu", action="store_true", help="leave GPUs alone")
    add("--json", metavar="FILE", help="written after each round")
    add("--plot", metavar="FILE", help="draw the medians as well")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _words(text)))


def _models(text: str) -> tuple[str, ...]:
    for word in _words(text):
        if word not in names.MODELS:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(names.MODELS)}")
    return _words(text)


def _subjects(text: str) -> tuple[str, ...]:
    try:
        return tuple(names.parse(word).text for word in _words(text))
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _measure(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measures, and prints the tables."""
    if options.command == "table":
        cases = goals.cases(options.models)
    else:
        if any(names.parse(s).is_beside for s in options.subjects) != bool(options.beside):
            parser.error("--beside CHECKOUT and a subject that ends in @beside need each other")
        measures = COMMANDS[options.command]
        cases = rounds.cases(options.models, options.towers, options.subjects, measures)
    method = rounds.Options(
        options.rounds,
        options.seconds,
        options.python,
        options.beside,
        options.dataset,
        options.cpu,
        options.json,
    )
    results, machine = rounds.run(cases, method)
    _print(options.command, results, machine)
    if options.plot:
        tables.plot(results, tuple(names.MEASURES), options.plot)


def _show(options: argparse.Namespace) -> None:
    results, machine = rounds.load(options.files)
    _print("show", results, machine)
    if options.plot:
        tables.plot(results, tuple(names.MEASURES), options.plot)


def _print(command: str, results: rounds.Results, machine: dict) -> None:
    print(tables.about(machine, results), end="\n\n")
    parts = [tables.profiles(results)]
    if command != "table":
        parts.append(tables.measured(results, tuple(names.MEASURES)))
    if command in ("table", "show"):
        parts.append(goals.table(results))
    print("\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    if sys.argv[1:] == [processes.WORK]:
        processes.work()
    else:
        main()
