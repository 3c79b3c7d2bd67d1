"""The picture of a description: a column of variables per device, and what moves between."""

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from matplotlib import axes as matplotlib_axes
from matplotlib import colors as matplotlib_colors
from matplotlib import patches, ticker
from rich import filesize

from replicate.app.inspect import description, pictures, traffic

_KINDS = {"weight": 0, "slot": 1, "other": 2, "local": 7}  # which of the colors
_MORE = "#d8d8d8"
_BRIGHT = 0.42  # from where on black letters are read better than white ones
_MOVED = matplotlib_colors.to_rgb(pictures.COLORS[6])

# Inches.
_LEFT, _RIGHT, _TOP = 1.1, 0.3, 0.95
_COLUMN, _NARROW_COLUMN = 2.7, 2.1
_STACK, _HIGH_STACK = 4.2, 6.2  # how high the columns are
_FOOT = 1.05  # what is written below them
_CELL = (1.5, 0.5)  # of what moves
_BOX = 0.17  # the least height of a box with a name in it

_FEW_DEVICES, _MANY_DEVICES, _MANY_VARIABLES = 3, 4, 20
_WIDTH = 0.86  # of a box, where a column is 1
_SIDE = (1 - _WIDTH) / 2
_INNER = _WIDTH - 0.04


class _Box(NamedTuple):
    """A piece of a column.

    Attributes:
        text: What it is.
        kind: Of the variable; empty: several.
        bytes: How high it is, as far as that is known.
    """

    text: str
    kind: str
    bytes: int


def draw(found: description.Description, path: str) -> None:
    """Draws a description into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    count = len(found.devices)
    columns = max(count, 2) * (_COLUMN if count <= _MANY_DEVICES else _NARROW_COLUMN)
    most = max(device.variables for device in found.devices)
    stack = _STACK if most <= _MANY_VARIABLES else _HIGH_STACK
    moved, high = columns, count * _CELL[1]  # below the columns; of few devices beside them
    beside = below = 0.1
    if 1 < count <= _FEW_DEVICES:
        moved = count * _CELL[0]
        beside = _LEFT + moved
    elif count > 1:
        below = high + 1.2
    width, height = _LEFT + columns + beside + _RIGHT, _TOP + stack + _FOOT + below
    made = pictures.blank(width, height)

    def part(left: float, bottom: float, wide: float, high: float) -> matplotlib_axes.Axes:
        return made.add_axes((left / width, bottom / height, wide / width, high / height))

    kinds = _draw_stacks(part(_LEFT, below + _FOOT, columns, stack), found, stack)
    _draw_head(part(_LEFT, height - _TOP, width - _LEFT - _RIGHT, _TOP), found, kinds)
    if count > 1:
        left = width - _RIGHT - moved
        bottom = 0.2 if below > high else below + _FOOT + stack - high - 0.6
        _draw_transfers(part(left, bottom, moved, high), found)
    pictures.save(made, path)


def _draw_head(
    axes: matplotlib_axes.Axes, found: description.Description, kinds: Container[str]
) -> None:
    """Draws the title, and what the colors mean that are there."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    towers = _counted(sum(device.tower is not None for device in found.devices), "tower")
    text = f"{found.name}: {towers}, {found.strategy}, batches of {found.batch_size} rows"
    pictures.fitted(axes, (0, 0.77), text, 1, ha="left", fontsize=12)
    marks = [
        patches.Patch(color=_color(kind), label=kind or "several kinds")
        for kind in (*_KINDS, "")
        if kind in kinds
    ]
    pictures.legend(axes, marks, (0, 0.42), fontsize=8, handlelength=1, handleheight=1)


def _color(kind: str) -> str:
    return pictures.COLORS[_KINDS[kind]] if kind else _MORE


def _ink(color: str) -> str:
    """Returns black or white, whatever is read better on a color."""
    red, green, blue = matplotlib_colors.to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < _BRIGHT else "black"


def _draw_stacks(
    axes: matplotlib_axes.Axes, found: description.Description, inches: float
) -> set[str]:
    """Draws a column for each device, its variables by bytes; returns the kinds of the boxes."""
    kinds = set()
    most = max(device.bytes for device in found.devices) or 1
    least = most * _BOX / (inches - 2 * _BOX)
    axes.set(xlim=(0, len(found.devices)), ylim=(0, most + 2 * least))
    axes.spines[["top", "right"]].set_visible(False)
    ticks = [tick for tick in ticker.MaxNLocator(6).tick_values(0, most) if tick <= most]
    axes.set_yticks(ticks, [filesize.decimal(int(tick)) for tick in ticks], fontsize=8)
    axes.set_xticks([])
    for x, device in enumerate(found.devices):
        bottom = 0.0
        own = [one for one in found.variables if device.name in one.devices]
        for box in _boxes(own, least):
            _draw_box(axes, x, bottom, least, box)
            if box.bytes > least / 10:  # else it is no more than a line
                kinds.add(box.kind)
            bottom += box.bytes
        if not own:
            axes.text(x + 0.5, least, "no variables", ha="center", color="#666666", fontsize=8)
        for row, text in enumerate(_foot(device)):
            place, size, unit = (0, -12 - 13 * row), 8 if row else 10, "offset points"
            axes.annotate(
                text, (x + 0.5, 0), place, textcoords=unit, ha="center", va="center", fontsize=size
            )
    return kinds


def _draw_box(axes: matplotlib_axes.Axes, x: int, bottom: float, least: float, box: _Box) -> None:
    """Draws a box with its name, above one too low for it, and its bytes where they have room."""
    color, ink, middle = _color(box.kind), "black", bottom + box.bytes + least / 2
    is_low = box.bytes < least
    corner, edge = (x + _SIDE, bottom), color if is_low else "white"
    axes.add_patch(patches.Rectangle(corner, _WIDTH, box.bytes, fc=color, ec=edge, lw=0.8))
    if not is_low:
        ink, middle = _ink(color), bottom + box.bytes / 2
    lines = [box.text, filesize.decimal(box.bytes)][: 2 if box.bytes >= 2 * least else 1]
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
        yield _Box(variable.name, variable.kind, variable.bytes or 0)
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
        kinds = {one.kind for one in rest}
        kind = kinds.pop() if len(kinds) == 1 else ""
        yield _Box(f"{len(rest)} more", kind, sum(one.bytes or 0 for one in rest))


def _foot(device: description.Device) -> Iterator[str]:
    """Yields the lines below a column."""
    yield description.short(device.name)
    yield f"tower {device.tower}" if device.tower is not None else "no tower"
    yield f"{_counted(device.variables, 'variable')}, {filesize.decimal(device.bytes)}"
    yield _counted(device.operations, "operation")
    if device.of_tower:
        yield f"{device.of_tower:,} of them split by rows"


def _draw_transfers(axes: matplotlib_axes.Axes, found: description.Description) -> None:
    """Draws what moves from each device, a row, to each other one, a column."""
    names = [device.name for device in found.devices]
    axes.set(xlim=(0, len(names)), ylim=(len(names), 0))
    axes.set_title("bytes sent per step (row → column)", fontsize=9)
    places = [place + 0.5 for place in range(len(names))]
    axes.set_yticks(places, map(description.short, names), fontsize=8)
    axes.set_xticks(places, map(description.short, names), fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    most = max((one.bytes for one in found.transfers), default=0) or 1
    told = {(one.source, one.target): one for one in found.transfers}
    for row, source in enumerate(names):
        for x, target in enumerate(names):
            one = told.get((source, target))
            share = 0.0 if one is None else 0.08 + 0.6 * one.bytes / most
            color = (*_MOVED, share) if source != target else "#f2f2f2"
            corner = (x + _SIDE, row + 0.06)
            axes.add_patch(patches.Rectangle(corner, _WIDTH, 0.88, fc=color, ec="#e4e4e4", lw=0.6))
            lines = [] if one is None else list(_moved(one))
            for line, text in enumerate(lines, start=1):
                place = (x + 0.5, row + 0.06 + 0.88 * line / (len(lines) + 1))
                pictures.fitted(axes, place, text, _INNER, fontsize=7)


def _moved(one: traffic.Transfer) -> Iterator[str]:
    yield filesize.decimal(one.bytes)
    yield _counted(one.tensors, "tensor")
    if one.unsized:
        yield f"{one.unsized} of unknown size"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
