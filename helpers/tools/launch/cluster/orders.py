"""Files in a job's folder on a file system that all machines share: what the kernel orders, and what the
keeper of each rank notes.

All are made by the kernel before a rank exists, since a machine may remember for a minute that a file was not
there; each has one writer,
who appends short lines.  A file is opened anew to be read: network file systems promise to show then what was
written and flushed before.
"""

from __future__ import annotations

import os
from pathlib import Path

ORDERS, HOSTFILE = "orders", "hostfile"
STOP, STACKS = (
    "stop",
    "stacks",
)  # orders: end the rank and all that it has started; ask it for its Python stack
ON, AT_WORK, REPORTED, ENDED = (
    "on",
    "at work",
    "reported",
    "ended",
)  # notes: `on NAME` of a machine, ..., `ended STATUS TIME`
FILES = ("notes", "report", "values", "output", "stacks")  # of each rank: file `notes-3` and so on


def give(file: str | Path, line: str) -> None:
    """Append a line and flush it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(file: Path) -> list[str]:
    """Its whole lines."""
    return file.read_text().split("\n")[:-1]
