"""Cells of tables: what their texts stand for, by dtype.

A cell is read alike wherever it comes from: a CSV file, an array of text, a default of a config.
"""

import math

_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_INFINITE_FROM = {"float16": (2 - 2**-11) * 2**15, "float32": (2 - 2**-24) * 2**127}
"""From where on a number is rounded to infinity."""


def value_of(text: str, dtype: str) -> str | bool | int | float:
    """Returns what the text in a cell of a table stands for.

    Raises:
        ValueError: If it stands for nothing of this dtype.
    """
    if dtype == "string":
        return text
    if dtype == "bool" and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if dtype == "bool" or "_" in text:
        raise ValueError(text)
    if dtype.startswith("float"):
        value = float(text)
        is_beyond = abs(value) >= _INFINITE_FROM.get(dtype, math.inf) and "inf" not in text.lower()
    else:
        value = int(text)
        least, most = limits(dtype)
        is_beyond = not least <= value <= most
    if is_beyond:
        raise ValueError(text)
    return value


def limits(dtype: str) -> tuple[int, int]:
    """Returns the least and the greatest number of a dtype such as int8."""
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def text_of(value: object, dtype: str) -> str:
    """Returns the cell that a config's value stands for, such as a default.

    Raises:
        ValueError: If it stands for none of this dtype.
    """
    if isinstance(value, float) and value.is_integer() and not dtype.startswith("float"):
        value = int(value)  # 1e3
    is_text, is_truth = isinstance(value, str), isinstance(value, bool)
    fits = is_text if dtype == "string" else not is_truth or dtype == "bool"
    if not (fits and isinstance(value, int | float | str)):
        raise ValueError(value)
    value_of(str(value), dtype)
    return str(value)


def is_of(value: object, dtype: str) -> bool:
    """Tells whether a config's value is one of a dtype, or text that stands for one in a cell."""
    try:
        text_of(value, dtype)
    except ValueError:
        return False
    return True
