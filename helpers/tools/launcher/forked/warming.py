"""Imports torch and DeepSpeed for a notebook's first launch while its learner still reads.

The first launch takes 0.2 s then, and 4 to 5 s without (`tests/benchmarks/launchers.py` on two cores).
Scripts, ranks and tests start no forkserver before they launch."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from .. import resources
from ..progress import Progress, in_notebook
from . import forkservers

USUAL_RANKS = 2  # of a launch that does not say how many


def begin_in_notebook() -> None:
    """Start the forkserver that the first launch will probably want, and return at once; outside of a
    notebook's kernel nothing."""
    if os.name != "posix" or not in_notebook():
        return
    device = "cuda" if probable_gpus() >= USUAL_RANKS else "cpu"
    # an interrupt waits for the process to be started; the first launch will meet an error too, and say so
    with Progress(), suppress(OSError):
        forkservers.begin_warming(device)


def probable_gpus() -> int:
    """GPUs that this process may use: torch's count where torch is loaded, else a guess from files, since its
    import takes seconds."""
    if "torch" in sys.modules:
        return resources.gpu_count()
    nodes = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not nodes or not resources.torch_has_cuda():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [name for name in (visible or "").split(",") if name.strip() not in ("", "-1")]
    return nodes if visible is None else min(nodes, len(named))
