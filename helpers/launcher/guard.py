"""The process beside the kernel that holds the command of a job on other machines, and ends that job when it is told to or the kernel dies.

To kill the command would not do it: Slurm goes on with a job whose `srun` has gone, and ssh with what it has started.  It runs without torch.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from helpers.launcher.orders import ORDERS, STOP, give

STOPPED, FINISHED = b"s", b"f"  # what the kernel says: end the job; or, all ranks have reported
GRACE, PATIENCE = 3.0, 10.0  # seconds after which the command itself is asked to end, and is killed


def ended(process, seconds):
    """Whether a process ends in time."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def call(command):
    """What a short command prints."""
    with suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE).stdout
    return b""


def stop(process, folder, cancel, remaining):
    """End a job: its ranks by the order that their keepers read, by the command `cancel`, and at last by what is asked of its own command.

    `remaining` is a command that prints something as long as there is something of the job.
    """
    with suppress(OSError):
        give(Path(folder) / ORDERS, STOP)
    until = time.monotonic() + GRACE
    while process.returncode is None and time.monotonic() < until:
        if cancel:
            call(cancel)
        ended(process, 0.5)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            ended(process, PATIENCE)
    until = time.monotonic() + PATIENCE
    while remaining and call(remaining).strip() and time.monotonic() < until:
        call(cancel)
        time.sleep(0.2)


def main():
    """Argument, as JSON: [the job's folder, its command, the command that cancels it, the one that tells whether something remains]."""
    folder, command, cancel, remaining = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    word = None
    while word is None and process.poll() is None:
        if select.select([0], [], [], 0.1)[0]:
            word = os.read(0, 1)
    if word == FINISHED:
        with suppress(OSError):
            give(Path(folder) / ORDERS, STOP)
        ended(process, GRACE)
    if word != FINISHED or process.returncode is None:
        stop(process, folder, cancel, remaining)
    if word == b"":  # the kernel has died
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


if __name__ == "__main__":
    main()
