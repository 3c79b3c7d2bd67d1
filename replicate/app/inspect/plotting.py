"""The picture of learning curves: a panel for each quantity, a color for each run."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import matplotlib
from matplotlib import lines as matplotlib_lines
from matplotlib import ticker

from replicate.app.inspect import curves, pictures

__all__ = ["plot"]

_TRAIN = "train"
_RATE = "learning_rate"
_SPEEDS = {"examples_per_second": "examples per second", "global_step/sec": "steps per second"}
_NO_METRICS = ("global_step", "loss", _RATE, *_SPEEDS)

# Inches.
_PANEL = (4.4, 3.1)
_LINE = 0.24
_MARGIN = 0.2
_KEY = 0.35  # the colored line before a run's name

_STYLES = ("--", ":", "-.")  # of evaluations; training is drawn through
_FEW = 40  # points that are marked, so that one alone is seen
_WIDE_RANGE = 100  # beyond it an axis is logarithmic
_MAX_TITLE = 48


class _Line(NamedTuple):
    """One curve of a panel.

    Attributes:
        run: The number of its run.
        source: train, or the folder of an evaluation.
        curve: Its values by step.
    """

    run: int
    source: str
    curve: curves.Curve


class _Panel(NamedTuple):
    """What is drawn over the same axes."""

    title: str
    lines: list[_Line]


def plot(runs: Sequence[curves.Run], path: str) -> None:
    """Draws the curves of some runs into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    panels = list(_panels(runs))
    across = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    down = math.ceil(len(panels) / across)
    sources = list(dict.fromkeys(line.source for panel in panels for line in panel.lines))
    above = (len(runs) + 1) * _LINE + 2 * _MARGIN
    width, height = across * _PANEL[0] + _MARGIN, down * _PANEL[1] + above
    made = pictures.blank(width, height)
    space = {"w_pad": _MARGIN / 2, "h_pad": _MARGIN / 2}
    made.set_layout_engine("constrained", rect=(0, 0, 1, 1 - above / height), **space)
    grid = made.add_gridspec(down, across)
    colors = _colors(len(runs))
    steps = [step for panel in panels for line in panel.lines for step in line.curve]
    first, last = min(steps), max(steps)
    edge = max(last - first, 1) * 0.03
    for index, panel in enumerate(panels):
        axes = made.add_subplot(grid[index // across, index % across])
        _draw_panel(axes, panel, colors, sources)
        axes.set_xlim(first - edge, last + edge)
    head = made.add_axes((0, 1 - above / height, 1, above / height))
    head.set_in_layout(False)
    _draw_head(head, [run.name for run in runs], colors, sources)
    pictures.save(made, path)


def _panels(runs: Sequence[curves.Run]) -> Iterator[_Panel]:
    """Yields the panels that have data: loss, metrics, learning rate, speed."""
    metrics = {tag for run in runs for evaluated in run.evals.values() for tag in evaluated}
    shown = {"loss": "loss"}
    shown |= {tag: tag for tag in sorted(metrics) if tag not in _NO_METRICS}
    shown |= {_RATE: "learning rate"}
    speeds = [tag for tag in _SPEEDS if any(_is_drawable(run.train.get(tag)) for run in runs)]
    shown |= {tag: _SPEEDS[tag] for tag in speeds[:1]}
    for tag, title in shown.items():
        lines = []
        for number, run in enumerate(runs):
            for source, found in {_TRAIN: run.train, **run.evals}.items():
                if _is_drawable(found.get(tag)):
                    lines.append(_Line(number, source, found[tag]))
        if lines:
            yield _Panel(title, lines)


def _is_drawable(curve: curves.Curve | None) -> bool:
    """Whether a curve has a number other than NaN and infinities."""
    return curve is not None and any(map(math.isfinite, curve.values()))


def _draw_panel(axes, panel: _Panel, colors: Sequence, sources: Sequence[str]) -> None:
    for line in panel.lines:
        values = [value if math.isfinite(value) else math.nan for value in line.curve.values()]
        axes.plot(
            list(line.curve),
            values,
            color=colors[line.run],
            linestyle=_style(line.source, sources),
            linewidth=1.2,
            marker="." if len(values) <= _FEW else None,
            markersize=5,
        )
    numbers = [value for line in panel.lines for value in line.curve.values()]
    numbers = [value for value in numbers if math.isfinite(value)]
    if min(numbers) > 0 and max(numbers) / min(numbers) > _WIDE_RANGE:
        axes.set_yscale("log")
    title = panel.title
    if len(title) > _MAX_TITLE:
        title = f"{title[: _MAX_TITLE // 2]}…{title[-_MAX_TITLE // 2 :]}"
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_xlabel("step", fontsize=8)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_head(axes, names: Sequence[str], colors: Sequence, sources: Sequence[str]) -> None:
    """Draws which color is which run, and which line is training."""
    width, height = axes.get_figure().get_figwidth(), (len(names) + 1) * _LINE + 2 * _MARGIN
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(height, 0))
    for row, name in enumerate(names):
        y = _MARGIN + (row + 0.5) * _LINE
        axes.plot([_MARGIN, _MARGIN + _KEY], [y, y], color=colors[row], linewidth=3)
        left = _MARGIN + _KEY + 0.1
        room = width - left - _MARGIN
        pictures.fitted(axes, (left, y), name, room, ha="left", fontsize=9)
    marks = [
        matplotlib_lines.Line2D([], [], color="#444444", linestyle=_style(source, sources))
        for source in sources
    ]
    place = (_MARGIN / width, 1 - (_MARGIN + (len(names) + 0.5) * _LINE) / height)
    look = {"ncols": len(marks), "loc": "center left", "frameon": False, "fontsize": 9}
    axes.legend(marks, sources, bbox_to_anchor=place, borderpad=0, borderaxespad=0, **look)


def _style(source: str, sources: Sequence[str]) -> str:
    evaluations = [one for one in sources if one != _TRAIN]
    return "-" if source == _TRAIN else _STYLES[evaluations.index(source) % len(_STYLES)]


def _colors(count: int) -> Sequence:
    if count <= len(pictures.COLORS):
        return pictures.COLORS
    shades = matplotlib.colormaps["turbo"]
    return [shades(index / (count - 1)) for index in range(count)]
