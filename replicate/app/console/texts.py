"""Text on streams that cannot show every character."""

import codecs
from typing import TextIO

__all__ = ["spell_out"]

_NAME = "replicate.spelt_out"


def spell_out(*streams: TextIO) -> None:
    """Lets streams that are not Unicode spell out what they lack, as JSON does."""
    codecs.register_error(_NAME, _spelt_out)
    for stream in streams:
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
        if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_NAME)


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end
