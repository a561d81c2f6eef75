"""Errors that a lesson shows on purpose."""

from __future__ import annotations

import io
import textwrap
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from helpers.tools.launcher.failures import LaunchError
from helpers.tools.whole import whole

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def expected_error(kind: type[Exception] = LaunchError, width: int | None = None) -> Iterator[None]:
    """Print the error of this kind that the block raises, and go on: a failure to look at stops neither Run
    All nor an exported script.  Long lines, also those that the block prints, are broken at `width` columns,
    if it is given, at least 5.

    Raises:
        AssertionError: the block raised nothing.
    """
    if width is not None:
        width = whole(width, "width", 5, 1000)
    told = io.StringIO()
    try:
        with redirect_stdout(told) if width else nullcontext():
            yield
    except kind as error:
        print(f"{type(error).__name__}: {error}", file=told)
    else:
        raise AssertionError(f"an error was to be shown here ({kind.__name__}), and there was none")
    finally:
        lines = told.getvalue().splitlines()
        if width:
            lines = ["\n".join(textwrap.wrap(line, width, subsequent_indent="    ")) for line in lines]
        print(*(f"{line}\n" for line in lines), sep="", end="")
