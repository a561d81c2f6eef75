"""Which collectives each rank of a job entered, one after the other, also where the job hangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers.course.plots.meeting import meeting
from helpers.course.plots.style import Plot
from helpers.course.runs.noting import noting
from helpers.tools.launcher.failures import RankError
from helpers.tools.launcher.jobs import launch


def who_entered(
    function: Callable,
    ranks: int,
    title: str,
    arguments: Mapping[str, object] | None = None,
    timeout: float = 3.0,
) -> Plot:
    """Launch a job whose ranks note each collective that they enter, print how it failed if it did, and draw
    the notes.  The ranks are on the CPU.

    Args:
        function, ranks, arguments, timeout: as `launch` takes them.

    Returns:
        The figure; its `outputs` are what each rank printed.

    Raises:
        RankError: a rank did not begin.
    """
    with TemporaryDirectory() as folder:
        given = {"function": function, "arguments": dict(arguments or {}), "folder": folder}
        files = [Path(folder, str(rank)) for rank in range(ranks)]
        try:
            outputs = launch(noting, ranks, given, device="cpu", timeout=timeout).outputs
        except RankError as error:
            if not all(file.exists() for file in files):
                raise
            outputs, (first, *_) = error.outputs, str(error).splitlines()
            print(f"RankError: {first}")
        picture = meeting([file.read_text().splitlines() for file in files], title)
    picture.outputs = outputs
    return picture
