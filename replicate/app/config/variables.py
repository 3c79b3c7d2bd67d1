"""Environment variables in the values of a config: `${NAME}`, `${NAME:default}`, `$${`."""

import os
import re

__all__ = ["MARK", "UnfilledError", "escaped", "filled"]

MARK = "${"
_FORMS = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^{}]*))?\}|\$\{", re.ASCII)


class UnfilledError(Exception):
    """A text that cannot be filled in; says why."""


def filled(text: str) -> str:
    """Returns a text with the values of the variables that it names.

    What comes in is text: it is not looked through again.

    Raises:
        UnfilledError: If a variable is not set and has no default, or is none.
    """
    return _FORMS.sub(_value, text)


def _value(match: re.Match[str]) -> str:
    if match[0] == "$" + MARK:
        return MARK
    name, default = match["name"], match["default"]
    if name is None:
        raise UnfilledError(
            "must name a variable as ${NAME} or ${NAME:default}, "
            f"got {match.string!r}. Write $${{ for the text ${{."
        )
    value = os.environ.get(name, default)
    if value is None:
        raise UnfilledError(
            f"needs the environment variable {name}, which is not set. "
            f"Set it, or write ${{{name}:default}}."
        )
    return value


def escaped(text: str) -> str:
    """Returns a text that `filled` gives back as it was."""
    return text.replace(MARK, "$" + MARK)
