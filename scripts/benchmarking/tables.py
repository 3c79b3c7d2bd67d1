"""Results as tables and plots."""

from collections.abc import Sequence

from benchmarking import names, rounds


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells, the first one a header: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_number = [all(_is_number(cell) for cell in column[1:]) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells, the first one a header, as documents have them."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def _is_number(cell: str) -> bool:
    return cell == "–" or cell.lstrip("≤≥ ").replace(".", "").replace(",", "").isdigit()


def shown(value: float | None, decimals: int) -> str:
    """Returns a number as tables have it."""
    return "–" if value is None else f"{value:,.{decimals}f}"


def measured(results: rounds.Results, measures: Sequence[str]) -> str:
    """Returns a table for each measure: a row for each model, K and W, a column a subject.

    Beside the medians stand the paired ratios of the first subject to each other one.
    """
    subjects = list(dict.fromkeys(case.subject for case in results))
    places = list(dict.fromkeys((case.model, case.towers, case.workers) for case in results))
    tables = []
    for measure in measures:
        kind = (names.MEASURES | names.OF_CLUSTERS)[measure]
        if all(rounds.median(results, case, measure) is None for case in results):
            continue
        first, *others = subjects
        rows = [["model", "K", "W", *subjects, *(f"{first} / {other}" for other in others)]]
        for place in places:
            model, towers, workers = place
            cases = [rounds.Case(model, towers, subject, workers) for subject in subjects]
            medians = [rounds.median(results, case, measure) for case in cases]
            ratios = [rounds.ratio(results, cases[0], case, measure) for case in cases[1:]]
            rows.append(
                [
                    *map(str, place),
                    *(shown(value, kind.decimals) for value in medians),
                    *(shown(value, 2) for value in ratios),
                ]
            )
        better = "more" if kind.is_better_high else "less"
        tables.append(f"{kind.title} ({better} is better)\n{aligned(rows)}")
    return "\n\n".join(tables)


def about(machine: dict, results: rounds.Results) -> str:
    """Returns one line that says where and how often was measured."""
    count = max(map(len, results.values()), default=0)
    return (
        f"TensorFlow {machine['tensorflow']}, Python {machine['python']}, {machine['cores']} cores "
        f"({machine['processor']}); medians of {count} rounds, ratios paired within a round."
    )


def plot(results: rounds.Results, measures: Sequence[str], file: str) -> None:
    """Draws each measure over K, one panel for each model.

    Raises:
        SystemExit: If matplotlib is missing.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit(
            "A plot needs matplotlib, which is not installed here. Install it, or leave out "
            "--plot and draw from --json."
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(case.model for case in results))
    taken = [m for m in measures if any(rounds.median(results, c, m) is not None for c in results)]
    figure, axes = pyplot.subplots(
        len(taken), len(models), figsize=(4 * len(models), 3 * len(taken)), squeeze=False
    )
    for row, measure in zip(axes, taken, strict=True):
        for panel, model in zip(row, models, strict=True):
            for subject in dict.fromkeys(case.subject for case in results):
                cases = sorted(c for c in results if c.model == model and c.subject == subject)
                points = [(c.towers, rounds.median(results, c, measure)) for c in cases]
                panel.plot(*zip(*points, strict=True), marker="o", label=subject)
            panel.set(title=model, xlabel="towers")
            panel.set_ylim(bottom=0)
        row[0].set_ylabel(names.MEASURES[measure].title.partition(",")[0])
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)


def profiles(results: rounds.Results) -> str:
    """Returns what a step is made of: a table for each model and K, a column a subject."""
    tables = []
    for place in dict.fromkeys((case.model, case.towers) for case in results):
        found = {}
        for case, taken in results.items():
            if (case.model, case.towers) == place and "profile" in taken[0]:
                found[case.subject] = _middle([result["profile"] for result in taken])
        rows = [["", *found]]
        for name in dict.fromkeys(name for profile in found.values() for name in profile):
            rows += _profile_rows(name, [profile.get(name) for profile in found.values()])
        if found:
            tables.append(f"one step of {place[0]}, K = {place[1]}\n{aligned(rows)}")
    return "\n\n".join(tables)


def _middle(profiles: list[dict]) -> dict:
    """Returns the profile whose step took the middle time."""
    return sorted(profiles, key=lambda profile: profile["wall ms"])[len(profiles) // 2]


def _profile_rows(name: str, cells: Sequence) -> list[list[str]]:
    if not any(isinstance(cell, dict) for cell in cells):
        decimals = 2 if any(isinstance(cell, float) for cell in cells) else 0
        return [[name, *(shown(cell, decimals) for cell in cells)]]
    parts = [cell or {} for cell in cells]
    inner = sorted(set().union(*parts), key=lambda key: -max(part.get(key, 0) for part in parts))
    rows = [[name, *("–" for _ in cells)]]
    for key in inner:
        values = [part.get(key) for part in parts]
        decimals = 2 if any(isinstance(value, float) for value in values) else 0
        rows.append([f"    {key}", *(shown(value, decimals) for value in values)])
    return rows
