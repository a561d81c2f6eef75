"""Files in a job's folder on a file system that all machines share: what the kernel orders, and what the
keeper of each rank notes.

The kernel makes all of them before a rank exists, since a machine may remember for a minute that a file was
not there.  Each has one writer, who appends.  A file is opened anew to be read: network file systems promise
to show then what was flushed before.  They may also refuse for a while what they will allow again (ESTALE,
EIO, ENOENT): all that is read and written here waits.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 5.0  # seconds for which a file system may refuse
PAUSE = 0.1  # seconds between two tries
ORDERS, HOSTFILE = "orders", "hostfile"
STOP, STACKS = "stop", "stacks"  # orders: end the rank and all that it has started; ask it for its stack
# notes: `on NAME` of a machine, ..., `ended STATUS TIME`
ON, AT_WORK, REPORTED, ENDED = "on", "at work", "reported", "ended"
FILES = ("notes", "report", "values", "output", "stacks")  # of each rank: file `notes-3` and so on
# What a wrong argument gives: no patience helps.
MISTAKES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def patiently(
    act: Callable[..., T],
    *arguments: object,
    until: float | None = None,
    at_once: tuple[type[OSError], ...] = (),
) -> T:
    """What a call returns, as soon as the file system allows it; the last refusal, an OSError, when the time
    `until` has come, by default in `PATIENCE` seconds.  Errors `at_once` are raised without another try.
    """
    until = time.monotonic() + PATIENCE if until is None else until
    while True:
        try:
            return act(*arguments)
        except at_once:
            raise
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE)


class Reader:
    """Reads files again and again, and never waits: a file that cannot be read now gives None, and an OSError
    after `PATIENCE` seconds."""

    def __init__(self) -> None:
        self.refused: dict[Path, float] = {}  # since when

    def read(self, file: Path) -> bytes | None:
        try:
            content = file.read_bytes()
        except OSError:
            if time.monotonic() - self.refused.setdefault(file, time.monotonic()) > PATIENCE:
                raise
            return None
        self.refused.pop(file, None)
        return content

    def lines(self, file: Path) -> list[str]:
        """The whole lines of a file, none where it cannot be read now."""
        return (self.read(file) or b"").decode().split("\n")[:-1]


def append(file: Path, content: bytes, flush: bool = False) -> None:
    """Append to a file that is there."""
    left = memoryview(content)

    def write():
        nonlocal left
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
            if flush:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    patiently(write)


def give(file: Path, line: str) -> None:
    """Append a line and flush it."""
    append(file, f"{line}\n".encode(), flush=True)
