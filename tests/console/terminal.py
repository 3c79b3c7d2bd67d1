"""A terminal that keeps what it is shown."""

import io
import re

_TOKENS = re.compile(r"\033\[(\d*);?(\d*)([A-Za-z])|\033([78D])|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """A stream that is a terminal, as large as the environment says.

    Attributes:
        rows: The rows of the screen.
        gone: Those that went off at its top.
    """

    def __init__(self, lines=24):
        super().__init__()
        self.rows, self.gone = [""] * lines, []
        self._place = self._saved = 0, 0
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
            row, column = self._place
            numbers = int(first or 1) - 1, int(second or 1) - 1
            if character:
                self._put(character, row, column)
            elif code + letter == "D":
                self._scroll(row, column)
            elif code + letter == "7":
                self._saved = self._place
            elif code + letter == "8":
                self._place = self._saved
            elif code == "A":
                self._place = row - int(first), column
            elif code == "H":
                self._place = numbers
            elif code == "K":
                self.rows[row] = ""
            elif code == "J":
                self.rows[row:] = [""] * (len(self.rows) - row)
            elif code == "r":
                self._place = 0, 0
                self._margins = numbers[0], numbers[1] if second else len(self.rows) - 1
        return super().write(text)

    def _put(self, character, row, column):
        if character == "\n":
            self._scroll(row, 0)
        elif character == "\r":
            self._place = row, 0
        else:
            line = self.rows[row].ljust(column)
            self.rows[row] = line[:column] + character + line[column + 1 :]
            self._place = row, column + 1

    def _scroll(self, row, column):
        if row == self._margins[1]:
            self.gone.append(self.rows.pop(0))
            self.rows.insert(row, "")
        self._place = min(row + 1, self._margins[1]), column
