"""What must hold, as figures: which ratio, where, and how large it may or must be."""

from typing import NamedTuple

from benchmarking import names, rounds, tables

OURS = "ours"
OURS_MIRRORED = "ours:mirrored"
MANY = (2, 4, 8)
MOST = ("mlp", "deep", "embedding", "bert")


class Goal(NamedTuple):
    """A ratio between two subjects.

    Attributes:
        measure: One of `names.MEASURES`.
        ours: Above the line.
        other: Below it.
        models: Where it must hold.
        towers: For which K.
        wanted: The bound: at least where more is better, else at most.
    """

    measure: str
    ours: str
    other: str
    models: tuple[str, ...]
    towers: tuple[int, ...]
    wanted: float

    def holds(self, ratio: float | None) -> bool:
        """Whether a measured ratio is good enough."""
        if ratio is None:
            return False
        is_high = names.MEASURES[self.measure].is_better_high
        return ratio >= self.wanted if is_high else ratio <= self.wanted


GOALS = (
    Goal("build", OURS, "one", ("deep",), (8,), 1.5),
    Goal("build", OURS, "one", ("deep",), (32,), 3.0),
    Goal("build", OURS, "mirrored", ("deep",), (8,), 0.15),
    Goal("first", OURS, "one", ("deep",), (8,), 2.5),
    Goal("first", OURS, "mirrored", ("deep",), (8,), 0.3),
    Goal("steps", OURS, "mirrored", MOST, MANY, 1.5),
    Goal("steps", OURS, "central", MOST, MANY, 1.2),
    Goal("steps", OURS, "loop", names.MODELS, MANY, 0.95),
    Goal("steps", OURS, "loop", ("deep",), (8,), 1.3),
    Goal("steps", OURS, "one", names.MODELS, (1,), 0.98),
    Goal("steps", OURS, "limit", names.MODELS, MANY, 0.85),
    Goal("steps", OURS_MIRRORED, "mirrored", ("mlp", "deep"), MANY, 1.2),
    Goal("nodes", OURS, "central", names.MODELS, MANY, 1.0),
    Goal("memory", OURS, "central", names.MODELS, MANY, 1.0),
)


def cases(models: tuple[str, ...] = names.MODELS) -> rounds.Cases:
    """Returns what is measured for all goals, each case once with all that it needs."""
    needed: rounds.Cases = {}
    for goal in GOALS:
        for model in goal.models:
            for towers in goal.towers:
                for subject in (goal.ours, goal.other):
                    if model in models:
                        case = rounds.Case(model, towers, subject)
                        needed.setdefault(case, set()).add(goal.measure)
    return dict(sorted(needed.items()))


def table(results: rounds.Results) -> str:
    """Returns a row for each goal, model and K that was measured."""
    rows = [["measure", "ratio", "model", "K", "ours", "other", "measured", "wanted", "holds"]]
    for goal in GOALS:
        kind = names.MEASURES[goal.measure]
        for model in goal.models:
            for towers in goal.towers:
                ours, other = (rounds.Case(model, towers, s) for s in (goal.ours, goal.other))
                if ours not in results and other not in results:
                    continue
                medians = [rounds.median(results, case, goal.measure) for case in (ours, other)]
                ratio = rounds.ratio(results, ours, other, goal.measure)
                rows.append(
                    [
                        goal.measure,
                        f"{goal.ours} / {goal.other}",
                        model,
                        str(towers),
                        *(tables.shown(value, kind.decimals) for value in medians),
                        tables.shown(ratio, 2),
                        f"{'≥' if kind.is_better_high else '≤'} {goal.wanted:.2f}",
                        "–" if ratio is None else "yes" if goal.holds(ratio) else "no",
                    ]
                )
    held = sum(row[-1] == "yes" for row in rows)
    return f"{tables.aligned(rows)}\n{held} of {len(rows) - 1} hold."
