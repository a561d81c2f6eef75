"""Real ranks from a notebook cell: `launch(function, ranks=4)`.

Back ends start the same `helpers.tools.launch.rank.run`: a warm forkserver (default: ranks in milliseconds),
the real `deepspeed` command, and Slurm's `srun`.  Whatever happens, no rank outlives the call.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from helpers.sources import changed as changed_helpers
from helpers.tools.launch import arguments as checks
from helpers.tools.launch.cluster import hosts, srun
from helpers.tools.launch.command.command_job import CommandJob
from helpers.tools.launch.describing import cut
from helpers.tools.launch.failures import KEPT_OUTPUT, LaunchError, Outcome, RankError, failure, hang
from helpers.tools.launch.forked.forked_job import ForkedJob
from helpers.tools.launch.interrupted import explain
from helpers.tools.launch.payload import pack, weight
from helpers.tools.launch.progress import Progress
from helpers.tools.launch.resources import (
    choose_device,
    finish_import,
    free_memory,
    gpu_count,
    out_of_memory_kills,
)
from helpers.tools.launch.watching import drain, watch
from helpers.tools.whole import check_choice

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.tools.launch.parcel import Parcel
    from helpers.tools.launch.pipes import Piped as Job
    from helpers.tools.machines.namespaces import Machines, Placement

__all__ = ["LaunchError", "RankError", "Reports", "launch"]

SHOWN_CHARACTERS = 20_000

_busy = threading.Lock()


def be_idle_in_child() -> None:
    """In a forked child of the kernel no launch runs, though one may run in its parent."""
    global _busy
    _busy = threading.Lock()


os.register_at_fork(after_in_child=be_idle_in_child)


class Reports(list):
    """What each rank returned, in rank order; beside it what they wrote and how they were run.

    Attributes:
        outputs: list of str, what each rank wrote to stdout and stderr; of more than 32 MB in all, the
            beginning and the end.
        seconds: float, wall-clock time from the call to the last report.
        device: "cpu" or "cuda".
        command: list of str, the command line of `deepspeed` or `srun`, None where there was none.
    """

    def __init__(
        self,
        values: Iterable,
        outputs: list[str],
        seconds: float,
        device: str,
        command: list[str] | None = None,
    ) -> None:
        super().__init__(values)
        self.outputs, self.seconds, self.device, self.command = outputs, seconds, device, command


def show(outcome: Outcome) -> None:
    """Print what rank 0 wrote, its beginning and end where it is long."""
    text = cut(outcome.text, SHOWN_CHARACTERS, " of rank 0: see .outputs[0] of what launch returned")
    if text:
        print(text, end="" if text.endswith("\n") else "\n")


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
    """Start the ranks of a job."""
    try:
        job.prepare(progress)
        job.start()
    except OSError as error:  # too many open files, or a full disk
        raise LaunchError(f"the job could not be started: {error}") from None


def make_ready() -> None:
    """What a program takes for granted that is started from here: a folder, and descriptors 0 to 2."""
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
    finish_import("torch")  # with which is looked at what is sent


def cluster_for(
    launcher: str | None,
    ranks: int,
    hostfile: str | Path | None,
    ssh: bool,
    **options: int | str | Path | None,
) -> dict[str, object]:
    """What a job on other machines is told beside its ranks; nothing for this machine.

    Raises:
        TypeError, ValueError, LaunchError: an argument cannot be used, or a program is missing.
    """
    unused = {**options, "hostfile": hostfile}
    if launcher == "slurm":
        unused, cluster = {"hostfile": hostfile}, srun.check(ranks, options)
    elif hostfile is not None and launcher == "deepspeed":
        cluster = {"hosts": hosts.check(hostfile, ranks, ssh), "ssh": ssh, "folder": options["folder"]}
        del unused["hostfile"], unused["folder"]
    else:
        cluster = {}
    if wrong := [name for name, value in unused.items() if value is not None]:
        raise ValueError(
            f'{", ".join(wrong)} cannot be used here: hostfile is for launcher="deepspeed", '
            'folder for it and for "slurm", the others are for "slurm"'
        )
    return cluster


def job_for(
    payload: Parcel,
    ranks: int,
    device: str,
    launcher: str | None,
    place: Placement | None,
    cluster: Mapping[str, object],
) -> Job:
    """Of the back end that was asked for."""
    if launcher == "slurm":
        return srun.SlurmJob(payload, ranks, device, **cluster)
    if cluster:
        return hosts.HostsJob(payload, ranks, device, **cluster)
    return CommandJob(payload, ranks, device) if launcher else ForkedJob(payload, ranks, device, place)


def device_for(
    device: str | None,
    ranks: int,
    launcher: str | None,
    place: Placement | None,
    cluster: Mapping[str, object],
) -> str:
    """ "cuda" or "cpu"; of other machines nobody here knows more than what is asked for."""
    if cluster:
        return device or ("cuda" if cluster.get("gpus") else "cpu")
    device = choose_device("cpu" if place else device, ranks)
    if launcher and device == "cuda" and ranks > gpu_count():
        raise ValueError(
            f"the deepspeed command gives every rank a GPU of its own: use at most {gpu_count()} ranks, or "
            f"leave launcher out"
        )
    return device


def tell(payload: Parcel, function: Callable, arguments: Mapping[str, object]) -> None:
    """Notes before a launch: which helpers are stale here, and what is carried where that is much."""
    if stale := changed_helpers():
        print(
            f"note: {', '.join(stale)} changed since this kernel imported it: ranks use the new file, this "
            f"kernel the old; restart the kernel"
        )
    if carried := weight(payload, function, arguments):
        print(f"note: {carried}")


def launch(
    function: Callable,
    ranks: int = 2,
    arguments: Mapping[str, object] | None = None,
    *,
    device: str | None = None,
    timeout: float = 300.0,
    launcher: str | None = None,
    command: bool = False,
    place: Machines | Placement | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    account: str | None = None,
    partition: str | None = None,
    time: str | int | None = None,
    folder: str | Path | None = None,
    hostfile: str | Path | None = None,
    ssh: bool = True,
) -> Reports:
    """Run `function(**arguments)` in `ranks` processes and return what each returned.

    The body of `function` is what the `main()` of a script for `deepspeed` or `torchrun` would hold: RANK,
    LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and `deepspeed.init_distributed()` finds the
    other ranks.  Ranks have a folder for temporary files of their own, which goes with them, as shared memory
    does.

    Args:
        function: any function of a cell; closures and lambdas too.  Its return value must be picklable.
        ranks: how many processes, 1 to 64.
        arguments: keyword arguments, the same for every rank.
        device: "cuda" or "cpu"; by default GPUs when there are at least as many as ranks, else the CPU with
            gloo.  With "cuda" and fewer GPUs than ranks, ranks share GPUs: bytes are those of a rank with a
            GPU of its own, times are not.
        timeout: seconds after which the job counts as hung; neither waiting in a cluster's queue counts, nor
            time in which this process is stopped.
        launcher: None for the warm forkserver, "deepspeed" for the real command, "slurm" for a cluster's
            `srun`.
        command: print the command line of `deepspeed` or `srun`.
        place: where the ranks run: `Machines`, or what their `place` returns; by default all on this machine.
            On the CPU only.
        nodes, gpus, account, partition, time: of a job of Slurm: on how many nodes (1), with how many GPUs on
            each (none: the CPU), at whose cost, where, and for how long at most ("00:10:00", or minutes);
            what is left out is the cluster's own default.
        folder: one that this machine and all nodes see at the same place, and where the job keeps its files
            while it runs; the current by default.
        hostfile: with launcher="deepspeed", a file with a line such as `node0 slots=2` for each machine; the
            first are filled first.
        ssh: whether they are reached through ssh (and pdsh); else the command for each machine is printed,
            and `launch` waits until all were given.

    Returns:
        `Reports`, a list in rank order.  Rank 0's output is printed; every rank's is in `.outputs`.

    Raises:
        TypeError, ValueError, MemoryError: before any process starts, when an argument cannot be used.
        RankError: a rank failed or hung; names the guilty rank and the cause.
        LaunchError: the job could not be started, or another launch is running in this kernel, or there is no
            Slurm.
        KeyboardInterrupt: the learner interrupted; shows where each rank stood.
    """
    if os.name != "posix":
        raise LaunchError("launch needs Linux or macOS; on Windows run the course in WSL2")
    check_choice("launcher", launcher, (None, "deepspeed", "slurm"))
    check_choice("device", device, ("cpu", "cuda", None))
    checks.check_types(
        account=account,
        partition=partition,
        time=time,
        folder=folder,
        hostfile=hostfile,
        command=command,
        ssh=ssh,
    )
    elsewhere = launcher == "slurm" or hostfile is not None  # where nobody here knows the memory
    ranks = checks.checked_ranks(ranks, math.inf if elsewhere else free_memory())
    timeout, arguments = checks.checked_timeout(timeout), checks.checked_arguments(arguments)
    make_ready()
    payload = pack(function, arguments)
    if payload.size > (free := free_memory()):
        raise MemoryError(
            f"the function carries {payload.size / 1e9:.1f} GB from the notebook to the ranks, "
            f"and {free / 1e9:.1f} GB is free"
        )
    place = checks.checked_place(place, ranks, device, launcher)
    slurms = {"nodes": nodes, "gpus": gpus, "account": account, "partition": partition, "time": time}
    cluster = cluster_for(launcher, ranks, hostfile, ssh, folder=folder, **slurms)
    device = device_for(device, ranks, launcher, place, cluster)
    tell(payload, function, arguments)
    job = job_for(payload, ranks, device, launcher, place, cluster)
    machines = place.of if place else [None] * ranks
    outcomes = [
        Outcome(rank, machine=machine, most=KEPT_OUTPUT // ranks) for rank, machine in enumerate(machines)
    ]
    started, kills_before = perf_counter(), out_of_memory_kills()
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
    if command and job.command:  # two lines, which a shell reads as one
        print("$", *job.command[:-3], "\\\n   ", *job.command[-3:-1], "<a private folder>")
    show(outcomes[0])
    remarks = place.remarks() if place else job.remarks() if cluster else []
    if late:
        raise hang(outcomes, timeout, remarks)
    if any(outcome.failed for outcome in outcomes):
        raise failure(outcomes, not cluster and out_of_memory_kills() > kills_before, remarks)
    values, outputs = zip(*((outcome.report["value"], outcome.text) for outcome in outcomes))
    return Reports(values, list(outputs), perf_counter() - started, device, job.command)
