"""What all pictures have in common: a canvas without a window, colours, units, whole files."""

import contextlib
import itertools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib import figure as matplotlib_figure
from matplotlib.backends import backend_agg

from replicate import errors

__all__ = ["COLORS", "blank", "byte_ticks", "fitted", "in_bytes", "save"]

COLORS = ("#3b6ea8", "#d9822b", "#3f8f5f", "#a8476b", "#7a63a8", "#8a6d3b", "#4a9aa5", "#777777")
_DOTS_PER_INCH = 120
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_THOUSAND = 1024
_MAX_TICKS = 6


def blank(width: float, height: float) -> matplotlib_figure.Figure:
    """Returns an empty picture; its size is in inches. No window, and no state of pyplot's."""
    made = matplotlib_figure.Figure(figsize=(width, height), dpi=_DOTS_PER_INCH)
    backend_agg.FigureCanvasAgg(made)
    return made


def save(made: matplotlib_figure.Figure, path: str) -> None:
    """Writes a picture as PNG; until all of it is written, what was there before stays.

    Raises:
        RunError: If the file cannot be written.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.stem}.{os.getpid()}.png")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        with warnings.catch_warnings():
            # A letter that the font lacks is drawn as an empty box; names may have any.
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
            made.savefig(unfinished, format="png")
        os.replace(unfinished, target)
    except OSError as e:
        raise errors.RunError(
            f"--png {path}: must be a file that can be written: {e.strerror or e}. "
            "Check that its directory exists and allows it."
        ) from e
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


def in_bytes(count: float) -> str:
    """Returns a number of bytes with a unit and about three digits."""
    unit = 0
    while count >= _THOUSAND and unit < len(_UNITS) - 1:
        count /= _THOUSAND
        unit += 1
    if not unit:
        return f"{count:.0f} bytes"
    text = f"{count:.{2 if count < 10 else 1 if count < 100 else 0}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {_UNITS[unit]}"


def byte_ticks(most: float) -> list[float]:
    """Returns about five round numbers of bytes, from 0 up to `most`."""
    unit = 1.0
    while most / unit >= _THOUSAND:
        unit *= _THOUSAND
    step = next(
        step
        for power in itertools.count(-2 if unit > 1 else 0)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if most / unit / step <= _MAX_TICKS
    )
    return [count * step * unit for count in range(int(most / unit / step) + 1)]


def fitted(axes, place: Sequence[float], text: str, width: float, **look) -> None:
    """Writes a text, its midst cut out where it is wider than it may be.

    Args:
        axes: Where to write.
        place: In the axes' data; the middle of the text, unless `look` says otherwise.
        text: What to write.
        width: In the axes' data, along x.
        look: As `Axes.text` takes it.
    """
    written = axes.text(*place, text, **{"ha": "center", "va": "center", **look}, parse_math=False)
    renderer = axes.get_figure().canvas.get_renderer()
    left, right = axes.transData.transform([(0, 0), (width, 0)])[:, 0]
    kept = len(text)
    while kept > 1 and written.get_window_extent(renderer).width > right - left:
        kept -= max(1, kept // 20)
        end = (kept - 1) // 2
        written.set_text(f"{text[: kept - end]}…{text[len(text) - end :]}")
