"""In a rank: notes of the collectives that a function enters.  A rank imports little for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import tools
from helpers.tools.launcher.describing import notices
from helpers.tools.launcher.outcome import libraries
from helpers.tools.measure.messages import listen

if TYPE_CHECKING:
    from helpers.tools.measure.operations import Message

NOBODYS = (*libraries(), str(Path(tools.__file__).parent), __file__)  # beginnings of files to look past


def noting(function: Callable, arguments: Mapping[str, object], folder: str) -> None:
    """Run the function, and write a line for each collective that begins, and one for its end, into a file
    with this rank's number: "all_reduce in epoch", then "returned" or "raised ValueError".  A rank whose
    connection another has closed did not end: it waited."""
    with open(Path(folder, os.environ["RANK"]), "w", buffering=1) as notes:
        end = listen(lambda message, *_: print(note_of(message), file=notes))
        try:
            function(**arguments)
            print("returned", file=notes)
        except Exception as error:
            if notices(error) is None:
                print(f"raised {type(error).__name__}", file=notes)
            raise
        finally:
            end()


def note_of(message: Message) -> str:
    """ "all_reduce in epoch", and of which ranks where these are not all."""
    members = ", ".join(map(str, message.group))
    are_all = len(message.group) == int(os.environ["WORLD_SIZE"])
    return f"{message.operation} in {caller()}" + ("" if are_all else f" among ranks {members}")


def caller() -> str:
    """The name of the innermost function that belongs neither to a library nor to the tools."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(NOBODYS):
        frame = frame.f_back
    return frame.f_code.co_name.removesuffix("_solution") if frame else "a library"
