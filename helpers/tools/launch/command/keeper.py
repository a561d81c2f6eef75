"""A rank under the `deepspeed` command, and its keeper: the parent that notes how the rank ended and ends it
with the kernel."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from helpers.tools.launch import leftovers
from helpers.tools.launch import rank as ranks
from helpers.tools.launch.forked.forkserver import adopt_orphans, die_with_parent, end_orphans, kill_group
from helpers.tools.launch.pipes import ASK


def end_with_kernel(rank: int, folder: Path, ended: threading.Event) -> None:
    """Thread of a keeper: the kernel holds the lock while it wants the ranks, and loses it when it dies."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
    except FileNotFoundError:  # another keeper was quicker
        pass
    kill_group(rank)
    ended.wait(2)
    shutil.rmtree(folder, ignore_errors=True)
    if leftovers.FOLDER in os.environ:
        leftovers.remove(Path(os.environ[leftovers.FOLDER]))  # the kernel may not live to do it
    os._exit(0)


def keep(rank: int, folder: Path) -> None:
    """The keeper, the parent of a rank under the `deepspeed` command: notes how the rank ends, and ends it
    with the kernel.

    It does not end before it is told to: the command would stop the other ranks, and nobody could tell who
    failed.
    """
    ended = threading.Event()  # the rank and what it has started, and that is noted
    threading.Thread(target=end_with_kernel, args=(rank, folder, ended)).start()
    status, at = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]), time.monotonic()
    kill_group(rank)
    end_orphans()
    try:
        (folder / f"status-{os.environ['RANK']}").write_text(f"{status} {at}\n")
    except OSError:  # the kernel has gone, and the folder
        pass
    ended.set()  # now only: a file that came while the folder is removed would keep it


def main(folder: str) -> None:
    """A rank started by the `deepspeed` command: its pipes are named, and lie in a private folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel alone decides what an interrupt means
    for number in ASK:
        signal.signal(number, signal.SIG_IGN)  # asks the rank where it stands
    adopt_orphans()
    keeper = os.getpid()
    if rank := os.fork():
        keep(rank, Path(folder))
        return
    os.setpgid(0, 0)
    die_with_parent()
    if os.getppid() != keeper:
        return
    report, output, stacks = (
        os.open(f"{folder}/{name}-{os.environ['RANK']}", os.O_WRONLY)
        for name in ("report", "output", "stacks")
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    ranks.run(os.open(f"{folder}/payload", os.O_RDWR), report, stacks)


if __name__ == "__main__":
    main(sys.argv[-1])
