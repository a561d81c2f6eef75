"""Is this machine ready for the course?  `python -m helpers.course.lesson.readiness`: a line for each thing
that is needed, and a verdict in words.

Exit status 1 when a lesson could not run.  With `--once`, what takes seconds is done the first time only.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from helpers.paths import ROOT, WORK, replace
from helpers.tools.launcher import resources as available
from helpers.tools.launcher.jobs import launch
from helpers.tools.machines.namespaces import problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TESTED = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
ENOUGH_MEMORY = 1_500_000_000


@dataclass
class Line:
    """One thing that was looked at; `needed` where no lesson runs without it."""

    name: str
    found: str
    fine: bool = True
    advice: str = ""
    needed: bool = True

    def __str__(self):
        mark = "OK" if self.fine else "FAIL" if self.needed else "note"
        line = f"{mark:<4}  {self.name:<14} {self.found}"
        return line if self.fine or not self.advice else f"{line}\n      {'':<14} {self.advice}"


def note(name: str, found: str, fine: object, advice: str) -> Line:
    """A line on something that lessons can do without."""
    return Line(name, found, bool(fine), advice, needed=False)


def version(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[Line]:
    """Python and the three packages whose versions decide what a lesson shows."""
    python, advice = sys.version_info[:3], "install Python 3.11.5 to 3.13 and run `make lab` again"
    yield Line("python", ".".join(map(str, python)), (3, 11, 5) <= python < (3, 14), advice)
    for name, tested in TESTED.items():
        if installed := version(name):
            advice = f"{tested} was tested: stored losses may differ, byte counts should not"
            yield note(name, installed, installed.split("+")[0] == tested, advice)
        else:
            yield Line(name, "not installed", False, "run `make lab`, which installs everything")


def machine() -> Iterator[Line]:
    """Cores, memory, loopback, compiler, machines made of this one, GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield note("cores", str(cores), cores >= 2, "lessons run, but slowly: times grow with ranks per core")
    free = available.free_memory()
    memory = f"{free / 1e9:.1f} GB free of {psutil.virtual_memory().total / 1e9:.1f} GB"
    advice = f"close other programs: lessons need up to {ENOUGH_MEMORY / 1e9:g} GB"
    yield Line("memory", memory, free >= ENOUGH_MEMORY, advice, needed=free < 1e9)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 2).close()
        yield Line("loopback", "127.0.0.1 answers")
    except OSError as error:
        advice = "ranks talk over 127.0.0.1: allow it in the firewall or container"
        yield Line("loopback", str(error), False, advice)
    compiler = shutil.which("c++") or shutil.which("g++")
    advice = "not needed; only DeepSpeed's own optimizers would be compiled with it"
    yield note("compiler", compiler or "none", compiler, advice)
    refused = problem()
    allowed = "not allowed" if refused else "several can be made of this one"
    yield note("machines", allowed, not refused, refused or "")
    gpus = available.gpu_count()
    yield Line("GPUs", str(gpus) if gpus else "none: ranks run on the CPU")


def all_reduce() -> float:
    """What each of two ranks does: the smallest job that communicates."""
    import deepspeed
    import deepspeed.comm
    import torch
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    total = torch.ones(1, device=get_accelerator().current_device_name())
    deepspeed.comm.all_reduce(total)
    return total.item()


def ranks() -> Iterator[Line]:
    """A 2-rank all-reduce through the launcher, and how long a launch takes."""
    started = time.perf_counter()
    try:
        total = launch(all_reduce, ranks=2, timeout=60)
    except Exception as error:
        advice = "this is what the lessons do: see the README's troubleshooting"
        yield Line("2 ranks", str(error).splitlines()[0], False, advice)
        return
    first = time.perf_counter() - started
    yield Line("2 ranks", f"all-reduce of 1 + 1 = {total[0]:g} on {total.device}", list(total) == [2, 2])
    seconds = statistics.median(launch(all_reduce, ranks=2, timeout=60).seconds for _ in range(3))
    yield Line("launch", f"{first:.1f} s the first time, then {seconds:.2f} s")


def check(again: bool = False) -> bool:
    """Print a line for each thing that is needed as soon as it is known, and a verdict; returns whether every
    lesson can run.  With `again`, what takes seconds is left out, and what is fine is not printed."""
    failed = []
    for part in (versions, machine) if again else (versions, machine, ranks):
        for line in part():
            if not (again and line.fine):
                print(line, flush=True)
            if line.needed and not line.fine:
                failed.append(line.name)
    if not again:
        print()
    if failed:
        print(f"Not ready: {', '.join(failed)}. The lines above say what to do.")
    else:
        before = " (checked before; `make check` checks again)" if again else ""
        print(f"Ready: every lesson can run on this machine{before}.")
    return not failed


def fingerprint() -> str:
    """Another one means that ranks have not been tried in this environment yet."""
    return " ".join([sys.version.split()[0], *[str(version(name)) for name in TESTED], sys.prefix, str(ROOT)])


def main(arguments: Sequence[str] = ()) -> int:
    """With `--once` ranks are tried only where they have not yet started in this environment."""
    stamp = WORK / ".ready"
    again = "--once" in arguments and stamp.exists() and stamp.read_text() == fingerprint()
    ready = check(again)
    if ready and not again:
        with suppress(OSError):  # a full disk; then it is checked again
            replace(stamp, fingerprint())
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
