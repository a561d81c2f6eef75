"""Imports torch and DeepSpeed for a notebook's first launch while its learner still reads: nothing waits for
it, and nothing is said.

A forkserver that is started so is the one that the first launch would have started: it ends with the kernel
at whatever moment that ends, and after minutes in which nobody launched.  Scripts, tests and ranks start none
before they launch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helpers.tools.launch import resources
from helpers.tools.launch.forked import forkservers
from helpers.tools.launch.progress import Progress, in_notebook

USUAL_RANKS = 2  # of a launch that does not say how many


def begin() -> None:
    """In a notebook: start the forkserver that the first launch will probably want.  Returns at once; the
    second time it does nothing."""
    if os.name != "posix" or not in_notebook():
        return
    device = "cuda" if probable_gpus() >= USUAL_RANKS else "cpu"
    with Progress():  # an interrupt waits for the process to be started: it must not be lost
        try:
            forkservers.begin_warming(device)
        except OSError:  # the first launch will meet it too, and say so
            pass


def probable_gpus() -> int:
    """GPUs that this process may use: torch's count where torch is loaded, else a guess from files, since its
    import takes seconds."""
    if "torch" in sys.modules:
        return resources.gpu_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    nodes = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not nodes or not resources.torch_has_cuda():
        return 0
    return (
        nodes
        if visible is None
        else min(nodes, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
    )
