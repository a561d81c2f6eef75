"""A learner's function in real ranks: what runs there, and how long the kernel waits for it."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup
    from helpers.tools.launch.jobs import Reports

    Trial = Callable[[Callable, int], dict[str, object]]  # (function, seed) -> what is to be compared

HUNG = re.compile(r"\Aranks? [\d, ]+ of \d+ hung\b")
PATIENCE = (
    10.0  # seconds until ranks count as hung, on a machine with nothing else to do; a check takes about one
)
MOST_PATIENCE = 60.0


class CourseFault(Exception):
    """The course's own function failed in a check: no fault of the learner's."""


@contextlib.contextmanager
def helped(hints: dict[str, str]) -> Iterator[None]:
    """Adds words to an error whose own say little: {a part of the error's message: what to think about}."""
    try:
        yield
    except Exception as error:
        words = next((words for part, words in hints.items() if part in str(error)), "")
        if words:
            error.args = (f"{str(error).rstrip('.')}; {words}",)
        raise


def run_patiently(
    function: Callable, ranks: int, arguments: dict[str, object], patience: float = PATIENCE
) -> Reports:
    """`launch` on the CPU.  Ranks that look hung on a busy machine get a second run with more time before
    that is believed."""
    from helpers.tools.launch.failures import RankError
    from helpers.tools.launch.jobs import launch

    try:
        return launch(function, ranks, arguments, device="cpu", timeout=patience)
    except RankError as error:
        crowd = crowding()
        if not HUNG.match(str(error)) or crowd < 1.5:
            raise
    return launch(
        function,
        ranks,
        arguments,
        device="cpu",
        timeout=round(max(patience, min(2 * crowd * patience, MOST_PATIENCE))),
    )


def crowding(seconds: float = 0.2) -> float:
    """How many times longer than alone work takes here now: wall-clock time over processor time, and the load
    over the processors."""
    wall, own = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < seconds:
        pass
    waited = (time.perf_counter() - wall) / max(time.thread_time() - own, 1e-3)
    return max(waited, os.getloadavg()[0] / (os.cpu_count() or 1))


@functools.cache
def own_group() -> ProcessGroup:
    """The group of all ranks in which a check sends messages of its own, so that they cannot meet one of the
    learner's that another rank left out."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo")


def call_with_own(function: Callable, given: list[dict[str, object]]) -> object:
    """In a rank: the function with this rank's arguments."""
    return function(**given[int(os.environ["RANK"])])


def try_out(
    trial: Trial, function: Callable, solution: Callable, seed: int
) -> tuple[dict[str, object], dict[str, object]]:
    """In a rank: what a trial finds with the course's function, then with the learner's, of the same seed.

    The course's comes first and its values are copied, so that nothing the learner's function does can change
    them.

    Returns:
        (expected, got): the trials' dicts with tensors as numpy arrays.
    """
    import deepspeed

    deepspeed.init_distributed()
    expected = quiet_trial(trial, solution, seed)
    return expected, plain(seeded(trial, function, seed))


def try_mistakes(trial: Trial, mistakes: list[Callable], seed: int) -> list[dict[str, object] | None]:
    """In a rank: what a trial finds with each of several mistaken functions; None for one that fails."""
    import deepspeed

    deepspeed.init_distributed()
    return [tried_mistake(trial, mistake, seed) for mistake in mistakes]


def tried_mistake(trial: Trial, mistake: Callable, seed: int) -> dict[str, object] | None:
    try:
        return quiet_trial(trial, mistake, seed)
    except CourseFault:
        return None


def quiet_trial(trial: Trial, function: Callable, seed: int) -> dict[str, object]:
    """A trial with a function of the course, which prints nothing; its failure is the course's."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return plain(seeded(trial, function, seed))
    except Exception as error:
        raise CourseFault(f"{type(error).__name__}: {error}") from error


def seeded(trial: Trial, function: Callable, seed: int) -> dict[str, object]:
    import torch

    torch.manual_seed(seed)
    return trial(function, seed)


def plain(value: object) -> object:
    """A value that can be sent and compared without torch: tensors as numpy arrays, detached and copied;
    tuples as lists."""
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return numpy.array(
            (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
        )
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, numpy.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if value is None or value is ... or isinstance(value, (bool, int, float, str)):
        return value
    return f"<{type(value).__name__}>"
