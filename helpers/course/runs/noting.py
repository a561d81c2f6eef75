"""In a rank: notes of the collectives that a function enters.  A rank imports little for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from helpers.tools.launch.describing import notices
from helpers.tools.measure.messages import listen


def noting(function: Callable, arguments: Mapping[str, object], folder: str) -> None:
    """Run the function, and write a line for each collective that begins, and one for its end, into a file
    with this rank's number.  A rank whose connection another has closed did not end: it waited."""
    with open(Path(folder, os.environ["RANK"]), "w", buffering=1) as notes:
        end = listen(lambda message, *_: print(message.operation, file=notes))
        try:
            function(**arguments)
            print("returned", file=notes)
        except Exception as error:
            if notices(error) is None:
                print(f"raised {type(error).__name__}", file=notes)
            raise
        finally:
            end()
