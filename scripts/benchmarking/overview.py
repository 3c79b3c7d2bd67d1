"""The tables that docs/performance.md begins with: K devices beside one, and beside others."""

import pathlib
from collections.abc import Mapping, Sequence

from benchmarking import names, processes, rounds, tables, traffic

OTHERS = {
    "one": "one device",
    "mirrored": "MirroredStrategy",
    "central": "CentralStorageStrategy",
    "loop": "by hand",
}
OURS = {"ours": "parameter_server", "ours:mirrored": "mirrored"}
_WITHOUT_NCCL = f"ours:mirrored:{names.NO_NCCL}"
_COMPILED = ("one", *OURS, "mirrored")
_WITH_XLA = tuple(f"{subject}:{names.XLA}" for subject in _COMPILED)
SUBJECTS = (*OTHERS, *OURS, _WITHOUT_NCCL, *_WITH_XLA)
_MANY = (2, 4, 8)


def gpus(python: str) -> list[str]:
    """Returns what TensorFlow calls each GPU of this machine."""
    worker = processes.Worker(python, pathlib.Path(__file__).parents[2])
    try:
        request = names.Request("one", names.MODELS[0], 1, 1, ("gpus",), 0, False, False)
        return worker.ask(request)["gpus"]
    finally:
        worker.close()


def towers(found: Sequence[str], wanted: Sequence[int] | None, on_cpu: bool) -> tuple[int, ...]:
    """Returns for which K is measured: what is wanted, or what the GPUs allow.

    Args:
        found: The GPUs.
        wanted: What the command line says; None: nothing.
        on_cpu: Whether one CPU stands for all devices.

    Raises:
        ValueError: If there are not as many GPUs.
    """
    chosen = tuple(wanted or (_MANY if on_cpu else [k for k in _MANY if k <= len(found)]))
    if on_cpu or (chosen and max(chosen) <= len(found)):
        return chosen
    count = f"{len(found)} GPU{'s' if len(found) != 1 else ''}"
    raise ValueError(
        f"Measuring {max(chosen, default=2)} devices takes as many GPUs; TensorFlow sees {count} "
        "here (TF_CPP_MIN_LOG_LEVEL=0 shows why). To try it without, --cpu shows one CPU as "
        "several devices."
    )


def cases(
    models: Sequence[str], towers: Sequence[int], subjects: Sequence[str], on_cpu: bool
) -> rounds.Cases:
    """Returns what is measured of whom; without NCCL only where there would be any."""
    chosen = [one for one in subjects if not (on_cpu and one == _WITHOUT_NCCL)]
    return rounds.cases(models, towers, chosen, ("build", "steps"))


def shown(results: rounds.Results) -> str:
    """Returns the tables of steps per second, of building, and of NCCL and XLA."""
    places = list(dict.fromkeys((case.model, case.towers) for case in results))
    parts = [
        f"Steps per second, and their ratio to others':\n\n{_steps(results, places)}",
        f"Building the training graph, seconds:\n\n{_builds(results, places)}",
        f"Steps with NCCL or XLA / steps without:\n\n{_options(results, places)}",
    ]
    return "\n\n".join(parts)


def held_and_moved(models: Sequence[str], towers: Sequence[int]) -> str:
    """Counts bytes of the busiest device; returns a table of each, beside the bounds."""
    sizes = traffic.sizes(models, towers)
    held = {place: (one.held, one.share) for place, one in sizes.items()}
    moved = {place: (max(one.sent, one.received), one.ring) for place, one in sizes.items()}
    return (
        f"Held by the busiest device, beside its share:\n\n{_bytes(held, '1 / K, kB')}\n\n"
        f"Moved by it in a step, beside a ring:\n\n{_bytes(moved, '2 (K − 1) / K, kB')}"
    )


def _bytes(pairs: Mapping[tuple[str, int, str], tuple[float, float]], bound: str) -> str:
    """Returns a row for each model and K: the bound, and the ratio to it of each strategy."""
    rows = [["model", "K", bound, *names.STRATEGIES]]
    for model, number in dict.fromkeys(place[:2] for place in pairs):
        found = [pairs[model, number, strategy] for strategy in names.STRATEGIES]
        ratios = [tables.shown(amount / least, 2) for amount, least in found]
        rows.append([model, str(number), tables.shown(found[0][1] / 1e3, 1), *ratios])
    return tables.markdown(rows)


def _case(place: tuple[str, int], subject: str) -> rounds.Case:
    return rounds.Case(*place, subject)


def _steps(results: rounds.Results, places: list[tuple[str, int]]) -> str:
    rows = [["model", "K", "strategy", "steps / s", *(f"/ {other}" for other in OTHERS.values())]]
    for place in places:
        for ours, strategy in OURS.items():
            rate = rounds.median(results, _case(place, ours), "steps")
            ratios = [
                rounds.ratio(results, _case(place, ours), _case(place, other), "steps")
                for other in OTHERS
            ]
            cells = [tables.shown(rate, 1), *(tables.shown(ratio, 2) for ratio in ratios)]
            rows.append([place[0], str(place[1]), strategy, *cells])
    return tables.markdown(rows)


def _builds(results: rounds.Results, places: list[tuple[str, int]]) -> str:
    who = {**OTHERS, **OURS}
    rows = [["model", "K", *who.values(), "parameter_server / one device"]]
    for place in places:
        seconds = [rounds.median(results, _case(place, subject), "build") for subject in who]
        ratio = rounds.ratio(results, _case(place, "ours"), _case(place, "one"), "build")
        cells = [*(tables.shown(value, 2) for value in seconds), tables.shown(ratio, 2)]
        rows.append([place[0], str(place[1]), *cells])
    return tables.markdown(rows)


def _options(results: rounds.Results, places: list[tuple[str, int]]) -> str:
    who = {**OTHERS, **OURS}
    rows = [["model", "K", "NCCL: mirrored", *(f"XLA: {who[one]}" for one in _COMPILED)]]
    for place in places:
        pairs = [("ours:mirrored", _WITHOUT_NCCL)]
        pairs += zip(_WITH_XLA, _COMPILED, strict=True)
        ratios = [
            rounds.ratio(results, _case(place, left), _case(place, right), "steps")
            for left, right in pairs
        ]
        rows.append([place[0], str(place[1]), *(tables.shown(ratio, 2) for ratio in ratios)])
    return tables.markdown(rows)
