"""Learning curves: read from the event files of runs, drawn as a panel for each quantity.

A run that was stopped goes on from its last checkpoint, in a file of its own: what an earlier
file has of the steps from there on is what nobody trained any further, and is left out.
"""

import contextlib
import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from google.protobuf import message
from matplotlib import axes as matplotlib_axes
from matplotlib import lines as matplotlib_lines
from matplotlib import ticker
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from replicate import errors
from replicate.app.config import catalog
from replicate.app.inspect import pictures

_FILES = "*.tfevents.*"
_TRAIN = "train"
_RATE = "learning_rate"
_SPEEDS = {"examples_per_second": "examples per second", "global_step/sec": "steps per second"}
_NO_METRICS = ("global_step", "loss", _RATE, *_SPEEDS)

# Inches.
_PANEL = (4.4, 3.1)
_LINE = 0.24
_MARGIN = 0.2
_KEY = 0.35  # the colored line before a run's name

_Style = Literal["-", "--", ":", "-."]
_STYLES: Sequence[_Style] = ("--", ":", "-.")  # of evaluations; training is drawn through
# Lengths of dashes and gaps, in widths of a line.
_DASHES: Mapping[_Style, Sequence[float]] = {
    "-": (8, 0),
    "--": (3.7, 1.6),
    ":": (1, 1.65),
    "-.": (6.4, 1.6, 1, 1.6),
}
_FEW = 40  # points that are marked, so that one alone is seen
_SMOOTHED, _MOST = 20, 50  # one neighbour on each side for so many points; at most so many
_WIDTH = 1.2
_SAME = 0.01  # of a curve's range: so near, one line hides another
_LEAST_RANGE = 0.02  # of the largest number: what differs by less is nearly level
_NO_RUN = "#444444"
_pale = functools.partial(matplotlib_lines.Line2D, linewidth=0.6, alpha=0.5)
_star = functools.partial(
    matplotlib_lines.Line2D, marker="*", markersize=11, linestyle="none", markeredgecolor="black"
)
_WIDE_RANGE = 100  # beyond it an axis is logarithmic
_MAX_TITLE = 48

Curve = dict[int, float]
"""A value for each step, in the order of steps."""

_Color = str | tuple[float, float, float, float]


class Run(NamedTuple):
    """What a model_dir has of one run.

    Attributes:
        name: The model_dir, as it was given.
        train: Curves by tag.
        evals: The same for each folder of an evaluation: eval, or eval_<name>.
    """

    name: str
    train: Mapping[str, Curve]
    evals: Mapping[str, Mapping[str, Curve]]


def read(model_dirs: Iterable[str]) -> list[Run]:
    """Reads the curves of some runs.

    Raises:
        RunError: If there is no such directory, or none of its event files has a number.
    """
    roots = {name: _require(name) for name in dict.fromkeys(model_dirs)}
    return [_run(name, root) for name, root in roots.items()]


def _require(name: str) -> Path:
    root = Path(name).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "is not there"
        raise errors.RunError(
            f"{name}: must be the model_dir of a run, but {what}. Check the path; it is looked "
            "up from the working directory."
        )
    return root


def _evaluations(root: Path) -> list[Path]:
    """Returns the folders of evaluations: eval, and eval_<name> where they have one."""
    return sorted(path for path in root.glob("eval*") if path.is_dir())


def _run(name: str, root: Path) -> Run:
    evals = {}
    for folder in _evaluations(root):
        # NOTE: an evaluation of an older checkpoint comes later, and takes nothing back.
        curves = _curves(folder, is_taken_back=False)
        if curves:
            evals[folder.name] = curves
    train = _curves(root, is_taken_back=True)
    if not train and not evals:
        raise errors.RunError(
            f"{name}: must hold event files with numbers ({_FILES}), has none. Run `replicate "
            "train` first, or name the model_dir of a run."
        )
    return Run(name, train, evals)


def _curves(folder: Path, is_taken_back: bool) -> dict[str, Curve]:
    """Returns the curves of a folder's files, later ones over earlier ones."""
    files = []
    for path in folder.glob(_FILES):
        events = list(_events(path))
        if events:
            files.append((events[0].wall_time, path.name, events))
    found: dict[str, Curve] = {}
    for *_, events in sorted(files, key=lambda file: file[:2]):
        numbers = [(event.step, *number) for event in events for number in _numbers(event)]
        start = min((step for step, _, _ in numbers), default=0)
        for tag in {tag for _, tag, _ in numbers} if is_taken_back else ():
            kept = found.get(tag, {})
            found[tag] = {step: value for step, value in kept.items() if step < start}
        for step, tag, value in numbers:
            found.setdefault(tag, {})[step] = value
    return {tag: dict(sorted(curve.items())) for tag, curve in found.items()}


def _events(path: Path) -> Iterator[event_pb2.Event]:
    """Yields the events of a file, up to one that is cut off, or is none."""
    with contextlib.suppress(message.DecodeError):
        for event in event_file_loader.LegacyEventFileLoader(str(path)).Load():
            event.ClearField("graph_def")
            event.ClearField("meta_graph_def")
            yield event


def _numbers(event: event_pb2.Event) -> Iterator[tuple[str, float]]:
    """Yields the tags and values of an event's scalars, as either TensorFlow writes them."""
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield value.tag, value.simple_value
        elif kind == "tensor":
            number = _scalar(value.tensor)
            if number is not None:
                yield value.tag, number


def _scalar(tensor: Any) -> float | None:
    """Returns a tensor's number; None where it is something else."""
    try:
        array = tensor_util.make_ndarray(tensor)
        return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        return None


class _Line(NamedTuple):
    """One curve of a panel.

    Attributes:
        run: The number of its run.
        source: train, or the folder of an evaluation.
        curve: Its values by step.
        is_noisy: Whether these are of single batches or moments, and many.
    """

    run: int
    source: str
    curve: Curve
    is_noisy: bool

    @property
    def trained(self) -> list[float]:
        """Its numbers, without an evaluation of weights that nobody has trained yet."""
        known = {step: one for step, one in self.curve.items() if math.isfinite(one)}
        kept = [one for step, one in known.items() if step > 0 or self.source == _TRAIN]
        return kept or list(known.values())

    def is_under(self, other: "_Line") -> bool:
        """Whether a line of another run, drawn later, goes the same way for most of its steps."""
        common = [step for step in self.curve if step in other.curve]
        near = (max(self.trained) - min(self.trained)) * _SAME
        same = [step for step in common if abs(self.curve[step] - other.curve[step]) <= near]
        return self.run != other.run and 0 < len(common) <= 2 * len(same)


class _Panel(NamedTuple):
    """What is drawn over the same axes."""

    title: str
    lines: list[_Line]

    @property
    def best(self) -> list[tuple[_Line, int]]:
        """The step of each evaluation's best value where its name says what is better, best first.

        Of equal ones the first, as `train.keep_best` takes it.
        """
        higher = catalog.higher_is_better(self.title)
        found = []
        for line in self.lines if higher is not None else ():
            sign = -1 if higher else 1
            known = {s: sign * one for s, one in line.curve.items() if math.isfinite(one)}
            if line.source != _TRAIN:
                step = min(known, key=known.__getitem__)
                found.append((known[step], line, step))
        return [(line, step) for _, line, step in sorted(found, key=lambda one: one[0])]


def plot(runs: Sequence[Run], path: str) -> None:
    """Draws the curves of some runs into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    panels = list(_panels(runs))
    across = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    down = math.ceil(len(panels) / across)
    sources = list(dict.fromkeys(line.source for panel in panels for line in panel.lines))
    colors = _colors(len(runs))
    marks = _marks(panels, sources, colors[0] if len(runs) == 1 else _NO_RUN)
    above = (len(runs) + bool(marks)) * _LINE + 2 * _MARGIN
    width, height = across * _PANEL[0] + _MARGIN, down * _PANEL[1] + above
    made = pictures.blank(width, height)
    space = {"w_pad": _MARGIN / 2, "h_pad": _MARGIN / 2}
    made.set_layout_engine("constrained", rect=(0, 0, 1, 1 - above / height), **space)
    grid = made.add_gridspec(down, across)
    steps = [step for panel in panels for line in panel.lines for step in line.curve]
    first, last = min(steps), max(steps)
    edge = max(last - first, 1) * 0.03
    for index, panel in enumerate(panels):
        axes = made.add_subplot(grid[index // across, index % across])
        _draw_panel(axes, panel, colors, sources)
        axes.set_xlim(first - edge, last + edge)
    head = made.add_axes((0, 1 - above / height, 1, above / height))
    head.set_in_layout(False)
    _draw_head(head, width, [run.name for run in runs], colors, marks)
    pictures.save(made, path)


def _panels(runs: Sequence[Run]) -> Iterator[_Panel]:
    """Yields the panels that have data: loss, metrics, speed, a learning rate that changes."""
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
                if _is_drawable(curve := found.get(tag, {})):
                    is_noisy = source == _TRAIN and tag != _RATE and len(curve) > _FEW
                    is_noisy = is_noisy and all(map(math.isfinite, curve.values()))
                    lines.append(_Line(number, source, curve, is_noisy))
        values = {value for line in lines for value in line.curve.values()}
        if lines and (tag != _RATE or len(values) > 1):
            yield _Panel(title, lines)


def _is_drawable(curve: Curve | None) -> bool:
    """Whether a curve has a number other than NaN and infinities."""
    return curve is not None and any(map(math.isfinite, curve.values()))


def _draw_panel(
    axes: matplotlib_axes.Axes, panel: _Panel, colors: Sequence[_Color], sources: Sequence[str]
) -> None:
    for index, line in enumerate(panel.lines):
        color = colors[line.run]
        known = {step: one if math.isfinite(one) else math.nan for step, one in line.curve.items()}
        none = [step for step, value in known.items() if math.isnan(value)]
        values = list(known.values())
        if line.is_noisy:
            axes.add_line(_pale(list(known), values, color=color))
            values = list(_smoothed(values))
        axes.plot(
            list(known),
            values,
            linestyle=_in_turns(panel.lines, index, _style(line.source, sources)),
            linewidth=_WIDTH,
            marker="." if none or len(known) <= _FEW else None,
            color=color,
            markersize=5,
        )
        low, above = [0.02] * len(none), axes.get_xaxis_transform()
        axes.plot(none, low, "x", transform=above, color=color, markersize=5)
    for line, step in panel.best:
        axes.add_line(_star([step], [line.curve[step]], color=colors[line.run]))
    _scale(axes, [value for line in panel.lines for value in line.trained])
    title = panel.title
    if len(title) > _MAX_TITLE:
        title = f"{title[: _MAX_TITLE // 2]}…{title[-_MAX_TITLE // 2 :]}"
    axes.set_title(title, fontsize=10, parse_math=False)
    best = [f"{line.curve[step]:.4g} at step {step}" for line, step in panel.best[:1]]
    axes.set_xlabel(f"step (best: {best[0]})" if best else "step", fontsize=8)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _in_turns(
    lines: Sequence[_Line], index: int, style: _Style
) -> _Style | tuple[float, Sequence[float]]:
    """Returns the style of a line; lines over one another take turns, so that each is seen."""
    above = sum(map(lines[index].is_under, lines[index + 1 :]))
    below = sum(line.is_under(lines[index]) for line in lines[:index])
    if not below:
        return style
    *dashes, gap = _DASHES[style]
    turn = gap + sum(dashes)
    return -below * turn, [*dashes, gap + (above + below) * turn]


def _scale(axes: matplotlib_axes.Axes, numbers: Sequence[float]) -> None:
    """Chooses the range of the y axis, and whether it is logarithmic."""
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low > _WIDE_RANGE:
        axes.set_yscale("log")
        return
    lacking = max(abs(low), abs(high)) * _LEAST_RANGE - (high - low)
    margin = 0.05 * (high - low) + max(lacking, 0) / 2
    if margin:
        axes.set_ylim(low - margin, high + margin)


def _smoothed(values: Sequence[float]) -> Iterator[float]:
    """Yields medians of values and their neighbours, as many on both sides."""
    last, most = len(values) - 1, min(len(values) // _SMOOTHED, _MOST)
    for i in range(len(values)):
        side = min(most, i, last - i)
        yield statistics.median(values[i - side : i + side + 1])


def _marks(
    panels: Sequence[_Panel], sources: Sequence[str], color: _Color
) -> list[matplotlib_lines.Line2D]:
    """Returns what tells training, evaluations and their best values apart."""
    made = [
        matplotlib_lines.Line2D([], [], color=color, linestyle=_style(one, sources), label=one)
        for one in sources
    ]
    if any(line.is_noisy for panel in panels for line in panel.lines):
        made[sources.index(_TRAIN)].set_label("train, running median")
        made.append(_pale([], [], color=color, label="single values"))
    if any(panel.best for panel in panels):
        made.append(_star([], [], color=color, label="best"))
    return made if len(made) > 1 else []


def _draw_head(
    axes: matplotlib_axes.Axes,
    width: float,
    names: Sequence[str],
    colors: Sequence[_Color],
    marks: Sequence[matplotlib_lines.Line2D],
) -> None:
    """Draws which color is which run, if there are several, and what its lines and marks are."""
    rows, key = len(names) + bool(marks), _KEY + 0.1 if len(names) > 1 else 0
    height = rows * _LINE + 2 * _MARGIN
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(height, 0))
    for row, name in enumerate(names):
        y = _MARGIN + (row + 0.5) * _LINE
        if key:
            axes.plot([_MARGIN, _MARGIN + _KEY], [y, y], color=colors[row], linewidth=3)
        room = width - key - 2 * _MARGIN
        pictures.fitted(axes, (_MARGIN + key, y), name, room, ha="left", fontsize=9)
    place = (_MARGIN / width, 1 - (_MARGIN + (len(names) + 0.5) * _LINE) / height)
    if marks:
        pictures.legend(axes, marks, place, fontsize=9)


def _style(source: str, sources: Sequence[str]) -> _Style:
    evaluations = [one for one in sources if one != _TRAIN]
    return "-" if source == _TRAIN else _STYLES[evaluations.index(source) % len(_STYLES)]


def _colors(count: int) -> Sequence[_Color]:
    if count <= len(pictures.COLORS):
        return pictures.COLORS
    shades = matplotlib.colormaps["turbo"]
    return [shades(index / (count - 1)) for index in range(count)]
