"""A table as a notebook renders it, and the same as text, which nbval compares and a terminal shows."""

from __future__ import annotations

import html


class Table:
    """Made by `table`; the last expression of a cell displays it."""

    def __init__(self, rows, title=""):
        self.title = title
        self.columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        self.rows = {str(name): [_shown(cells.get(column)) for column in self.columns] for name, cells in rows.items()}
        values = [[cells.get(column) for cells in rows.values()] for column in self.columns]
        self.right = [all(value is None or isinstance(value, (int, float)) for value in column) for column in values]

    def __repr__(self):
        lines = [["", *self.columns], *([name, *cells] for name, cells in self.rows.items())]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        sides = ["<", *(">" if right else "<" for right in self.right)]
        drawn = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths)).rstrip() for line in lines]
        return "\n".join([self.title] * bool(self.title) + drawn)

    def _repr_mimebundle_(self, include=None, exclude=None):
        sides = ["left", *("right" if right else "left" for right in self.right)]

        def row(kind, cells):
            inside = (f'<{kind} style="text-align: {side}">{html.escape(cell)}</{kind}>' for side, cell in zip(sides, cells))
            return f"<tr>{''.join(inside)}</tr>"

        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        body = "".join(row("td", [name, *cells]) for name, cells in self.rows.items())
        page = f"<table>{caption}<thead>{row('th', ['', *self.columns])}</thead><tbody>{body}</tbody></table>"
        return {"text/html": page, "text/plain": repr(self)}


def table(rows, title=""):
    """Rows of named values: {row: {column: number, string or None for nothing}}.  Whole numbers have separators, others three digits."""
    return Table(rows, title)


def _shown(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return str(value)
