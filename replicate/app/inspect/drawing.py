"""The picture of a description: a column of variables per device, and what moves between."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib import axes as matplotlib_axes
from matplotlib import patches, ticker
from rich import filesize

from replicate.app.inspect import description, pictures, traffic

_KINDS = {"weight": 0, "slot": 1, "other": 2, "local": 7}  # which of the colors
_MORE = "#d8d8d8"
_MOVED = (0.78, 0.25, 0.2)

# Inches.
_LEFT, _RIGHT, _TOP = 1.1, 0.3, 0.95
_COLUMN, _NARROW_COLUMN = 3.2, 2.1
_STACK, _HIGH_STACK = 4.8, 7.5  # how high the columns are
_FOOT = 1.05  # what is written below them
_CELL = 0.42
_BOX = 0.17  # the least height of a box with a name in it

_MANY_DEVICES, _MANY_VARIABLES = 4, 20
_WIDTH = 0.86  # of a box, where a column is 1
_SIDE = (1 - _WIDTH) / 2
_INNER = _WIDTH - 0.04


class _Box(NamedTuple):
    """A piece of a column.

    Attributes:
        text: What it is.
        kind: Of the variable; empty: several.
        bytes: How high it is; None: not known.
    """

    text: str
    kind: str
    bytes: int | None


def draw(found: description.Description, path: str) -> None:
    """Draws a description into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    count = len(found.devices)
    column = _COLUMN if count <= _MANY_DEVICES else _NARROW_COLUMN
    most = max(device.variables for device in found.devices)
    stack = _STACK if most <= _MANY_VARIABLES else _HIGH_STACK
    below = (count + 1.3) * _CELL if count > 1 else 0.1
    width = _LEFT + max(count, 2) * column + _RIGHT
    height = _TOP + stack + _FOOT + below
    made = pictures.blank(width, height)
    left, wide = _LEFT / width, 1 - (_LEFT + _RIGHT) / width
    axes = made.add_axes((left, (below + _FOOT) / height, wide, stack / height))
    _draw_stacks(axes, found, stack)
    head = made.add_axes((left, 1 - _TOP / height, wide, _TOP / height))
    _draw_head(head, found)
    if count > 1:
        axes = made.add_axes((left, 0.35 * _CELL / height, wide, count * _CELL / height))
        _draw_transfers(axes, found)
    pictures.save(made, path)


def _draw_head(axes: matplotlib_axes.Axes, found: description.Description) -> None:
    """Draws the title and what the colors mean."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    towers = _counted(sum(device.tower is not None for device in found.devices), "tower")
    text = f"{found.name}: {towers}, {found.strategy}, batches of {found.batch_size} rows"
    pictures.fitted(axes, (0, 0.77), text, 1, ha="left", fontsize=12)
    kinds = {variable.kind for variable in found.variables}
    marks = [
        patches.Patch(color=pictures.COLORS[color], label=kind)
        for kind, color in _KINDS.items()
        if kind in kinds
    ]
    axes.legend(
        handles=[*marks, patches.Patch(color=_MORE, label="several")],
        ncols=len(marks) + 1,
        loc="center left",
        bbox_to_anchor=(0, 0.42),
        borderpad=0,
        borderaxespad=0,
        frameon=False,
        fontsize=8,
        handlelength=1,
        handleheight=1,
    )


def _draw_stacks(axes: matplotlib_axes.Axes, found: description.Description, inches: float) -> None:
    """Draws a column for each device, its variables by bytes."""
    most = max(device.bytes for device in found.devices) or 1
    least = most * _BOX / (inches - 2 * _BOX)
    axes.set(xlim=(0, max(len(found.devices), 2)), ylim=(0, most + 2 * least))
    axes.spines[["top", "right"]].set_visible(False)
    ticks = [tick for tick in ticker.MaxNLocator(6).tick_values(0, most) if tick <= most]
    axes.set_yticks(ticks, [filesize.decimal(int(tick)) for tick in ticks], fontsize=8)
    axes.set_xticks([])
    for x, device in enumerate(found.devices):
        bottom = 0.0
        own = [one for one in found.variables if device.name in one.devices]
        for box in _boxes(own, least):
            high = max(box.bytes or 0, least)
            _draw_box(axes, x, bottom, high, least, box)
            bottom += high
        if not own:
            axes.text(x + 0.5, least, "no variables", ha="center", color="#666666", fontsize=8)
        for row, text in enumerate(_foot(device)):
            place, size = (0, -12 - 13 * row), 8 if row else 10
            look = {"ha": "center", "va": "center", "fontsize": size}
            axes.annotate(text, (x + 0.5, 0), place, textcoords="offset points", **look)


def _draw_box(
    axes: matplotlib_axes.Axes, x: int, bottom: float, high: float, least: float, box: _Box
) -> None:
    """Draws a box with its name, and its bytes where there is room for them."""
    color = pictures.COLORS[_KINDS[box.kind]] if box.kind else _MORE
    look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.8}
    axes.add_patch(patches.Rectangle((x + _SIDE, bottom), _WIDTH, high, **look))
    middle, ink = bottom + high / 2, "white" if box.kind else "black"
    size = "size not known" if box.bytes is None else filesize.decimal(box.bytes)
    lines = [box.text, size] if high >= 2 * least else [box.text]
    for row, text in enumerate(lines):
        y = middle + (len(lines) - 1 - 2 * row) * 0.38 * least
        pictures.fitted(axes, (x + 0.5, y), text, _INNER, color=ink, fontsize=7)


def _boxes(variables: Sequence[description.Variable], least: float) -> Iterator[_Box]:
    """Yields the boxes of a column, the largest first; what is too low for a name is together."""
    ordered = sorted(variables, key=lambda one: -(one.bytes or 0))
    large = [one for one in ordered if (one.bytes or 0) >= least]
    small = ordered[len(large) :]
    if len(small) == 1:
        large, small = ordered, []
    for variable in large:
        yield _Box(variable.name, variable.kind, variable.bytes)
    yield from _together(small, least)


def _together(small: Sequence[description.Variable], least: float) -> Iterator[_Box]:
    """Yields boxes of several variables: of a kind each, or one where these were too low."""
    rest = list(small)
    for kind in _KINDS:
        own = [one for one in small if one.kind == kind]
        total = sum(one.bytes or 0 for one in own)
        if len(own) > 1 and total >= least:
            yield _Box(f"{len(own)} more, {kind}", kind, total)
            rest = [one for one in rest if one.kind != kind]
    if rest:
        yield _Box(f"{len(rest)} more", "", sum(one.bytes or 0 for one in rest))


def _foot(device: description.Device) -> Iterator[str]:
    """Yields the lines below a column."""
    yield description.short(device.name)
    yield f"tower {device.tower}" if device.tower is not None else "no tower"
    yield f"{_counted(device.variables, 'variable')}, {filesize.decimal(device.bytes)}"
    yield _counted(device.operations, "operation")
    if device.of_tower:
        yield f"{device.of_tower:,} of its tower"


def _draw_transfers(axes: matplotlib_axes.Axes, found: description.Description) -> None:
    """Draws what moves from each device, a row, to each other one, the column above."""
    names = [device.name for device in found.devices]
    axes.set(xlim=(0, max(len(names), 2)), ylim=(len(names), 0))
    axes.set_title("bytes sent per step (row → column)", fontsize=9)
    rows = [row + 0.5 for row in range(len(names))]
    axes.set_yticks(rows, map(description.short, names), fontsize=8)
    axes.set_xticks([])
    axes.tick_params("y", length=0)
    axes.spines[:].set_visible(False)
    most = max((one.bytes for one in found.transfers), default=0) or 1
    told = {(one.source, one.target): one for one in found.transfers}
    for row, source in enumerate(names):
        for x, target in enumerate(names):
            one = told.get((source, target))
            share = 0.0 if one is None else 0.08 + 0.6 * one.bytes / most
            color = (*_MOVED, share) if source != target else "#f2f2f2"
            look = {"facecolor": color, "edgecolor": "#e4e4e4", "linewidth": 0.6}
            axes.add_patch(patches.Rectangle((x + _SIDE, row + 0.06), _WIDTH, 0.88, **look))
            for line, text in enumerate(() if one is None else _moved(one)):
                place = (x + 0.5, row + 0.32 + 0.36 * line)
                pictures.fitted(axes, place, text, _INNER, fontsize=7)


def _moved(one: traffic.Transfer) -> tuple[str, str]:
    unsized = f", {one.unsized} of unknown size" if one.unsized else ""
    return filesize.decimal(one.bytes), f"{_counted(one.tensors, 'tensor')}{unsized}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
