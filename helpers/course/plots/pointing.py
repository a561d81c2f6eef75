"""The text of a formula, and the line that computes each category."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator

MOST_LINES, WIDEST = 12, 74  # of a formula's text that is shown, lines and columns


def formula_lines(formula: Callable) -> tuple[list[str], dict[str, int]]:
    """A function's lines, its docstring left out, and {category: the number of the line that computes it}.
    Of a long text these lines alone; a long line loses its comment, then its end.

    Raises:
        ValueError: where the text is nowhere, or is no `def`.
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
    whole, computed = text.splitlines(), dict(reversed([*_computed(function)]))  # the first line of each
    numbers = [at for at in numbers if whole[at - 1].strip()]
    if len(numbers) > MOST_LINES:
        numbers = [at for at in numbers if at in computed.values()]
    lines = [_shortened(whole[at - 1]) for at in numbers]
    return lines, {category: numbers.index(number) for category, number in computed.items()}


def _shortened(line: str) -> str:
    line = line if len(line) <= WIDEST else line.partition("  #")[0]
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"


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
