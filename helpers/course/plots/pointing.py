"""The text of a formula, and the line that computes each category."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator

MOST_LINES, WIDEST = 12, 74  # of a formula's text that is shown, lines and columns


def formula_lines(formula: Callable) -> tuple[list[str], dict[str, int]]:
    """A function's lines, its docstring left out, and {category: the number of the line that computes it}.

    Raises:
        ValueError: where the text is nowhere, is no `def`, or has too many or too long lines.
    """
    try:
        text = textwrap.dedent(inspect.getsource(formula))
    except (OSError, TypeError) as error:
        raise ValueError(f"the text of {formula!r} is nowhere: define it in a cell or a file") from error
    function = ast.parse(text).body[0] if text.startswith(("def ", "@")) else None
    if not isinstance(function, ast.FunctionDef):
        raise ValueError(f"write {formula.__name__} as a `def`, a line for each category")
    first = function.body[0]
    left_out = range(first.lineno, first.end_lineno + 1) if ast.get_docstring(function) is not None else ()
    numbers = [at for at in range(function.lineno, function.end_lineno + 1) if at not in left_out]
    whole = text.splitlines()
    lines = [whole[at - 1] for at in numbers if whole[at - 1].strip()]
    numbers = [at for at in numbers if whole[at - 1].strip()]
    if len(lines) > MOST_LINES or max(map(len, lines)) > WIDEST:
        size = f"{len(lines)} lines of at most {max(map(len, lines))} columns"
        most = f"a card has room for {MOST_LINES} of {WIDEST}"
        raise ValueError(f"{formula.__name__} has {size}, and {most}: shorten it, comments too")
    found = {}
    for category, number in _computed(function):
        found.setdefault(category, numbers.index(number))
    return lines, found


def _computed(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """(category, line) of a dict's keys, and of what is assigned to one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            keys = node.keys
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        else:
            continue
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key.lineno
