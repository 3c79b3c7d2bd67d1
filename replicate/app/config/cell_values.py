"""What a cell of a table holds: text that stands for a number, a truth or itself."""

import math
from typing import Any

__all__ = ["convert", "text_of"]

_FLOATS = {"float16": (2 - 2**-11) * 2**15, "float32": (2 - 2**-24) * 2**127}
"""From where on a number is rounded to infinity."""

_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def convert(text: str, dtype: str) -> Any:
    """Returns the value that a text stands for.

    Raises:
        ValueError, KeyError, OverflowError: If it stands for none of this dtype.
    """
    if dtype == "string":
        return text
    if dtype == "bool":
        return _TRUTH[text.lower()]
    if "_" in text:
        raise ValueError(text)
    if dtype.startswith("float"):
        return _float(text, dtype)
    value = int(text)
    least, most = _limits(dtype)
    if not least <= value <= most:
        raise OverflowError(text)
    return value


def _float(text: str, dtype: str) -> float:
    value = float(text)
    is_finite = "inf" not in text.lower()
    if is_finite and abs(value) >= _FLOATS.get(dtype, math.inf):
        raise OverflowError(text)
    return value


def _limits(dtype: str) -> tuple[int, int]:
    """Returns the least and the greatest number of a dtype such as int8."""
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def text_of(value: Any, dtype: str) -> str:
    """Returns the cell that a config's value stands for, such as a default.

    Raises:
        ValueError: If it stands for none of this dtype; says what it must be.
    """
    is_whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
    if is_whole and not dtype.startswith("float"):
        value = int(value)  # 1e3
    if dtype == "string" and not isinstance(value, str):
        raise ValueError("a text (in quotes)")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_truth = dtype == "bool" and isinstance(value, bool)
    if not (is_number or is_truth or isinstance(value, str)):
        raise ValueError(dtype)
    try:
        convert(str(value), dtype)
    except (ValueError, KeyError, OverflowError):
        raise ValueError(dtype) from None
    return str(value)
