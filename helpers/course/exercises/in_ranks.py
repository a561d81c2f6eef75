"""A learner's function in real ranks: what runs there, and how long the kernel waits for it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from helpers.course.exercises.comparing import plain, same
from helpers.course.exercises.meeting import Alone, agreed, leaving_together, meet, own_group
from helpers.tools.launcher.failures import RankError

if TYPE_CHECKING:
    from types import FrameType

    from helpers.course.exercises.seeing import See
    from helpers.tools.launcher.jobs import Reports

    Trial = Callable[[See, Callable], None]  # calls the function, and notes what is to be compared

Values = dict[str, object]  # what a trial finds: {name: value}
# Seconds until ranks count as hung, on a machine with nothing else to do; a check takes about one.
PATIENCE = 10.0
MOST_PATIENCE = 40.0
# Seconds of processor time that a function gets in a rank; one takes some hundredths.
COMPUTING = 2.0


class CourseFault(Exception):
    """The course's own function failed in a check: no fault of the learner's."""


class StillComputing(BaseException):
    """The learner's function has used all the processor time that it is given."""


@dataclass(frozen=True)
class Task:
    """What every rank of a check does.

    Attributes:
        trial: (see, function); runs in every rank, after `deepspeed.init_distributed()`, on the CPU.
        function: the learner's.
        solution: the course's.
        others: more functions, such as known mistakes.
        together: whether ranks wait after a call of the learner's function until all have left it.
        example: another trial, whose values make a picture.
        patience: seconds until ranks count as hung on a machine with nothing else to do.
    """

    trial: Trial
    function: Callable
    solution: Callable
    seed: int
    others: Sequence[Callable] = ()
    together: bool = False
    tolerance: float = 1e-5
    example: Trial | None = None
    patience: float = PATIENCE
    hints: Mapping[str, str] = field(default_factory=dict)


def run_patiently(function: Callable[[Task], object], ranks: int, task: Task) -> Reports:
    """`launch` on the CPU.  Ranks that look hung on a busy machine get a second run with more time before
    that is believed."""
    try:
        return run_once(function, ranks, task)
    except RankError as error:
        crowd = crowding()
        if not error.hung or crowd < 1.5:
            raise
    longer = round(max(task.patience, min(2 * crowd * task.patience, MOST_PATIENCE)))
    return run_once(function, ranks, replace(task, patience=longer))


def run_once(function: Callable[[Task], object], ranks: int, task: Task) -> Reports:
    from helpers.tools.launcher.jobs import launch

    arguments = {"function": function, "task": task}
    reports = launch(within, ranks, arguments, device="cpu", timeout=task.patience)
    if alone := [rank for rank, report in enumerate(reports) if report is Alone]:
        words = f"hung: others left your function more than {task.patience / 2:g} s later, or less often"
        who = f"rank{'s' if len(alone) > 1 else ''} {', '.join(map(str, alone))} of {ranks}"
        raise RankError(lambda hides: f"{who} {words}", alone, reports.outputs, "apart")
    return reports


def of_the_check(error: RankError) -> bool:
    """Whether ranks hung in the course's own function."""
    return error.hung and any(frame[2] == quiet_trial.__name__ for frame in error.frames)


def crowding(seconds: float = 0.2) -> float:
    """How many times longer than alone work takes here now: wall-clock time over processor time, and the load
    over the processors."""
    wall, processor = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    waited = (time.perf_counter() - wall) / max(time.thread_time() - processor, 1e-3)
    return max(waited, os.getloadavg()[0] / (os.cpu_count() or 1))


# --- in a rank


def within(function: Callable[[Task], object], task: Task) -> object:
    """The function's result; `Alone` where this rank has waited for another in vain."""
    try:
        return function(task)
    except Alone:
        return Alone


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


def judge(task: Task) -> Judged:
    """What a trial finds with the course's function, with others, and with the learner's function.

    The learner's comes last, and what was found before is a copy, so that nothing it does can change that.
    """
    expected = quiet_trial(task, task.solution)
    tried = [tried_mistake(task, other) for other in task.others]
    meet(task.patience / 2)  # nobody is in the learner's function while another is in the course's
    function = leaving_together(task.function, task.patience / 2) if task.together else task.function
    with processor_time(COMPUTING):
        got = seeded(task, task.trial, function)
        is_right = not names_apart(got, expected, task.tolerance)
        shown = got
        if task.example:
            shown = seeded(task, task.example, function) if agreed(is_right) else None
    apart = [None if values is None else names_apart(got, values, task.tolerance) for values in tried]
    return Judged(expected, got, apart, shown)


def names_apart(got: Values, expected: Values, tolerance: float) -> list[str]:
    """The names of values that differ."""
    names = {**expected, **got}
    return [name for name in names if not same(got.get(name), expected.get(name), tolerance)]


def tried_mistake(task: Task, mistake: Callable) -> Values | None:
    """What a trial finds with a mistaken function; None where it fails."""
    with contextlib.suppress(CourseFault):
        return quiet_trial(task, mistake)


def quiet_trial(task: Task, function: Callable) -> Values:
    """A trial with a function of the course, which prints nothing; its failure is the course's."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return seeded(task, task.trial, function)
    except Exception as error:
        raise CourseFault(f"{type(error).__name__}: {error}") from error


def seeded(task: Task, trial: Trial, function: Callable) -> Values:
    """What a trial finds, as plain data."""
    import torch
    from helpers.course.exercises.seeing import See

    own_group()  # is made before anything else is sent
    torch.manual_seed(task.seed)
    see = See(task.seed, task.patience / 2, task.hints)
    trial(see, function)
    return plain(see.values)
