"""Real ranks from a notebook cell: `launch(function, ranks=4)`.  Whatever happens, no rank outlives it."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from ..sources import changed as changed_helpers
from ..whole import check_choice
from . import arguments as checks
from . import resources
from .cluster.hosts import Hosts
from .cluster.srun import SlurmNodes
from .command.command_job import CommandJob, DeepSpeedCommand
from .describing import cut
from .environment import threads_of
from .failures import LaunchError, RankError, failure, hang
from .forked.forked_job import ForkedJob
from .outcome import KEPT_OUTPUT, Outcome, explain
from .progress import Progress
from .watching import drain, watch

if TYPE_CHECKING:
    from ..machines.namespaces import Machines, Placement
    from .parcel import Parcel
    from .pipes import Piped as Job

__all__ = ["LaunchError", "RankError", "Reports", "launch"]

SHOWN_CHARACTERS = 20_000
ELSEWHERE = (Hosts, SlurmNodes)  # where nobody here knows the memory

_busy = threading.Lock()


def be_idle_in_child() -> None:
    """In a forked child of the kernel no launch runs, though one may run in its parent."""
    global _busy
    _busy = threading.Lock()


os.register_at_fork(after_in_child=be_idle_in_child)


class Reports(list):
    """What each rank returned, in rank order.

    Attributes:
        outputs: what each rank wrote to stdout and stderr; of more than 32 MB in all, beginning and end.
        seconds: wall-clock time from the call to the last report.
        device: "cpu" or "cuda".
        command: words of the command line of `deepspeed` or `srun`, None where there was none.
    """

    def __init__(
        self, values: Iterable, outputs: list[str], seconds: float, device: str, command: list[str] | None
    ) -> None:
        super().__init__(values)
        self.outputs, self.seconds, self.device, self.command = outputs, seconds, device, command


@contextmanager
def alone() -> Iterator[None]:
    """One launch at a time: two would share the forkserver's replies."""
    if not _busy.acquire(blocking=False):
        raise LaunchError("a launch is running in this kernel already: wait for it, or interrupt it")
    try:
        yield
    finally:
        _busy.release()


def start(job: Job, progress: Progress) -> None:
    try:
        job.prepare(progress)
        job.start()
    except OSError as error:  # too many open files, or a full disk
        raise LaunchError(f"the job could not be started: {error}") from None


def make_ready() -> None:
    """Descriptors 0 to 2 and a folder, which a program that is started from here takes for granted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "the folder in which this kernel runs was removed: change to another with os.chdir(...), or "
            "restart the kernel"
        ) from None
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a pipe of the job would take its place
        pass
    os.close(descriptor)
    if (
        "torch" in sys.modules
    ):  # with which is looked at what is sent; an interrupted launch may still import it
        resources.import_whole("torch")


def job_for(
    payload: Parcel,
    ranks: int,
    device: str | None,
    on: Machines | Placement | DeepSpeedCommand | Hosts | SlurmNodes | None,
    place: Placement | None,
) -> Job:
    """A job of the back end that was asked for, or an error that says what cannot be used."""
    if isinstance(on, ELSEWHERE):
        return on.job(payload, ranks, device)
    is_chosen_here = device is None and not place
    device = resources.choose_device("cpu" if place else device, ranks)
    if is_chosen_here and device == "cpu" and (gpus := resources.gpu_count()):
        print(f"note: {ranks} ranks on the CPU, since this machine has {gpus} GPU{'s' * (gpus > 1)}")
    if not isinstance(on, DeepSpeedCommand):
        return ForkedJob(payload, ranks, device, place)
    if device == "cuda" and ranks > (gpus := resources.gpu_count()):
        raise ValueError(
            f"the deepspeed command gives every rank a GPU of its own: use at most {gpus} ranks, or leave "
            "on out"
        )
    return CommandJob(payload, ranks, device)


def launch(
    function: Callable,
    ranks: int = 2,
    arguments: Mapping[str, object] | None = None,
    *,
    device: str | None = None,
    timeout: float = 300.0,
    on: Machines | Placement | DeepSpeedCommand | Hosts | SlurmNodes | None = None,
    **unknown: object,
) -> Reports:
    """Run `function(**arguments)` in `ranks` processes and return what each returned.

    The body of `function` is what the `main()` of a script for `deepspeed` or `torchrun` would hold: RANK,
    LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and `deepspeed.init_distributed()` finds the
    other ranks.  Their temporary files and shared memory go with them.  Each rank has one thread, or as many
    as the environment variable LAUNCH_THREADS says; OMP_NUM_THREADS is for this process alone.

    Args:
        function: any function of a cell; closures and lambdas too.  Its return value must be picklable.
        ranks: how many processes, 1 to 64.
        arguments: keyword arguments, the same for every rank.
        device: "cuda" or "cpu"; by default GPUs when there are at least as many as ranks, else the CPU with
            gloo.  With "cuda" and fewer GPUs than ranks, ranks share GPUs: bytes are those of a rank with a
            GPU of its own, times are not.
        timeout: seconds after which the job counts as hung; neither waiting in a cluster's queue counts, nor
            time in which this process is stopped.
        on: where the ranks run, with its own settings: by default this machine, forked from a warm server;
            `DeepSpeedCommand()`, this machine through the real command; `Machines`, or what their `place`
            returns, on the CPU only; `Hosts(hostfile)`, the machines of a hostfile; `SlurmNodes(2)`, a
            cluster's.
        unknown: nothing; an argument that `launch` had before gives an error that says what replaces it.

    Returns:
        `Reports`, a list in rank order.  Rank 0's output is printed; every rank's is in `.outputs`.

    Raises:
        TypeError, ValueError, MemoryError: before any process starts, when an argument cannot be used.
        RankError: a rank failed or hung; names the guilty rank and the cause.
        LaunchError: the job could not be started, or another launch is running in this kernel.
        KeyboardInterrupt: the learner interrupted; shows where each rank stood.
    """
    if os.name != "posix":
        raise LaunchError("launch needs Linux or macOS; on Windows use WSL2")
    checks.refuse(unknown)
    check_choice("device", device, ("cpu", "cuda", None))
    threads_of(os.environ)
    elsewhere = isinstance(on, ELSEWHERE)
    ranks = checks.checked_ranks(ranks, math.inf if elsewhere else resources.free_memory())
    timeout, arguments = checks.checked_timeout(timeout), checks.checked_arguments(arguments)
    place = None
    if not (on is None or isinstance(on, (DeepSpeedCommand, *ELSEWHERE))):
        place = checks.checked_placement(on, ranks, device)
    make_ready()
    payload = checks.pack(function, arguments)
    if payload.size > (free := resources.free_memory()):
        raise MemoryError(
            f"the function carries {payload.size / 1e9:.1f} GB from the notebook to the ranks, "
            f"and {free / 1e9:.1f} GB is free"
        )
    job = job_for(payload, ranks, device, on, place)
    if stale := changed_helpers():
        print(
            f"note: {', '.join(stale)} changed since this kernel imported it: ranks use the new file, this "
            f"kernel the old; restart the kernel"
        )
    machines = place.of if place else [None] * ranks
    outcomes = [
        Outcome(rank, machine=machine, most=KEPT_OUTPUT // ranks) for rank, machine in enumerate(machines)
    ]
    started, kills_before = perf_counter(), resources.out_of_memory_kills()
    try:
        with Progress() as progress, alone():
            try:
                start(job, progress)
                late = watch(job, outcomes, timeout, progress)
            finally:
                job.stop()
                drain(job, outcomes)
    except KeyboardInterrupt as interrupt:
        explain(interrupt, outcomes if job.begun else [], perf_counter() - started)
        raise
    if getattr(on, "show", False) and job.command:  # two lines, which a shell reads as one
        print("$", *job.command[:-3], "\\\n   ", *job.command[-3:-1], "<a private folder>")
    shown = cut(outcomes[0].text, SHOWN_CHARACTERS, " of rank 0: see .outputs[0] of what launch returned")
    print(shown, end="" if shown.endswith("\n") or not shown else "\n")
    if late:
        raise hang(outcomes, timeout, job.remarks())
    if any(outcome.failed for outcome in outcomes):
        raise failure(
            outcomes, not elsewhere and resources.out_of_memory_kills() > kills_before, job.remarks()
        )
    values, outputs = zip(*((outcome.report["value"], outcome.text) for outcome in outcomes))
    return Reports(values, list(outputs), perf_counter() - started, job.device, job.command)
