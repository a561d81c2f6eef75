"""A table that is rendered, with its plain text beside it, which is what a test compares and a terminal
shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
NUMBER = re.compile(r"[-+−]?[\d,.]+(?:e[-+]?\d+)?(?: ?(?:%|×|S|µs|ms|s|B|kB|MB|GB|TB|GB/s))?")


class Table:
    """Made by `table`; the last expression of a cell displays it."""

    def __init__(self, rows: Sequence[Mapping[str, object]], title: str = "") -> None:
        self.title, self.names = title, list(rows[0])
        self.rows = [[words(value) for value in row.values()] for row in rows]
        self.right = [
            all(NUMBER.fullmatch(text) or text in ("", "–") for text in column) for column in zip(*self.rows)
        ]

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/markdown": self.markdown, "text/plain": repr(self)}

    @property
    def markdown(self) -> str:
        lines = [self.names, ["--:" if right else "---" for right in self.right], *self.rows]
        return "\n".join(
            [f"**{self.title}**\n"] * bool(self.title)
            + ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        )

    def __repr__(self):
        lines = [[LINK.sub(r"\1", text) for text in line] for line in (self.names, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        aligned = [
            [
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, self.right)
            ]
            for line in lines
        ]
        return "\n".join([self.title] * bool(self.title) + ["  ".join(line).rstrip() for line in aligned])


def words(value: object) -> str:
    """Whole numbers and large ones with separators, others with three digits, True and False as yes and no,
    nothing for None."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return str(value)


def table(rows: Iterable[Mapping[str, object]] | dict[str, Mapping[str, object]], title: str = "") -> Table:
    """A rendered table; a column of numbers is aligned at its right.

    Args:
        rows: [{column: text or number}, ...], all rows with the same columns; or {name: {column: ...}} with
            the names as first column, and nothing where a row lacks a column.  Texts may hold Markdown, such
            as a link.
        title: a line above the table.

    Raises:
        ValueError: where there is no row, or rows of a list have different columns.
    """
    if isinstance(rows, dict):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        rows = [{"": name, **{column: row.get(column) for column in columns}} for name, row in rows.items()]
    rows = list(rows)
    if not rows or any(list(row) != list(rows[0]) for row in rows):
        raise ValueError("a table needs at least one row, and the same columns in each")
    return Table(rows, title)
