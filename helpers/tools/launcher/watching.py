"""What the kernel does while ranks run: read their pipes until all have reported, one has failed, or the time
is up."""

from __future__ import annotations

import os
import selectors
import struct
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

from .parcel import region, unpack
from .pipes import AT_WORK, PIPES

if TYPE_CHECKING:
    from .outcome import Outcome
    from .pipes import Piped as Job
    from .progress import Progress

# seconds that ranks have to report after the first failure, whose cause may come later; less where it is
# known and the ranks that are left stand still
GRACE = 3.0
QUIET = 2.0  # seconds without an answer after which a rank that was asked for its stack counts as mute
SETTLED = 0.4  # seconds after the last answer of all: each rank answers twice
HEAD = len(AT_WORK) + 8  # bytes before a report: that the rank is at work, and the report's length
STILL = 0.5  # seconds without any activity after which ranks count as standing still
STATE, USER_TIME, SYSTEM_TIME = 0, 11, 12  # places in Linux's /proc/.../stat, counted behind the name


def activity(processes: Iterable[int | None]) -> Hashable | None:
    """What is equal at two looks between which all processes slept; None where a thread runs or ends, where a
    process has started others, which may work for it, or where nobody says."""
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


class RunningClock:
    """Seconds in which this process ran.  A pause, as after Ctrl-Z, counts as one second."""

    def __init__(self) -> None:
        self.seconds, self.before = 0.0, time.monotonic()

    def look(self) -> float:
        now = time.monotonic()
        self.seconds += min(now - self.before, 1.0)
        self.before = now
        return self.seconds


def watch(job: Job, outcomes: Sequence[Outcome], timeout: float, progress: Progress) -> bool:
    """Read what the ranks send until all have reported or one has failed.  Returns whether the time ran
    out."""
    reports = [bytearray() for _ in outcomes]
    clock, standstill = RunningClock(), Standstill(job)
    deadline, failed_at = timeout, None
    with selectors.DefaultSelector() as selector:
        for outcome, pipes in zip(outcomes, job.pipes):
            for name, pipe in zip(PIPES, pipes):
                selector.register(pipe, selectors.EVENT_READ, (name, outcome))
        if job.source:
            selector.register(job.source, selectors.EVENT_READ, ("source", None))

        def read_on(seconds: float) -> bool:
            """Read what is there or comes first; whether anything was."""
            ready = selector.select(seconds)
            for key, _ in ready:
                take(job, key, outcomes, reports, selector)
            job.look(outcomes)
            return bool(ready)

        while not all(map(has_ended, outcomes)):
            limit = deadline if failed_at is None else failed_at + GRACE
            over = clock.look() >= limit
            if over:  # what is on its way still counts: this process may have been stopped meanwhile
                until = time.monotonic() + 0.5
                while read_on(0) and time.monotonic() < until:
                    pass
            else:
                read_on(min(limit - clock.seconds, 0.1))
            job.check(outcomes)
            failed = [outcome for outcome in outcomes if outcome.failed]
            if failed and failed_at is None:
                failed_at = clock.look()
            elif over and failed:
                break
            elif over and not all(map(has_ended, outcomes)):
                collect_stacks(job, outcomes, selector, read_on)
                return not all(map(has_ended, outcomes))
            if any(outcome.notices is None for outcome in failed) and standstill.reached(outcomes):
                break
            if job.queued:
                deadline = clock.look() + timeout
            try:
                progress.tick(outcomes)
            except KeyboardInterrupt:
                with suppress(OSError):  # the forkserver may have gone
                    collect_stacks(job, outcomes, selector, read_on)
                raise
        return False


def has_ended(outcome: Outcome) -> bool:
    return outcome.report is not None or outcome.status is not None


def take(
    job: Job,
    key: selectors.SelectorKey,
    outcomes: Sequence[Outcome],
    reports: Sequence[bytearray],
    selector: selectors.BaseSelector,
) -> None:
    """Read one ready pipe."""
    name, outcome = key.data
    if name == "source":
        job.read_source(outcomes)
    elif (part := read(key.fd)) == b"":
        selector.unregister(key.fd)
    elif part and name == "report":
        body = reports[outcome.rank]
        body += part
        outcome.at_work = True
        if is_whole(body):
            outcome.report = load(memoryview(body)[HEAD:], job.file, region(outcome.rank), time.monotonic)
    elif part:
        outcome.add(name, part)


def read(pipe: int) -> bytes | None:
    """What is in a pipe: b"" at its end, None when there is nothing yet."""
    with suppress(BlockingIOError):
        return os.read(pipe, 1 << 20)
    return None


def is_whole(body: bytes | bytearray) -> bool:
    """Whether nothing is missing of what came through a report pipe."""
    return len(body) >= HEAD and len(body) - HEAD == struct.unpack_from("!Q", body, len(AT_WORK))[0]


def load(body: bytes | memoryview, file: IO[bytes], start: int, clock: Callable[[], float]) -> dict[str, Any]:
    """A rank's report, from the launcher's own pipe, which nobody else can write to; or, where that brings
    none, from a file of the job.

    `clock` is that of the job's ranks (`describing.describe`): one that cannot be read has failed now.
    """
    try:
        return cloudpickle.loads(body) if body else unpack(file.fileno(), start)
    except Exception as error:
        words = {"type": type(error).__name__, "message": str(error), "frames": [], "cause": None}
        return {"error": {**words, "returned": "value", "at": clock(), "notices": None}}


def collect_stacks(
    job: Job, outcomes: Sequence[Outcome], selector: selectors.BaseSelector, read_on: Callable[[float], bool]
) -> None:
    """Ask every rank that still runs where it stands, and wait until all at work have answered and nothing
    more comes, or a while has passed without an answer.  Nothing else counts any more."""
    for key in list(selector.get_map().values()):
        if key.data[0] != "stacks":
            selector.unregister(key.fileobj)
    job.ask_stacks()
    started = heard = time.monotonic()
    answers, patience = 0, QUIET
    while time.monotonic() < min(heard + patience, started + job.last_look):
        read_on(0.1)
        if (now := sum(len(outcome.stacks) for outcome in outcomes)) > answers:
            answers, heard = now, time.monotonic()
        asked = [outcome for outcome in outcomes if outcome.at_work and not has_ended(outcome)]
        patience = SETTLED if all(outcome.stacks for outcome in asked) and not job.answers_later else QUIET


def drain(job: Job, outcomes: Sequence[Outcome]) -> None:
    """What the ranks had written before they ended, then close the pipes and leave the job."""
    for outcome, pipes in zip(outcomes, job.pipes):
        for name, pipe in zip(PIPES, pipes):
            while name != "report" and (part := read(pipe)):
                outcome.add(name, part)
            os.close(pipe)
    job.leave(outcomes)
