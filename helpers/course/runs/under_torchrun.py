"""A script in two processes of `torchrun`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers.tools.launcher.resources import gpu_count

OPTIONS = "--standalone --nproc-per-node 2 --redirects 1 --log-dir logs"
STOOD = re.compile(r'File ".*?([^/"]+)", (line \d+ in \S+)')


def under_torchrun(script: str, name: str = "hang.py") -> None:
    """Save a script under a name in a folder that goes away, run it there, on GPUs where there are two, and
    print the command, what ranks print, one after the other, the stacks that they write into rank0.txt and
    rank1.txt, innermost line first, and how it ended."""
    print("$ torchrun", OPTIONS, name)
    environment = os.environ | ({} if gpu_count() >= 2 else {"CUDA_VISIBLE_DEVICES": ""})
    command = [sys.executable, "-m", "torch.distributed.run", *OPTIONS.split(), name]
    with TemporaryDirectory() as folder:
        Path(folder, name).write_text(script)
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        for printed in sorted(Path(folder).glob("logs/*/attempt_0/*/stdout.log")):  # a folder for each rank
            print(printed.read_text(), end="")
        for file in sorted(Path(folder).glob("rank*.txt")):
            stood = [", ".join(line) for line in STOOD.findall(file.read_text())]
            print(f"{file.stem}:", *stood or ["had ended before it could be asked"], sep="\n  ")
    if ended.returncode == 0:
        print("Both ranks came to the end of the script.")
    elif "Timed out" in ended.stderr:
        print("The script hung, until its own timeout ended it.")
    else:
        print("The script failed:", ended.stderr[:2000])
