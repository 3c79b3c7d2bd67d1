"""Learning curves: read from the event files of runs, drawn as a panel for each quantity.

A run that was stopped goes on from its last checkpoint, in a file of its own: what an earlier
file has of the steps from there on is what nobody trained any further, and is left out.
"""

import contextlib
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import matplotlib
from google.protobuf import message
from matplotlib import axes as matplotlib_axes
from matplotlib import lines, ticker
from tensorboard.backend.event_processing import plugin_event_accumulator

from replicate import errors
from replicate.app.config import catalog
from replicate.app.inspect import pictures
from replicate.compat.tensorflow import tf

_TRAIN = "train"
_LAST = ("learning_rate", "global_step/sec")  # panels behind those of metrics
_PANEL = (4.4, 3.1)  # inches
_Style: TypeAlias = Literal["-", "--", ":", "-."]
_STYLES: Sequence[_Style] = ("--", ":", "-.")  # of evaluations; training is drawn through
_FEW = 40  # points that are marked, so that one alone is seen
_WIDE_RANGE = 100  # beyond it an axis is logarithmic
_STAR: dict[str, Any] = {"marker": "*", "markersize": 11, "linestyle": "none"}
_STAR["markeredgecolor"] = "black"

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
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # each session has a graph of its own
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
            curve[event.step] = float(tf.make_ndarray(event.tensor_proto))
    return {tag: dict(sorted(curve.items())) for tag, curve in found.items()}


class _Line(NamedTuple):
    """One curve of a panel: the number of its run, train or an evaluation's folder, its values."""

    run: int
    source: str
    curve: Curve


def plot(runs: Sequence[Run], path: str) -> None:
    """Draws the curves of some runs into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    panels = _panels(runs)
    across = min(len(panels) or 1, 2 if len(panels) <= 4 else 3)
    down = math.ceil(len(panels) / across) or 1
    made = pictures.blank(across * _PANEL[0], down * _PANEL[1] + 0.25 * (len(runs) + 1))
    all_axes = made.subplots(down, across, squeeze=False).flatten().tolist()
    sources = list(dict.fromkeys(line.source for found in panels.values() for line in found))
    evaluations = [source for source in sources if source != _TRAIN]
    styles: dict[str, _Style] = {
        _TRAIN: "-",
        **dict(zip(evaluations, itertools.cycle(_STYLES), strict=False)),
    }
    few = len(runs) <= 10
    colors = matplotlib.colormaps["tab10" if few else "turbo"].resampled(10 if few else len(runs))
    for axes, (title, found) in zip(all_axes, panels.items(), strict=False):
        _draw_panel(axes, title, found, colors, styles)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    marks = []
    for number, run in enumerate(runs):
        name = pictures.shortened(run.name, int(12 * across * _PANEL[0]))
        marks.append(lines.Line2D([], [], color=colors(number), linewidth=3, label=name))
    for source in sources if len(sources) > 1 else ():
        marks.append(lines.Line2D([], [], color="black", linestyle=styles[source], label=source))
    marks += [lines.Line2D([], [], color="black", label="best", **_STAR)] if evaluations else []
    ncols = len(marks) if len(runs) == 1 else 1
    made.legend(handles=marks, loc="outside upper center", ncols=ncols, fontsize=9, frameon=False)
    pictures.save(made, path)


def _panels(runs: Sequence[Run]) -> dict[str, list[_Line]]:
    """Returns the curves of loss, metrics, a learning rate and speed, those that have numbers."""
    evaluated = [one for run in runs for source, one in run.curves.items() if source != _TRAIN]
    metrics = {tag for by_tag in evaluated for tag in by_tag} - {"loss", "global_step", *_LAST}
    panels: dict[str, list[_Line]] = {}
    for tag in ("loss", *sorted(metrics), *_LAST):
        for number, run in enumerate(runs):
            for source, by_tag in run.curves.items():
                if any(map(math.isfinite, by_tag.get(tag, {}).values())):
                    panels.setdefault(tag, []).append(_Line(number, source, by_tag[tag]))
    return panels


def _draw_panel(
    axes: matplotlib_axes.Axes,
    title: str,
    found: Sequence[_Line],
    colors: matplotlib.colors.Colormap,
    styles: Mapping[str, _Style],
) -> None:
    higher = catalog.higher_is_better(title)
    best: list[tuple[float, int, float]] = []
    for number, source, curve in found:
        marker, color = "." if len(curve) <= _FEW else None, colors(number)
        points = list(curve), list(curve.values())
        axes.plot(*points, styles[source], marker=marker, color=color, linewidth=1.2)
        if source != _TRAIN and higher is not None:  # of equal ones the first, as in keep_best
            worth = {s: v if higher else -v for s, v in curve.items() if math.isfinite(v)}
            step = max(worth, key=worth.__getitem__)
            axes.plot([step], [curve[step]], color=color, **_STAR)
            best.append((worth[step], -step, curve[step]))
    finite = [value for line in found for value in line.curve.values() if math.isfinite(value)]
    if min(finite) > 0 and max(finite) / min(finite) > _WIDE_RANGE:
        axes.set_yscale("log")
    axes.set_title(pictures.shortened(title), fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    if best:
        _, step, value = max(best)
        axes.set_xlabel(f"step (best: {value:.4g} at step {-step})", fontsize=8)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
