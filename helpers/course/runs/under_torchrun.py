"""A script in two processes of `torchrun`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from helpers.tools.launcher.resources import gpu_count

OPTIONS = "--standalone --nproc-per-node 2 --redirects 3 --log-dir logs"
STOOD = re.compile(r'File ".*?([^/"]+)", (line \d+ in \S+)')
TIMED_OUT = re.compile(r"(\w+Error: \[)\S*?([^/\s]+\] Timed out.*)")


def under_torchrun(script: str, name: str = "hang.py", ask: float | None = None) -> None:
    """Save a script under a name in a folder that goes away, run it there, on GPUs where there are two, and
    print the command, what ranks print, one after the other, the stacks that they write into rank0.txt and
    rank1.txt, innermost line first, and how it ended: of a time-out the last line of the rank that gave up
    first, of another failure what both ranks wrote.

    Args:
        ask: seconds after both files are there, when the ranks get the signal SIGUSR1.
    """
    print("$ torchrun", OPTIONS, name)
    environment = os.environ | ({} if gpu_count() >= 2 else {"CUDA_VISIBLE_DEVICES": ""})
    # a rank that ends, and has unregistered its handler, ignores the signal
    command = ["sh", "-c", "trap '' USR1; exec \"$@\"", "sh"]
    command += [sys.executable, "-m", "torch.distributed.run", *OPTIONS.split(), name]
    with TemporaryDirectory() as folder:
        Path(folder, name).write_text(script)
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as torchrun:
            if ask is not None:
                signalled(torchrun, Path(folder), ask)
            told = torchrun.communicate()[1]
        logs = sorted(Path(folder).glob("logs/*/attempt_0/*"))  # a folder for each rank
        print(*((log / "stdout.log").read_text() for log in logs), sep="", end="")
        said = "".join((log / "stderr.log").read_text() for log in logs) or told
        for file in sorted(Path(folder).glob("rank*.txt")):
            stood = [", ".join(line) for line in STOOD.findall(file.read_text())]
            print(f"{file.stem}:", *stood or ["had ended before it could be asked"], sep="\n  ")
    if torchrun.returncode == 0:
        print("Both ranks came to the end of the script.")
    elif gave_up := TIMED_OUT.search(said):
        print(f"The rank that gave up first wrote last:\n  {gave_up[1]}{gave_up[2]}")
    else:
        print("The script failed:", said[:2000])


def signalled(torchrun: subprocess.Popen, folder: Path, seconds: float) -> None:
    """Ask both ranks with SIGUSR1, so many seconds after each has opened its file, unless they end before."""
    while torchrun.poll() is None and len([*folder.glob("rank*.txt")]) < 2:
        time.sleep(0.05)
    time.sleep(seconds)
    ranks = psutil.Process(torchrun.pid).children() if torchrun.poll() is None else []
    if ranks:
        print("$ kill -USR1", *(f"PID{place}" for place in range(len(ranks))))
    for rank in ranks:
        rank.send_signal(signal.SIGUSR1)
