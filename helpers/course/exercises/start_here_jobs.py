"""Three jobs that fail, on the CPU, since one rank's data are unlike the others'.  Lesson 00 shows their
text, but not their data."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import torch
from helpers.tools.launcher.failures import RankError
from helpers.tools.launcher.jobs import launch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DATA = {"rows": [2, 3, 2, 2], "nan": [1.25, 1.25, float("nan"), 1.25], "pairs": [(100, 100)] * 3 + [(100, 0)]}


def data_of(job: str) -> object:
    """Join the other ranks.  What this one is given."""
    from deepspeed import comm

    comm.init_distributed()
    return DATA[job][comm.get_rank()]


def odd_rank(job: str) -> int:
    """The rank whose data are unlike the others'."""
    return next(rank for rank, own in enumerate(DATA[job]) if DATA[job].count(own) == 1)


def rows() -> None:
    from deepspeed import comm

    batches = data_of("rows")
    for _ in range(batches):
        comm.all_reduce(torch.ones(1))


def nan() -> None:
    from deepspeed import comm

    loss = data_of("nan")
    rank, sums = comm.get_rank(), torch.zeros(4)
    sums[rank:] = loss  # place k will hold the sum of ranks 0 to k
    comm.all_reduce(sums)
    if rank == 0 and not sums.isfinite().all():
        raise ValueError(f"the losses of ranks 0 to k add up to {sums.tolist()}")
    comm.all_reduce(sums)


def mean_of_pair(loss: torch.Tensor, pair: ProcessGroup) -> None:
    from deepspeed import comm

    comm.all_reduce(loss, group=pair)


def mean_of_all(loss: torch.Tensor) -> None:
    from deepspeed import comm

    comm.all_reduce(loss)


def pairs() -> None:
    from deepspeed import comm

    steps = data_of("pairs")
    pair = [comm.new_group([0, 1]), comm.new_group([2, 3])][comm.get_rank() // 2]
    for tokens in steps:
        if tokens > 0:
            mean_of_pair(torch.ones(1), pair)
        mean_of_all(torch.ones(1))


JOBS = {"rows": rows, "nan": nan, "pairs": pairs}
TEXTS = {name: inspect.getsource(job) for name, job in JOBS.items()}
# frames, and their text
DEEPER = re.compile(r"\n {4}\S+, line \d+, in (?:mean_of_|all_reduce).*(?:\n {6}.*)?")


def show(name: str) -> None:
    """Print a job's text, run it on four ranks, and print how it fails: of each rank its line in the job."""
    print(TEXTS[name])
    try:
        launch(JOBS[name], ranks=4, device="cpu", timeout=3)
    except RankError as error:
        print(f"RankError: {DEEPER.sub('', str(error))}")
