"""The picture of a description: a column of variables per device, and what moves between."""

import itertools
from collections.abc import Iterator, Sequence

from matplotlib import axes as matplotlib_axes
from matplotlib import colors as matplotlib_colors
from matplotlib import patches, ticker
from rich import filesize

from replicate.app.inspect import description, pictures

_KINDS = {"weight": 0, "slot": 1, "other": 2, "local": 7}  # which of the colors
_SEVERAL, _MORE = "several kinds", "#d8d8d8"
_BRIGHT = 0.42  # from where on black letters are read better than white ones
_MOVED = matplotlib_colors.LinearSegmentedColormap.from_list("", ["#f2f2f2", pictures.COLORS[6]])

_COLUMN, _MARGIN, _STACK, _CELL = 2.4, 1.2, 5.6, 0.5  # inches
_LETTERS = 32  # of a name that fit into a column
_LINES = 40  # of letters that fit into a stack
_WIDTH = 0.9  # of a box, where a column is 1


def draw(found: description.Description, path: str) -> None:
    """Draws a description into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    count = len(found.devices)
    heights = [_STACK, count * _CELL + 0.8] if count > 1 else [_STACK]
    made = pictures.blank(_MARGIN + max(count, 3) * _COLUMN, sum(heights))
    made.set_layout_engine("constrained")
    stacks, *moved = made.subplots(len(heights), height_ratios=heights, squeeze=False).flatten()
    towers = _counted(sum(device.tower is not None for device in found.devices), "tower")
    text = f"{found.strategy}, batches of {found.batch_size} rows"
    made.suptitle(f"{pictures.shortened(found.name)}: {towers}, {text}", fontsize=12)
    _draw_stacks(stacks, found)
    for axes in moved:
        _draw_transfers(axes, found)
    pictures.save(made, path)


def _color(kind: str) -> str:
    return pictures.COLORS[_KINDS[kind]] if kind in _KINDS else _MORE


def _ink(color: str) -> str:
    """Returns black or white, whatever is read better on a color."""
    red, green, blue = matplotlib_colors.to_rgb(color)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < _BRIGHT else "black"


def _draw_stacks(axes: matplotlib_axes.Axes, found: description.Description) -> None:
    """Draws a column for each device, its variables by bytes."""
    most = max(device.bytes for device in found.devices) or 1
    line, kinds = most / _LINES, []
    for x, device in enumerate(found.devices):
        own = [one for one in found.variables if device.name in one.devices]
        bottom = 0.0
        for text, kind, size in _boxes(own, line):
            color = _color(kind)
            axes.bar(x, size, _WIDTH, bottom, color=color, edgecolor="white", linewidth=0.8)
            two = size >= 2.5 * line
            shown = f"{text}\n{filesize.decimal(size)}" if two else text
            place = (x, bottom + size / 2) if size >= line else (x, bottom + line / 2)
            ink = _ink(color) if size >= line else "black"
            axes.text(*place, shown, ha="center", va="center", color=ink, fontsize=7)
            bottom += size
            kinds.append(kind)
        if not own:
            axes.text(x, line / 2, "no variables", ha="center", color="#666666", fontsize=8)
    marks = [
        patches.Patch(color=_color(kind), label=kind)
        for kind in (*_KINDS, _SEVERAL)
        if kind in kinds
    ]
    axes.legend(
        handles=marks, ncols=5, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False
    )
    axes.set(xlim=(-0.5, max(len(found.devices), 3) - 0.5), ylim=(0, most + 2 * line))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: filesize.decimal(int(y))))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(range(len(found.devices)), map(_foot, found.devices))


def _boxes(
    variables: Sequence[description.Variable], least: float
) -> Iterator[tuple[str, str, int]]:
    """Yields text, kind and bytes of a column's boxes, the largest first.

    What is too low for a name is together: by kind, or all where that is too low as well.
    """
    sizes = {one: one.bytes or 0 for one in variables}
    large = [one for one in variables if sizes[one] >= least]
    for one in sorted(large, key=lambda one: -sizes[one]):
        yield pictures.shortened(one.name, _LETTERS), one.kind, sizes[one]
    rest = [one for one in variables if sizes[one] < least]
    for kind in _KINDS:
        own = [one for one in rest if one.kind == kind]
        if sum(sizes[one] for one in own) >= least:
            yield f"{len(own)} more, {kind}", kind, sum(sizes[one] for one in own)
            rest = [one for one in rest if one.kind != kind]
    if rest:
        kinds = {one.kind for one in rest}
        text = rest[0].name if len(rest) == 1 else f"{len(rest)} more"
        kind = rest[0].kind if len(kinds) == 1 else _SEVERAL
        yield pictures.shortened(text, _LETTERS), kind, sum(sizes[one] for one in rest)


def _foot(device: description.Device) -> str:
    """Returns what is written below a column."""
    lines = [
        description.short(device.name),
        "no tower" if device.tower is None else f"tower {device.tower}",
        f"{_counted(device.variables, 'variable')}, {filesize.decimal(device.bytes)}",
        _counted(device.operations, "operation"),
    ]
    return "\n".join(lines + [f"{device.of_tower:,} of them split by rows"] * bool(device.of_tower))


def _draw_transfers(axes: matplotlib_axes.Axes, found: description.Description) -> None:
    """Draws what moves from each device, a row, to each other one, a column."""
    names = [description.short(device.name) for device in found.devices]
    places = {device.name: place for place, device in enumerate(found.devices)}
    sizes = [[0.0] * len(names) for _ in names]
    for one in found.transfers:
        sizes[places[one.source]][places[one.target]] = one.bytes
        text = f"{filesize.decimal(one.bytes)}\n{_counted(one.tensors, 'tensor')}"
        text += f", {one.unsized} unsized" if one.unsized else ""
        place = places[one.target], places[one.source]
        axes.text(*place, text, ha="center", va="center", fontsize=7)
    most = max(itertools.chain.from_iterable(sizes)) or 1
    axes.imshow(sizes, cmap=_MOVED, vmin=0, vmax=1.5 * most, aspect="auto")
    axes.set_title("bytes sent per step (row → column)", fontsize=9)
    axes.set_xlim(-0.5, max(len(names), 3) - 0.5)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
