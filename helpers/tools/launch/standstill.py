"""Whether ranks sleep: then they mostly wait for another rank, and a failure need not wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.tools.launch.outcome import Outcome
    from helpers.tools.launch.watching import Job

STILL = 0.5  # seconds without any activity after which ranks count as standing still
STATE, USER_TIME, SYSTEM_TIME = 0, 11, 12  # places in Linux's /proc/.../stat, counted behind the name


def activity(processes: Iterable[int | None]) -> Hashable | None:
    """What is equal at two looks between which all processes slept.

    None where a thread runs or ends, where a process has started others, which may work for it, or where
    nobody says."""
    slept = []
    try:
        for process in processes:
            for thread in sorted(os.listdir(f"/proc/{process}/task")):
                with open(f"/proc/{process}/task/{thread}/stat") as file:
                    fields = file.read().rpartition(") ")[2].split()
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    children = file.read()
                if fields[STATE] != "S" or children:
                    return None
                slept.append((thread, fields[USER_TIME], fields[SYSTEM_TIME]))
    except OSError:  # another system, or one that has just ended
        return None
    return tuple(slept)


class Standstill:
    """Tells when the ranks of a job that have not reported have done nothing for a while."""

    def __init__(self, job: Job) -> None:
        self.job, self.before, self.since = job, None, 0.0

    def reached(self, outcomes: Sequence[Outcome]) -> bool:
        seen, now = self.job.activity(outcomes), time.monotonic()
        if seen is None or seen != self.before:
            self.before, self.since = seen, now
        return seen is not None and now - self.since >= STILL
