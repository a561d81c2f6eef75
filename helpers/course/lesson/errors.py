"""Errors that a lesson shows on purpose."""

from __future__ import annotations

import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helpers.tools.launch.failures import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def expected_error(kind: type[Exception] = LaunchError, width: int | None = None) -> Iterator[None]:
    """Print the error that the block raises, and go on: a failure to look at stops neither Run All nor an
    exported script.

        with expected_error():
            launch(one_fails, ranks=2)

    Args:
        kind: which errors are meant; others are raised as ever.  `launch` raises LaunchError, of which
            RankError is one.
        width: columns at which long lines are broken; by default they are not.

    Raises:
        AssertionError: the block raised nothing.
    """
    try:
        yield
    except kind as error:
        print(_broken(f"{type(error).__name__}: {error}", width))
    else:
        raise AssertionError(f"an error was to be shown here ({kind.__name__}), and there was none")


def _broken(text, width):
    if width is None:
        return text
    return "\n".join(
        "\n".join(textwrap.wrap(line, width, subsequent_indent="    ")) for line in text.split("\n")
    )
