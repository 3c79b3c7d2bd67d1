"""What all pictures have in common: a canvas without a window, colors, texts that fit, files."""

import warnings
from collections.abc import Sequence
from typing import Any

from matplotlib import artist as matplotlib_artist
from matplotlib import axes as matplotlib_axes
from matplotlib import figure as matplotlib_figure
from matplotlib.backends import backend_agg

from replicate import errors
from replicate.app.runs import atomic_files

COLORS = ("#3b6ea8", "#d9822b", "#3f8f5f", "#a8476b", "#7a63a8", "#8a6d3b", "#4a9aa5", "#777777")
_DOTS_PER_INCH = 120


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
    try:
        with atomic_files.replacing(path) as unfinished, warnings.catch_warnings():
            # A letter that the font lacks is drawn as an empty box; names may have any.
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
            made.savefig(unfinished, format="png")
    except OSError as e:
        raise errors.RunError(
            f"--png {path}: must be a file that can be written: {e.strerror or e}. "
            "Check that its directory exists and allows it."
        ) from e


def legend(
    axes: matplotlib_axes.Axes,
    marks: Sequence[matplotlib_artist.Artist],
    place: tuple[float, float],
    **look: Any,
) -> None:
    """Writes in a row what marks mean; its left end is at a place of 0 to 1 in the axes."""
    look = {"borderpad": 0, "borderaxespad": 0, "frameon": False, **look}
    count = max(len(marks), 1)
    axes.legend(handles=marks, ncols=count, loc="center left", bbox_to_anchor=place, **look)


def fitted(
    axes: matplotlib_axes.Axes, place: tuple[float, float], text: str, width: float, **look: Any
) -> None:
    """Writes a text, its midst cut out where it is wider than it may be.

    Args:
        axes: Where to write.
        place: In the axes' data; the middle of the text, unless `look` says otherwise.
        text: What to write.
        width: In the axes' data, along x.
        look: As `Axes.text` takes it.
    """
    written = axes.text(*place, text, **{"ha": "center", "va": "center", **look}, parse_math=False)
    left, right = axes.transData.transform([(0, 0), (width, 0)])[:, 0]
    kept = len(text)
    while kept > 1 and written.get_window_extent().width > right - left:
        kept -= max(1, kept // 20)
        end = (kept - 1) // 2
        written.set_text(f"{text[: kept - end]}…{text[len(text) - end :]}")
