"""What the kernel does while ranks run: read their pipes until all have reported, one has failed, or the time
is up."""

from __future__ import annotations

import os
import selectors
import struct
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Protocol

import cloudpickle
from helpers.tools.launch.parcel import region, unpack
from helpers.tools.launch.pipes import AT_WORK, PIPES
from helpers.tools.launch.standstill import Standstill

if TYPE_CHECKING:
    import socket

    from helpers.tools.launch.failures import Outcome
    from helpers.tools.launch.progress import Progress

# seconds that ranks have to report after the first failure, so that the cause is known and not only who
# noticed first; less
GRACE = 3.0
# where a cause is known and the ranks that are left stand still
HEAD = len(AT_WORK) + 8  # bytes before a report: that the rank is at work, and the report's length


class Job(Protocol):
    """What a back end gives the kernel.

    Attributes:
        command: the command line that starts the ranks, None where there is none.
        pipes: descriptors for each rank, in the order of `PIPES`; none where all comes in another way.
        source: a socket that tells how ranks end, or None.
        file: where large reports lie, or None.
        queued: whether the job still waits for machines; its time does not run then.
        last_look: seconds that ranks have to say where they stand.
        answers_later: whether their answers are read only when all is over.
    """

    command: list[str] | None
    pipes: Sequence[Sequence[int]]
    source: socket.socket | None
    file: IO[bytes] | None
    queued: bool
    last_look: float
    answers_later: bool

    @property
    def begun(self) -> bool:
        """Whether there may be ranks."""

    def prepare(self, progress: Progress) -> None:
        """What may take long and may be interrupted."""

    def start(self) -> None:
        """Start the ranks."""

    def read_source(self, outcomes: Sequence[Outcome]) -> None:
        """A message of the source; what has none needs no such method."""

    def pipe_closed(self, outcome: Outcome) -> None:
        """A rank has closed its report pipe; what has no pipes needs no such method."""

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """What has come in another way."""

    def activity(self, outcomes: Sequence[Outcome]) -> Hashable | None:
        """What is equal at two looks between which the ranks that have not reported slept; None where that is
        not known."""

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """How ranks, or what started them, have ended."""

    def ask_stacks(self) -> None:
        """Ask every rank where it stands."""

    def stop(self) -> None:
        """End all that was started."""

    def leave(self, outcomes: Sequence[Outcome]) -> None:
        """The last look, when all ranks have ended."""


def watch(job: Job, outcomes: Sequence[Outcome], timeout: float, progress: Progress) -> bool:
    """Read what the ranks send until all have reported or one has failed.  Returns whether the time ran out
    first."""
    reports = [bytearray() for _ in outcomes]
    deadline, failed_at, standstill = time.monotonic() + timeout, None, Standstill(job)
    with selectors.DefaultSelector() as selector:
        for outcome, pipes in zip(outcomes, job.pipes):
            for name, pipe in zip(PIPES, pipes):
                selector.register(pipe, selectors.EVENT_READ, (name, outcome))
        if job.source:
            selector.register(job.source, selectors.EVENT_READ, ("source", None))
        while True:
            now = time.monotonic()
            limit = deadline if failed_at is None else failed_at + GRACE
            if all(outcome.report or outcome.status is not None for outcome in outcomes) or (
                failed_at and now >= limit
            ):
                break
            if now >= deadline and failed_at is None:
                collect_stacks(job, outcomes, selector)
                return True
            for key, _ in selector.select(min(limit - now, 0.1)):
                take(job, key, outcomes, reports, selector)
            job.look(outcomes)
            if failed_at is None and any(outcome.failed for outcome in outcomes):
                failed_at = time.monotonic()
            job.check(outcomes)
            if any(outcome.failed and outcome.notices is None for outcome in outcomes) and standstill.reached(
                outcomes
            ):
                break
            if job.queued:
                deadline = time.monotonic() + timeout
            try:
                progress.tick(outcomes)
            except KeyboardInterrupt:
                with suppress(OSError):  # the forkserver may have gone
                    collect_stacks(job, outcomes, selector)
                raise
        return False


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
        return
    part = read(key.fd)
    if part is None:
        return
    if not part:
        selector.unregister(key.fd)
        if name == "report":
            job.pipe_closed(outcome)
    elif name == "report":
        body = reports[outcome.rank]
        body += part
        outcome.at_work = True
        if is_whole(body):
            outcome.report = load(memoryview(body)[HEAD:], job.file, region(outcome.rank), time.monotonic)
    else:
        getattr(outcome, name).extend(part)


def read(pipe: int) -> bytes | None:
    """What is in a pipe: b"" at its end, None when there is nothing yet."""
    try:
        return os.read(pipe, 1 << 20)
    except BlockingIOError:
        return None


def is_whole(body: bytes | bytearray) -> bool:
    """Whether nothing is missing of what came through a report pipe."""
    return len(body) >= HEAD and len(body) - HEAD == struct.unpack_from("!Q", body, len(AT_WORK))[0]


def load(body: bytes | memoryview, file: IO[bytes], start: int, clock: Callable[[], float]) -> dict[str, Any]:
    """A rank's report, from the launcher's own pipe, which nobody else can write to; or, where that brings
    none, from a file of the job.

    `clock` is that of the job's ranks (`helpers.tools.launch.rank.describe`): one that cannot be read has
    failed now.
    """
    try:
        return cloudpickle.loads(body) if body else unpack(file.fileno(), start)
    except Exception as error:
        return {
            "error": {
                "type": type(error).__name__,
                "message": str(error),
                "frames": [],
                "cause": None,
                "returned": "value",
                "at": clock(),
                "notices": None,
            }
        }


def collect_stacks(job: Job, outcomes: Sequence[Outcome], selector: selectors.BaseSelector) -> None:
    """Ask every rank that still runs for its Python stack, and wait until all at work have answered and
    nothing more comes, or the time is up."""
    for key in list(selector.get_map().values()):
        if key.data[0] != "stacks":
            selector.unregister(key.fileobj)
    job.ask_stacks()
    until = time.monotonic() + job.last_look
    while time.monotonic() < until:
        ready = selector.select(0.1)
        for key, _ in ready:
            take(job, key, outcomes, [], selector)
        job.look(outcomes)
        asked = (
            outcome
            for outcome in outcomes
            if outcome.at_work and outcome.report is None and outcome.status is None
        )
        if not ready and not job.answers_later and all(outcome.stacks for outcome in asked):
            break


def drain(job: Job, outcomes: Sequence[Outcome]) -> None:
    """What the ranks had written before they ended, then close the pipes and leave the job."""
    for outcome, pipes in zip(outcomes, job.pipes):
        for name, pipe in zip(PIPES, pipes):
            while name != "report" and (part := read(pipe)):
                getattr(outcome, name).extend(part)
            os.close(pipe)
    job.leave(outcomes)
