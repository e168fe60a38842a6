"""Tables of numbers that fit the terminal: first columns, an ellipsis, the last; Chinese takes its two cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
MOST_LABEL = 12  # cells of a token's name
MOST_ROWS = 12
ELLIPSIS = "…"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells under headings, with a label before each row; every column is as wide as its widest cell."""

    heads: Sequence[str]
    labels: Sequence[str]
    cells: Sequence[Sequence[str]]
    tail: int = 1  # columns at the end that stay when not all fit
    rows: int = MOST_ROWS
    label: int = MOST_LABEL  # cells of a label

    def lines(self, width: int) -> list[Text]:
        """The table as lines of at most `width` cells where that can be."""
        rows = folded(len(self.labels), self.rows, 2)
        labels = [ELLIPSIS if row is None else short(self.labels[row], self.label) for row in rows]
        indent = max((cell_len(label) for label in labels), default=0)
        widths = [self._width(column, rows) for column in range(len(self.heads))]
        columns = self._columns(widths, width - indent)
        lines = [Text(" " * indent + "".join(self._head(column, widths) for column in columns), style="dim")]
        for label, row in zip(labels, rows, strict=True):
            line = Text(label + " " * (indent - cell_len(label)), style="bold")
            line.append("".join(self._cell(row, column, widths) for column in columns), style="not bold")
            lines.append(line)
        return lines

    def _width(self, column: int, rows: Sequence[int | None]) -> int:
        held = [self.cells[row][column] for row in rows if row is not None]
        return max(cell_len(text) for text in [short(self.heads[column]), *held])

    def _columns(self, widths: Sequence[int], room: int) -> list[int | None]:
        """Which columns to show; None is the ellipsis."""
        if sum(widths) + GAP * len(widths) <= room:
            return list(range(len(widths)))
        room -= GAP + 1 + sum(widths[-self.tail :]) + GAP * self.tail
        first = 0
        while first < len(widths) - self.tail and room >= widths[first] + GAP:
            room -= widths[first] + GAP
            first += 1
        return [*range(first), None, *range(len(widths) - self.tail, len(widths))]

    def _head(self, column: int | None, widths: Sequence[int]) -> str:
        return right(ELLIPSIS, 1) if column is None else right(short(self.heads[column]), widths[column])

    def _cell(self, row: int | None, column: int | None, widths: Sequence[int]) -> str:
        if column is None:
            return right(ELLIPSIS, 1)
        return right(ELLIPSIS if row is None else self.cells[row][column], widths[column])


def right(text: str, width: int) -> str:
    """`text` at the right end of `width` cells, after a gap."""
    return " " * (GAP + width - cell_len(text)) + text


def short(label: str, most: int = MOST_LABEL) -> str:
    """A label of at most `most` cells."""
    return label if cell_len(label) <= most else set_cell_size(label, most - 1).rstrip() + ELLIPSIS


def folded(count: int, most: int, tail: int) -> list[int | None]:
    """0 .. count-1, with None for what is left out between the first ones and the last `tail`."""
    if count <= most:
        return list(range(count))
    return [*range(most - tail - 1), None, *range(count - tail, count)]


def number(value: float, digits: int) -> str:
    """A number with so many decimals; minus infinity as a sign."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if abs(value) >= 1e6:
        return f"{value:.{digits}e}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text
