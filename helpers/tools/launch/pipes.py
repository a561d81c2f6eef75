"""The pipes between the kernel and each rank, by name: its report, what it writes, and its stack when it is
asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.tools.launch.failures import Outcome

PIPES = ("report", "output", "stacks")
AT_WORK = b"."  # the first byte of the report pipe: the rank has begun its function


class Piped:
    """What back ends have in common whose ranks run on this machine: all comes through pipes."""

    queued = False  # whether the job still waits for machines; its time does not run then
    last_look = (
        10.0  # seconds that ranks have to say where they stand, when the time is up or the learner interrupts
    )
    answers_later = False  # whether their answers are read only when all is over

    @property
    def begun(self) -> bool:
        """Whether there may be ranks."""
        return bool(self.pipes)

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """What has come in another way."""

    def activity(self, outcomes: Sequence[Outcome]) -> Hashable | None:
        """What is equal at two looks between which the ranks that have not reported slept; None where that is
        not known."""

    def leave(self, outcomes: Sequence[Outcome]) -> None:
        """The last look, when all ranks have ended."""
