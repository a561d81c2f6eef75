"""The process beside the kernel that holds a job's command, and ends that job when it is told to or the
kernel dies.

Killing the command is not enough: Slurm goes on with a job whose `srun` has gone, and ssh with what it has
started."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import leftovers
from ..forked.processes import adopt_orphans, end_orphans
from .orders import ORDERS, STOP, give

STOPPED, FINISHED = b"s", b"f"  # what the kernel says: end the job; or, all ranks have reported
PATIENCE = 10.0  # seconds for a command that is to end


def ended(process: subprocess.Popen, seconds: float) -> bool:
    """Whether a process ends in time."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def call(command: Sequence[str]) -> bytes:
    """What a short command prints."""
    nothing = subprocess.DEVNULL
    with suppress(subprocess.SubprocessError, OSError):
        return subprocess.check_output(command, stdin=nothing, stderr=nothing, timeout=PATIENCE)
    return b""


def stop(process: subprocess.Popen, task: dict) -> None:
    """End a command: its job by the command `cancel`, and at last itself by signals."""
    until = time.monotonic() + task["grace"]
    while process.returncode is None and time.monotonic() < until:
        if task["cancel"]:
            call(task["cancel"])
        ended(process, 0.5)
    for number in task["signals"]:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            ended(process, PATIENCE)
    until = time.monotonic() + PATIENCE
    while task["remaining"] and call(task["remaining"]).strip() and time.monotonic() < until:
        call(task["cancel"])
        time.sleep(0.2)


def order_to_stop(task: dict) -> None:
    """Tell the keepers to end their ranks."""
    with suppress(OSError):
        give(Path(task["folder"]) / ORDERS, STOP)


def main() -> None:
    """Argument, as JSON: the job's `folder`; its `temporary` one (`leftovers`), or none; its `command`, empty
    where others start the ranks; and how it is ended.

    `grace` seconds after it was told to end, the command gets `signals`.  `cancel` is a command that cancels
    it, `remaining` one that prints something as long as there is something of it; both may be empty.
    """
    task = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    process = word = None
    if task["command"]:
        process = subprocess.Popen(task["command"], stdin=subprocess.DEVNULL, start_new_session=True)
    while word is None and (process is None or process.poll() is None):
        if select.select([0], [], [], 0.1)[0]:
            word = os.read(0, 1)
    order_to_stop(task)
    if process is None:
        time.sleep(1)  # the keepers look several times a second
    elif word != FINISHED or not ended(process, task["grace"]):
        stop(process, task)
    end_orphans()
    if word == b"":  # the kernel has died
        shutil.rmtree(task["folder"], ignore_errors=True)
        if task["temporary"]:
            leftovers.remove(Path(task["temporary"]))
    if process:
        sys.exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


if __name__ == "__main__":
    main()
