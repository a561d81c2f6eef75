"""Errors that a lesson shows on purpose."""

from __future__ import annotations

import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helpers.tools.launch.failures import LaunchError
from helpers.tools.whole import whole

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def expected_error(kind: type[Exception] = LaunchError, width: int | None = None) -> Iterator[None]:
    """Print the error of this kind that the block raises, and go on: a failure to look at stops neither Run
    All nor an exported script.  Long lines are broken at `width` columns, if it is given, at least 5.

    Raises:
        AssertionError: the block raised nothing.
    """
    if width is not None:
        width = whole(width, "width", 5, 1000)
    try:
        yield
    except kind as error:
        lines = f"{type(error).__name__}: {error}".split("\n")
        if width is not None:
            lines = ["\n".join(textwrap.wrap(line, width, subsequent_indent="    ")) for line in lines]
        print("\n".join(lines))
    else:
        raise AssertionError(f"an error was to be shown here ({kind.__name__}), and there was none")
