"""The picture of a description: a column of variables for each device."""

from collections.abc import Iterator, Sequence

from matplotlib import patches, ticker
from rich import filesize

from replicate.app.inspect import description, pictures

_MORE = "several kinds"
_COLORS = {  # of a kind's box, and of what is written in it
    "weight": ("#3b6ea8", "white"),
    "slot": ("#d9822b", "black"),
    "other": ("#3f8f5f", "black"),
    "local": ("#777777", "black"),
    _MORE: ("#d8d8d8", "black"),
}
_COLUMN, _MARGIN, _HEIGHT = 2.4, 1.2, 5.6  # inches
_LETTERS = 24  # of a name that fit into a column, beside its bytes
_LINES = 40  # of letters that fit into the highest column


def draw(found: description.Description, path: str) -> None:
    """Draws a description into a PNG file.

    Raises:
        RunError: If the file cannot be written.
    """
    across = max(len(found.devices), 3)
    most = max(device.bytes for device in found.devices) or 1
    made = pictures.blank(_MARGIN + across * _COLUMN, _HEIGHT)
    axes = made.subplots()
    kinds = set()
    for x, device in enumerate(found.devices):
        bottom = 0.0
        own = [one for one in found.variables if device.name in one.devices]
        for text, kind, size in _boxes(own, most / _LINES):
            color, ink = _COLORS[kind]
            axes.bar(x, size, 0.9, bottom, color=color, edgecolor="white", linewidth=0.8)
            is_low = size < most / _LINES
            middle = bottom + max(size, most / _LINES) / 2
            shown, ink = f"{text}  {filesize.decimal(size)}", "black" if is_low else ink
            axes.text(x, middle, shown, ha="center", va="center", color=ink, fontsize=7)
            bottom += size
            kinds.add(kind)
    marks = [patches.Patch(color=_COLORS[one][0], label=one) for one in _COLORS if one in kinds]
    axes.legend(
        handles=marks, ncols=5, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False
    )
    axes.set(xlim=(-0.5, across - 0.5), ylim=(0, most * (1 + 2 / _LINES)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: filesize.decimal(int(y))))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(range(len(found.devices)), map(_foot, found.devices))
    towers = _counted(sum(device.tower is not None for device in found.devices), "tower")
    text = f"{found.strategy}, batches of {found.batch_size} rows"
    made.suptitle(f"{pictures.shortened(found.name)}: {towers}, {text}", fontsize=12)
    pictures.save(made, path)


def _boxes(
    variables: Sequence[description.Variable], least: float
) -> Iterator[tuple[str, str, int]]:
    """Yields text, kind and bytes of a column's boxes: large ones, then all others in one."""
    sizes = {one: one.bytes or 0 for one in variables}
    for one in sorted(variables, key=lambda one: -sizes[one]):
        if sizes[one] >= least:
            yield pictures.shortened(one.name, _LETTERS), one.kind, sizes[one]
    rest = [one for one in variables if sizes[one] < least]
    if rest:
        kinds = {one.kind for one in rest}
        kind = kinds.pop() if len(kinds) == 1 else _MORE
        text = pictures.shortened(rest[0].name, _LETTERS) if len(rest) == 1 else f"{len(rest)} more"
        yield text, kind, sum(sizes[one] for one in rest)


def _foot(device: description.Device) -> str:
    """Returns what is written below a column."""
    lines = [
        description.short(device.name),
        "no tower" if device.tower is None else f"tower {device.tower}",
        f"{_counted(device.variables, 'variable')}, {filesize.decimal(device.bytes)}",
        _counted(device.operations, "operation"),
    ]
    return "\n".join(lines + [f"{device.of_tower:,} of them split by rows"] * bool(device.of_tower))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
