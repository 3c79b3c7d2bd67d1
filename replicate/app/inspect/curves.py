"""Learning curves: read from the event files of runs, drawn as a panel for each quantity.

A run that was stopped goes on from its last checkpoint, in a file of its own: what an earlier
file has of the steps from there on is what nobody trained any further, and is left out.
"""

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import matplotlib
from google.protobuf import message
from matplotlib import axes as matplotlib_axes
from matplotlib import lines, ticker
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.util import tensor_util

from replicate import errors
from replicate.app.config import catalog
from replicate.app.inspect import pictures

_TRAIN = "train"
_RATE = "learning_rate"
_SPEEDS = {"examples_per_second": "examples per second", "global_step/sec": "steps per second"}
_NO_METRICS = ("global_step", "loss", _RATE, *_SPEEDS)

_PANEL = (4.4, 3.1)  # inches
_Style: TypeAlias = Literal["-", "--", ":", "-."]
_STYLES: Sequence[_Style] = ("--", ":", "-.")  # of evaluations; training is drawn through
_FEW = 40  # points that are marked, so that one alone is seen
_SMOOTHED, _MOST = 20, 50  # one neighbour on each side for so many points; at most so many
_WIDE_RANGE = 100  # beyond it an axis is logarithmic
_LEAST_RANGE = 0.02  # of the largest number: what differs by less is nearly level
_PALE: dict[str, Any] = {"linewidth": 0.6, "alpha": 0.5}
_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 11,
    "linestyle": "none",
    "markeredgecolor": "black",
}

Curve: TypeAlias = dict[int, float]
"""A value for each step, in the order of steps."""


class Run(NamedTuple):
    """What a model_dir has of one run.

    Attributes:
        name: The model_dir, as it was given.
        curves: By where they come from (train, or the folder of an evaluation), then by tag.
    """

    name: str
    curves: Mapping[str, Mapping[str, Curve]]


def read(model_dirs: Iterable[str]) -> list[Run]:
    """Reads the curves of some runs.

    Raises:
        RunError: If there is no such directory, or none of its event files has a number.
    """
    runs = []
    for name in dict.fromkeys(model_dirs):
        root = Path(name).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "is not there"
            raise errors.RunError(
                f"{name}: must be the model_dir of a run, but {what}. Check the path; it is looked "
                "up from the working directory."
            )
        folders = {_TRAIN: root} | {one.name: one for one in sorted(root.glob("eval*/"))}
        curves = {source: _curves(folder, source) for source, folder in folders.items()}
        if not any(curves.values()):
            raise errors.RunError(
                f"{name}: must hold event files with numbers (*.tfevents.*), has none. Run "
                "`replicate train` first, or name the model_dir of a run."
            )
        runs.append(Run(name, {source: one for source, one in curves.items() if one}))
    return runs


def _curves(folder: Path, source: str) -> dict[str, Curve]:
    """Returns the curves of a folder's files, later ones over earlier ones."""
    read = plugin_event_accumulator.EventAccumulator(
        str(folder), tensor_size_guidance={"scalars": 0}, purge_orphaned_data=False
    )
    with contextlib.suppress(message.DecodeError):  # of a record that is no event
        read.Reload()
    found: dict[str, Curve] = {}
    tags = read.PluginTagToContent("scalars") if "scalars" in read.ActivePlugins() else ()
    for tag in tags:
        curve = found.setdefault(tag, {})
        for event in read.Tensors(tag):
            # NOTE: an evaluation of an older checkpoint comes later, and takes nothing back.
            while source == _TRAIN and curve and next(reversed(curve)) >= event.step:
                curve.popitem()
            curve[event.step] = float(tensor_util.make_ndarray(event.tensor_proto))
    return {tag: dict(sorted(curve.items())) for tag, curve in found.items()}


class _Line(NamedTuple):
    """One curve of a panel: the number of its run, train or an evaluation's folder, its values."""

    run: int
    source: str
    curve: Curve

    @property
    def finite(self) -> Curve:
        """Its values that are numbers."""
        return {step: value for step, value in self.curve.items() if math.isfinite(value)}


_Panels: TypeAlias = Mapping[str, Sequence[_Line]]  # by title


def plot(runs: Sequence[Run], path: str) -> None:
    """Draws the curves of some runs into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    panels = {title: found for title, found in _panels(runs) if found}
    across = min(len(panels) or 1, 2 if len(panels) <= 4 else 3)
    down = math.ceil(len(panels) / across) or 1
    sources = list(dict.fromkeys(line.source for found in panels.values() for line in found))
    evaluations = [source for source in sources if source != _TRAIN]
    styles: dict[str, _Style] = {
        one: _STYLES[number % len(_STYLES)] for number, one in enumerate(evaluations)
    }
    styles[_TRAIN] = "-"
    names = [pictures.shortened(run.name, int(12 * across * _PANEL[0])) for run in runs]
    made = pictures.blank(across * _PANEL[0], down * _PANEL[1] + 0.25 * (len(names) + 1))
    made.set_layout_engine("constrained")
    all_axes = made.subplots(down, across, squeeze=False).flatten().tolist()
    colors = _colors(len(runs))
    for axes, (title, found) in zip(all_axes, panels.items(), strict=False):
        _draw_panel(axes, title, found, colors, styles)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    marks = [
        lines.Line2D([], [], color=color, linewidth=3, label=name)
        for name, color in zip(names, colors, strict=False)
    ]
    kinds = sources if len(sources) > 1 else ()
    marks += [
        lines.Line2D([], [], color="black", linestyle=styles[one], label=one) for one in kinds
    ]
    marks += [lines.Line2D([], [], color="black", label="best", **_STAR)] if evaluations else []
    ncols = len(marks) if len(names) == 1 else 1
    made.legend(handles=marks, loc="outside upper center", ncols=ncols, fontsize=9, frameon=False)
    pictures.save(made, path)


def _panels(runs: Sequence[Run]) -> Iterator[tuple[str, list[_Line]]]:
    """Yields the curves of loss, metrics, a learning rate that changes, and speed."""

    def of(tag: str) -> list[_Line]:
        found = [
            _Line(number, source, by_tag.get(tag, {}))
            for number, run in enumerate(runs)
            for source, by_tag in run.curves.items()
        ]
        return [line for line in found if line.finite]

    evaluated = [one for run in runs for source, one in run.curves.items() if source != _TRAIN]
    tags = {tag for by_tag in evaluated for tag in by_tag}
    yield from ((tag, of(tag)) for tag in ("loss", *sorted(tags.difference(_NO_METRICS))))
    rates = of(_RATE)
    is_changing = len({value for line in rates for value in line.curve.values()}) > 1
    yield "learning rate", rates if is_changing else []
    speeds = [(title, of(tag)) for tag, title in _SPEEDS.items()]
    yield next(filter(lambda one: one[1], speeds), speeds[0])


def _best(title: str, found: Sequence[_Line]) -> list[tuple[_Line, int]]:
    """Returns the step of each evaluation's best value where its name says what is better.

    The best comes first; of equal ones the first, as `train.keep_best` takes it.
    """
    higher = catalog.higher_is_better(title)
    if higher is None:
        return []
    sign = -1 if higher else 1
    best = []
    for line in found:
        if line.source != _TRAIN:
            step = min(line.finite, key=lambda step: sign * line.finite[step])
            best.append((line, step))
    return sorted(best, key=lambda one: sign * one[0].curve[one[1]])


def _draw_panel(
    axes: matplotlib_axes.Axes,
    title: str,
    found: Sequence[_Line],
    colors: Sequence[Any],
    styles: Mapping[str, _Style],
) -> None:
    for line in found:
        color, steps, values = colors[line.run], list(line.curve), list(line.curve.values())
        if line.source == _TRAIN and title != "learning rate" and len(steps) > _FEW:
            axes.plot(steps, values, color=color, **_PALE)
            values = list(_smoothed(values))
        marker = "." if len(steps) <= _FEW else None
        axes.plot(steps, values, styles[line.source], marker=marker, color=color, linewidth=1.2)
        none = [step for step in steps if step not in line.finite]
        if none:
            axes.plot(
                none, [0.02] * len(none), "x", transform=axes.get_xaxis_transform(), color=color
            )
    best = _best(title, found)
    for line, step in best:
        axes.plot([step], [line.curve[step]], color=colors[line.run], **_STAR)
    # An evaluation of weights that nobody has trained yet stretches no axis.
    known = [v for one in found for s, v in one.finite.items() if s or one.source == _TRAIN]
    _scale(axes, known or [value for one in found for value in one.finite.values()])
    axes.set_title(pictures.shortened(title), fontsize=10)
    told = [f"step (best: {line.curve[step]:.4g} at step {step})" for line, step in best[:1]]
    axes.set_xlabel("".join(told) or "step", fontsize=8)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


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
    """Yields the median of each value and its neighbours, as many on both sides."""
    widest = min(len(values) // _SMOOTHED, _MOST)
    for index in range(len(values)):
        side = min(widest, index, len(values) - 1 - index)
        yield statistics.median(values[index - side : index + side + 1])


def _colors(count: int) -> Sequence[Any]:
    if count <= len(pictures.COLORS):
        return pictures.COLORS
    shades = matplotlib.colormaps["turbo"]
    return [shades(index / (count - 1)) for index in range(count)]
