"""A terminal in a few lines: rows, a scroll-back, cursor movements, and wrapping anew."""

from __future__ import annotations

import os
import re

_PIECES = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n])", re.DOTALL)


class Emulator:
    """Takes what a picture writes, and wraps it anew when it is made narrower, as tmux does."""

    encoding = "utf-8"

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.written: list[str] = []
        self._at = (0, 0)
        """The cursor: which row, counted from the first one, and which column."""
        self._rows: list[list[str]] = [[]]
        self._continues: list[bool] = [False]
        """Whether a row goes on with the line of the row above it."""

    def isatty(self) -> bool:
        """It is one."""
        return True

    def fileno(self) -> int:
        """It has none, and so the usual size."""
        raise OSError

    def flush(self) -> None:
        """Everything is there at once."""

    def size(self, _stream: object = None) -> os.terminal_size:
        """Columns and rows."""
        return os.terminal_size((self.columns, self.lines))

    def write(self, text: str) -> int:
        """Obey."""
        self.written.append(text)
        for count, command, back, end, letter in _PIECES.findall(text):
            row, column = self._at
            if letter:
                self._put(letter)
            elif back:
                self._at = row, 0
            elif end:
                self._go_down()
            elif command == "A":
                # Rows that have left the screen are out of reach.
                self._at = max(row - int(count or 1), self._top), column
            elif command == "B":
                self._at = min(row + int(count or 1), len(self._rows) - 1), column
            elif command in "KJ":
                self._clear(row, column if count != "2" else 0)
            elif command != "m":
                raise AssertionError(f"not known: {command}")
        return len(text)

    def resize(self, columns: int, lines: int) -> None:
        """Wrap every line anew; the cursor stays in its line."""
        texts: list[list[str]] = []
        cursor_line = 0
        for index, row in enumerate(self._rows):
            if self._continues[index]:
                texts[-1] += row
            else:
                texts.append(list(row))
            if index == self._at[0]:
                cursor_line = len(texts) - 1
        self.columns, self.lines = columns, lines
        self._rows, self._continues = [], []
        for index, letters in enumerate(texts):
            if index == cursor_line:
                self._at = len(self._rows), self._at[1]
            for start in range(0, max(len(letters), 1), columns):
                self._rows.append(letters[start : start + columns])
                self._continues.append(start > 0)

    def text(self) -> str:
        """Return all that stands there, also what has left the screen."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip("\n")

    @property
    def _top(self) -> int:
        return max(len(self._rows) - self.lines, 0)

    def _put(self, letter: str) -> None:
        row, column = self._at
        if column >= self.columns:
            self._go_down()
            row, column = self._at
            self._continues[row] = True
        line = self._rows[row]
        line += " " * (column + 1 - len(line))
        line[column] = letter
        self._at = row, column + 1

    def _go_down(self) -> None:
        row = self._at[0] + 1
        if row == len(self._rows):
            self._rows.append([])
            self._continues.append(False)
        self._at = row, 0

    def _clear(self, row: int, column: int) -> None:
        del self._rows[row][column:]
        if column == 0:
            self._continues[row] = False
