"""A table that a notebook renders, with the same cells as text, which is compared when the notebook is tested."""

from __future__ import annotations


class Table:
    """Rows of a cell's results; the last expression of a cell displays them."""

    def __init__(self, rows):
        if not rows or any(list(row) != list(rows[0]) for row in rows):
            raise ValueError("a table needs rows, dicts with the same keys in the same order")
        self.rows = rows

    def _lines(self):
        return [list(self.rows[0]), *([shown(value) for value in row.values()] for row in self.rows)]

    def __repr__(self):
        return "\n".join(" | ".join(line) for line in self._lines())

    def _repr_markdown_(self):
        head, *lines = self._lines()
        marks = [
            "---:" if all(isinstance(row[name], (int, float)) and not isinstance(row[name], bool) for row in self.rows) else "---" for name in head
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *lines))


def shown(value):
    """Whole numbers with separators, others with three digits, words as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def table(rows):
    """Rows as a table: [{"t": 2, "parameters": 121344, "equal": True}, ...]; numbers are set to the right.

    Raises:
        ValueError: without rows, or for rows with other keys than the first.
    """
    return Table([*rows])
