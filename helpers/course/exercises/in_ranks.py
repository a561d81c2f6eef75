"""A learner's function in real ranks: what runs there, and how long the kernel waits for it.

A check's own messages never meet the learner's: they run in a group of their own, `own_group()`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from helpers.course.exercises.comparing import plain, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from torch.distributed import ProcessGroup, TCPStore
    from helpers.tools.launcher.jobs import Reports

    Values = dict[str, object]  # what a trial finds: {name: value}
    Trial = Callable[[Callable, int], Values]  # (function, seed) -> what is to be compared

HUNG = re.compile(r"\Aranks? [\d, ]+ of \d+ hung\b")
# Seconds until ranks count as hung, on a machine with nothing else to do; a check takes about one.
PATIENCE = 10.0
MOST_PATIENCE = 40.0
# Seconds of processor time that a function gets in a rank; one takes some hundredths.
COMPUTING = 2.0
ROUNDS = itertools.count()


class CourseFault(Exception):
    """The course's own function failed in a check: no fault of the learner's."""


class StillComputing(BaseException):
    """The learner's function has used all the processor time that it is given."""


class Alone(BaseException):
    """Another rank did not come out of the learner's function."""


@contextlib.contextmanager
def helped(hints: dict[str, str]) -> Iterator[None]:
    """Adds words to an error whose own say little: {a part of the error's message: what to think about}."""
    try:
        yield
    except Exception as error:
        if words := next((words for part, words in hints.items() if part in str(error)), ""):
            error.args = (f"{str(error).rstrip('.')}; {words}",)
        raise


def run_patiently(
    function: Callable, ranks: int, arguments: dict[str, object], patience: float = PATIENCE
) -> Reports:
    """`launch` on the CPU.  Ranks that look hung on a busy machine get a second run with more time before
    that is believed."""
    from helpers.tools.launcher.failures import RankError

    try:
        return run_once(function, ranks, arguments, patience)
    except RankError as error:
        crowd = crowding()
        if not HUNG.match(str(error)) or crowd < 1.5:
            raise
    longer = round(max(patience, min(2 * crowd * patience, MOST_PATIENCE)))
    return run_once(function, ranks, arguments, longer)


def run_once(function: Callable, ranks: int, arguments: dict[str, object], patience: float) -> Reports:
    from helpers.tools.launcher.failures import RankError
    from helpers.tools.launcher.jobs import launch

    arguments = {"function": function, "arguments": arguments, "patience": patience}
    reports = launch(within, ranks, arguments, device="cpu", timeout=patience)
    if alone := [rank for rank, report in enumerate(reports) if report is Alone]:
        words = f"hung: others left your function more than {patience / 2:g} s later, or less often"
        who = f"rank{'s' if len(alone) > 1 else ''} {', '.join(map(str, alone))} of {ranks}"
        raise RankError(f"{who} {words}", alone[0], reports.outputs)
    return reports


def of_the_check(error: Exception) -> bool:
    """Whether ranks hung in the course's own function."""
    return bool(HUNG.match(str(error))) and quiet_trial.__name__ in str(error)


def crowding(seconds: float = 0.2) -> float:
    """How many times longer than alone work takes here now: wall-clock time over processor time, and the load
    over the processors."""
    wall, processor = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    waited = (time.perf_counter() - wall) / max(time.thread_time() - processor, 1e-3)
    return max(waited, os.getloadavg()[0] / (os.cpu_count() or 1))


# --- in a rank


def within(function: Callable, arguments: dict[str, object], patience: float) -> object:
    """The function's result; `Alone` where this rank has waited for another in vain."""
    all_returned.patience = patience / 2  # the rest is for the start, and for what comes before
    try:
        return function(**arguments)
    except Alone:
        return Alone


def call_with_own(function: Callable, given: list[dict[str, object]]) -> object:
    """The function's value with this rank's arguments, as plain data."""
    import deepspeed  # noqa: F401  # its import is no part of the function's time

    with processor_time(COMPUTING):
        return plain(function(**given[int(os.environ["RANK"])]))


@contextlib.contextmanager
def processor_time(most: float) -> Iterator[None]:
    """Raises `StillComputing` at the line that runs when this process has computed for so many seconds,
    however busy the machine is."""

    def end(signal_number: int, frame: FrameType | None) -> None:
        raise StillComputing(f"was still computing after {most:g} s: does a loop never end?")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@functools.cache
def own_group() -> ProcessGroup:
    """The group of all ranks in which a check sends messages of its own, so that they cannot meet one of the
    learner's that another rank left out."""
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed()
    return dist.new_group(backend="gloo")


@functools.cache
def own_store() -> TCPStore:
    from torch.distributed import TCPStore

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def all_returned() -> None:
    """Wait until all ranks have come here as often as this one.  It sends nothing that is counted.

    Raises:
        Alone: a rank does not come; then no rank goes on from here.
    """
    store, deadline = own_store(), time.monotonic() + all_returned.patience
    decided = arrive()
    while not store.check([decided]) and time.monotonic() < deadline:
        time.sleep(0.002)
    if store.compare_set(decided, "", "alone") != b"together":
        raise Alone


all_returned.patience = PATIENCE / 2


def arrive() -> str:
    """Say that this rank has come to the next meeting, and return where its outcome stands."""
    meeting = f"check/{next(ROUNDS)}"
    if own_store().add(f"{meeting}/ranks", 1) == int(os.environ["WORLD_SIZE"]):
        own_store().compare_set(f"{meeting}/decided", "", "together")
    return f"{meeting}/decided"


def leaving_together(function: Callable) -> Callable:
    """The function, which returns when all ranks have left it."""

    @functools.wraps(function)
    def waits(*arguments: object, **named: object) -> object:
        try:
            value = function(*arguments, **named)
        except BaseException:
            arrive()
            raise
        all_returned()
        return value

    return function if inspect.isclass(function) else waits


class Judged(NamedTuple):
    """What a rank found, as plain data.

    Attributes:
        expected, got: what the trial finds with the course's function, and with the learner's.
        apart: for each mistake the names under which the learner's values are not the mistake's; None for a
            mistake that fails.
        example: what the example finds with the learner's function, or the trial where there is none; None
            where that function is wrong on some rank.
    """

    expected: Values
    got: Values
    apart: list[list[str] | None]
    example: Values | None


def judge(
    trial: Trial,
    function: Callable,
    solution: Callable,
    mistakes: list[Callable],
    seed: int,
    together: bool,
    tolerance: float,
    example: Trial | None = None,
) -> Judged:
    """What a trial finds with the course's function, with known mistakes, and with the learner's function.

    The learner's comes last, and what was found before is a copy, so that nothing it does can change that.
    """
    expected = quiet_trial(trial, solution, seed)
    tried = [tried_mistake(trial, mistake, seed) for mistake in mistakes]
    all_returned()  # nobody is in the learner's function while another is in the course's
    function = leaving_together(function) if together else function
    with processor_time(COMPUTING):
        got = seeded(trial, function, seed)
        is_right = not names_apart(got, expected, tolerance)
        shown = got if example is None else seeded(example, function, seed) if agreed(is_right) else None
    apart = [None if values is None else names_apart(got, values, tolerance) for values in tried]
    return Judged(expected, got, apart, shown)


def names_apart(got: Values, expected: Values, tolerance: float) -> list[str]:
    """The names of values that differ."""
    names = {**expected, **got}
    return [name for name in names if not same(got.get(name), expected.get(name), tolerance)]


def agreed(here: bool) -> bool:
    """Whether it is so on all ranks."""
    import torch
    import torch.distributed as dist

    everywhere = torch.tensor(int(here))
    dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=own_group())
    return bool(everywhere)


def tried_mistake(trial: Trial, mistake: Callable, seed: int) -> Values | None:
    """What a trial finds with a mistaken function; None where it fails."""
    with contextlib.suppress(CourseFault):
        return quiet_trial(trial, mistake, seed)


def quiet_trial(trial: Trial, function: Callable, seed: int) -> dict[str, object]:
    """A trial with a function of the course, which prints nothing; its failure is the course's."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return seeded(trial, function, seed)
    except Exception as error:
        raise CourseFault(f"{type(error).__name__}: {error}") from error


def seeded(trial: Trial, function: Callable, seed: int) -> dict[str, object]:
    """What a trial finds, as plain data."""
    import torch

    own_group()  # is made before anything else is sent
    torch.manual_seed(seed)
    return plain(trial(function, seed))
