"""A terminal that keeps what it is shown."""

import io
import re

_TOKENS = re.compile(r"\033\[(\d*);?(\d*)([A-Z]|[a-z])|\033([78D])|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """A stream that is a terminal, as large as the environment says.

    Attributes:
        rows: The rows of the screen.
        gone: Those that went off at its top.
    """

    def __init__(self, lines=24):
        super().__init__()
        self.rows, self.gone = [""] * lines, []
        self._place, self._saved = [0, 0], [0, 0]
        self._margins = 0, lines - 1

    def isatty(self):
        return True

    @property
    def written(self):
        """All rows that are not empty, those that are gone first."""
        return [row.rstrip() for row in (*self.gone, *self.rows) if row.strip()]

    @property
    def scrolls_all(self):
        """Whether no row is kept below those that scroll."""
        return self._margins == (0, len(self.rows) - 1)

    def write(self, text):
        for first, second, code, letter, character in _TOKENS.findall(text):
            self._take(code or letter or character, int(first or 1), int(second or 1))
            if code == "r":
                self._margins = int(first or 1) - 1, int(second or len(self.rows)) - 1
        return super().write(text)

    def _take(self, token, first, second):
        row, column = self._place
        if token == "\n" or token == "D":
            if row < self._margins[1]:
                row += 1
            else:
                self.gone.append(self.rows.pop(0))
                self.rows.insert(row, "")
            self._place = [row, column if token == "D" else 0]
        elif token == "\r":
            self._place = [row, 0]
        elif token == "7":
            self._saved = self._place
        elif token == "8":
            self._place = self._saved
        elif token == "A":
            self._place = [row - first, column]
        elif token in "Hr":
            self._place = [first - 1, second - 1] if token == "H" else [0, 0]
        elif token in "JK":
            self.rows[row : len(self.rows) if token == "J" else row + 1] = [""] * (
                len(self.rows) - row if token == "J" else 1
            )
        else:
            line = self.rows[row].ljust(column)
            self.rows[row] = line[:column] + token + line[column + 1 :]
            self._place = [row, column + 1]
