#!/usr/bin/env python3
"""Measures what tests must not assert on: time and memory of replicate and of its peers.

scripts/benchmark.py gpu                figures of this machine's GPUs, in ten minutes
scripts/benchmark.py steps --models mlp,deep --towers 2,8 --subjects ours,mirrored,loop
scripts/benchmark.py turns --models deep --subjects ours,ours@beside --beside ../before
scripts/benchmark.py build --models deep --towers 8,32 --subjects ours,ours:call,one
scripts/benchmark.py all --subjects ours,ours@beside --beside ../before
scripts/benchmark.py cluster --workers 2 --subjects ours,mirrored,one
scripts/benchmark.py profile --models deep --towers 8 --subjects ours,loop,limit
scripts/benchmark.py models --towers 3  building each of tests/models beside one device
scripts/benchmark.py memory            what a step holds, with 1, 2, 4 and 8 micro-batches
scripts/benchmark.py bytes             what devices hold and move in a step, under each strategy
scripts/benchmark.py table             the figures that must hold, and whether they do
scripts/benchmark.py show FILE...      tables of what --json wrote

Subjects: one (one device), ours[:call|:split][:STRATEGY][:own] (own: by an optimizer in the
model_fn), mirrored and central (TensorFlow's strategies), loop (by hand), limit (no transfers, K
updates), bound (no transfers, one update). The first one is set in ratio to each other one. In a
cluster ours is MultiWorkerStrategy, mirrored MultiWorkerMirroredStrategy, servers
ParameterServerStrategy. docs/performance.md has the rest.
"""

import argparse
import functools
import json
import sys

from benchmarking import (
    building,
    clusters,
    goals,
    memory,
    names,
    overview,
    processes,
    rounds,
    tables,
    traffic,
)

COMMANDS = {
    "steps": ("steps",),
    "turns": ("steps",),
    "build": ("build", "first", "nodes", "memory"),
    "predict": ("predict",),
    "save": ("checkpoint", "export"),
    "all": tuple(names.MEASURES),
    "profile": ("profile",),
}


def _parser() -> argparse.ArgumentParser:
    """Returns what reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, measures in COMMANDS.items():
        how = ", in turns of 0.1 s in one process" if name == "turns" else ""
        command = commands.add_parser(name, help=f"measures {', '.join(measures)}{how}")
        _add_choice(command, profile=name == "profile")
        _add_method(command, 1 if name == "profile" else 5)
    command = commands.add_parser("gpu", help="the first tables of docs/performance.md")
    _add_choice(command, profile=False)
    command.set_defaults(towers=None, subjects=overview.SUBJECTS)
    _add_method(command, 2)
    command = commands.add_parser("cluster", help="measures several processes on loopback")
    _add_cluster(command)
    _add_method(command, 5)
    command = commands.add_parser("table", help="the figures that must hold")
    command.add_argument("--models", type=_models, default=names.MODELS)
    _add_method(command, 5)
    command = commands.add_parser("models", help="measures building each of tests/models")
    command.add_argument("--models", type=_words, default=(), help="of tests/models (all)")
    command.add_argument("--towers", type=int, default=3, help="K (3)")
    command.add_argument("--builds", type=int, default=20, help="of each model (20)")
    command = commands.add_parser("bytes", help="counts what devices hold and move in a step")
    command.add_argument("--models", type=_models, default=goals.MOST)
    command.add_argument("--towers", type=_numbers, default=goals.MANY, help="K (2,4,8)")
    command = commands.add_parser("memory", help="measures what steps of micro-batches hold")
    command.add_argument("--models", type=_words, default=memory.MODELS, help="mlp,bert,cnn")
    command.add_argument("--parts", type=_numbers, default=(1, 2, 4, 8), help="m (1,2,4,8)")
    command = commands.add_parser("show", help="tables of what --json wrote")
    command.add_argument("files", nargs="+", metavar="FILE")
    command.add_argument("--plot", metavar="FILE")
    return parser


def main() -> None:
    """Runs the command."""
    parser = _parser()
    options = parser.parse_args()
    if options.command == "show":
        _show(options)
    elif options.command == "bytes":
        if min(options.towers) < 2:
            parser.error("argument --towers: must be at least 2; one device moves nothing")
        print(traffic.counted(options.models, options.towers))
    elif options.command == "gpu":
        _measure_gpus(options, parser)
    elif options.command == "memory":
        unknown = [name for name in options.models if name not in memory.MODELS]
        if unknown:
            parser.error(f"argument --models: {unknown[0]!r} is none of {', '.join(memory.MODELS)}")
        print(memory.measured(options.models, options.parts))
    elif options.command == "models":
        known = building.names()
        unknown = [name for name in options.models if name not in known]
        if unknown:
            parser.error(f"argument --models: {unknown[0]!r} is none of {', '.join(known)}")
        print(building.measured(options.models or known, options.towers, options.builds))
    else:
        _measure(options, parser)


def _add_choice(command: argparse.ArgumentParser, profile: bool) -> None:
    """Adds what is measured."""
    subjects = "ours,ours:mirrored,mirrored,central,loop,limit,bound" if profile else "ours,one"
    add = command.add_argument
    add("--models", type=_models, default=("mlp", "deep"), help=f"of {', '.join(names.MODELS)}")
    add("--towers", type=_numbers, default=(8,) if profile else (2, 8), help="K, as in 2,4,8")
    add("--subjects", type=_subjects, default=_subjects(subjects), help=subjects)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    """Adds what is measured of clusters."""
    subjects = ",".join(names.IN_CLUSTERS)
    add = command.add_argument
    add("--models", type=_models, default=("mlp", "deep"), help=f"of {', '.join(names.MODELS)}")
    add("--workers", type=_numbers, default=(2,), help="W, as in 1,2,4 (2)")
    add("--subjects", type=_subjects_in_clusters, default=names.IN_CLUSTERS[:3], help=subjects)
    add("--ps", type=int, default=1, help="M, of servers (1)")
    add("--steps", type=int, default=200, help="timed steps, each round (200)")
    add("--bytes", action="store_true", help="count bytes in place of timing steps")
    add("--trace", metavar="FOLDER", help="write a profile of a step of each first worker")


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


def _subjects_in_clusters(text: str) -> tuple[str, ...]:
    for word in _words(text):
        if word.removesuffix(names.BESIDE) not in names.IN_CLUSTERS:
            known = ", ".join(names.IN_CLUSTERS)
            raise argparse.ArgumentTypeError(f"{word!r} is none of {known}")
    return _words(text)


def _subjects(text: str) -> tuple[str, ...]:
    try:
        return tuple(names.parse(word).text for word in _words(text))
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _cases(options: argparse.Namespace) -> rounds.Cases:
    """Returns what is measured of whom."""
    if options.command == "table":
        return goals.cases(options.models)
    if options.command == "cluster":
        others = {"steps"} if options.bytes else {"sent", "received"}
        measures = set(names.OF_CLUSTERS) - others
        return {
            rounds.Case(model, 1, subject, workers): measures
            for model in options.models
            for workers in options.workers
            for subject in options.subjects
        }
    if options.command == "gpu":
        return overview.cases(options.models, options.towers, options.subjects, options.cpu)
    measures = COMMANDS[options.command]
    return rounds.cases(options.models, options.towers, options.subjects, measures)


def _measure(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measures, and prints the tables."""
    if options.command != "table":
        is_beside = any(names.parse(s).is_beside for s in options.subjects)
        if is_beside != bool(options.beside):
            parser.error("--beside CHECKOUT and a subject that ends in @beside need each other")
    method = rounds.Options(
        options.rounds,
        options.seconds,
        options.python,
        options.beside,
        options.dataset,
        options.cpu,
        options.json,
    )
    if options.command == "cluster":
        make = functools.partial(
            clusters.Clusters, steps=options.steps, servers=options.ps, trace=options.trace
        )
        method = method._replace(make=make)
    in_turns = options.command in ("turns", "gpu")
    results, machine = rounds.run(_cases(options), method, in_turns=in_turns)
    _print(options.command, results, machine)
    if options.plot:
        tables.plot(results, tuple(names.MEASURES), options.plot)


def _measure_gpus(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measures this machine's GPUs, and counts bytes."""
    found = [] if options.cpu else overview.gpus(options.python)
    try:
        options.towers = overview.towers(found, options.towers, options.cpu)
    except ValueError as e:
        parser.error(str(e))
    print("Devices:", ", ".join(found) or f"one CPU, shown as {max(options.towers)}")
    options.dataset = True
    _measure(options, parser)
    print(f"\n{overview.held_and_moved(options.models, options.towers)}")


def _show(options: argparse.Namespace) -> None:
    results, machine = rounds.load(options.files)
    _print("show", results, machine)
    if options.plot:
        tables.plot(results, tuple(names.MEASURES), options.plot)


def _print(command: str, results: rounds.Results, machine: dict) -> None:
    print(tables.about(machine, results), end="\n\n")
    parts = [tables.profiles(results)]
    if command == "gpu":
        parts.append(overview.shown(results))
    elif command != "table":
        parts.append(tables.measured(results, tuple(names.MEASURES | names.OF_CLUSTERS)))
    if command in ("table", "show"):
        parts.append(goals.table(results))
    print("\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    if sys.argv[1:] == [processes.WORK]:
        processes.work()
    elif sys.argv[1:2] == [clusters.WORK]:
        from benchmarking import members

        members.work(json.loads(sys.argv[2]))
    else:
        main()
