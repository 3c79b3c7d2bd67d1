"""What all pictures have in common: a canvas without a window, and files."""

import warnings

from matplotlib import figure as matplotlib_figure
from matplotlib.backends import backend_agg

from replicate import errors
from replicate.app.runs import atomic_files

_DOTS_PER_INCH = 120


def blank(width: float, height: float) -> matplotlib_figure.Figure:
    """Returns an empty picture; its size is in inches. No window, and no state of pyplot's."""
    made = matplotlib_figure.Figure((width, height), _DOTS_PER_INCH, layout="constrained")
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


def shortened(text: str, most: int = 48) -> str:
    """Returns a text of at most so many letters, its midst cut out; $ is drawn as it is."""
    if len(text) > most:
        text = f"{text[: most - most // 2 - 1]}…{text[len(text) - most // 2 :]}"
    return text.replace("$", r"\$")
