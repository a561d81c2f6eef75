"""The pipes between the kernel and each rank, by name, and what a back end gives the kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from . import waits

if TYPE_CHECKING:
    import socket
    from typing import IO

    from .outcome import Outcome
    from .progress import Progress

# what a rank returns, what it writes, where it stands when it is asked
PIPES = ("report", "output", "stacks")
AT_WORK = b"."  # the first byte of the report pipe: the rank has begun its function
# Signals that ask a rank where it stands: for its Python stack, and for the collective that it waits in.
# Training scripts use SIGUSR1 themselves, so Linux's real-time signals are taken where there are some.
ASK_STACK = waits.ASK - 1 if waits.ASK else signal.SIGUSR1
ASK = (ASK_STACK, waits.ASK) if waits.ASK else (ASK_STACK,)


def end_of(log: IO[bytes], characters: int = 2000) -> str:
    """The end of what a program has written to a file."""
    log.seek(max(log.seek(0, os.SEEK_END) - 4 * characters, 0))
    return log.read().decode(errors="replace")[-characters:]


class Piped:
    """What every back end gives the kernel, as it is where all comes through pipes."""

    command: list[str] | None = None  # that starts the ranks, where there is one
    pipes: Sequence[Sequence[int]] = ()  # of each rank, in the order of `PIPES`; perhaps none
    source: socket.socket | None = None  # tells how ranks end
    file: IO[bytes] | None = None  # where large reports lie
    queued = False  # whether the job still waits for machines; its time does not run then
    last_look = 10.0  # seconds that ranks have at most to say where they stand
    answers_later = False  # whether their answers are read only when all is over

    @property
    def begun(self) -> bool:
        """Whether there may be ranks."""
        return bool(self.pipes)

    def prepare(self, progress: Progress) -> None:
        """What may take long and may be interrupted."""

    def start(self) -> None:
        """Start the ranks."""

    def read_source(self, outcomes: Sequence[Outcome]) -> None:
        """A message of the source."""

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """What has come in another way."""

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """Whether what started the ranks has ended, or said what is wrong."""

    def activity(self, outcomes: Sequence[Outcome]) -> Hashable | None:
        """What is equal at two looks between which the ranks that have not reported slept; None where that is
        not known."""

    def ask_stacks(self) -> None:
        """Ask every rank where it stands."""

    def stop(self) -> None:
        """End all that was started."""

    def leave(self, outcomes: Sequence[Outcome]) -> None:
        """The last look, when all ranks have ended."""

    def remarks(self) -> list[str]:
        """Lines about the machines, for the error of a job that has failed."""
        return []
