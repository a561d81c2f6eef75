"""Three jobs that fail, on the CPU.  In each one rank is to blame; with that rank mended each comes to its
end.  Lesson 00 shows their text, but not their data."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DATA = {"rows": [2, 3, 2, 2], "nan": [1.25, 1.25, float("nan"), 1.25], "pairs": [(100, 100)] * 3 + [(100, 0)]}


def data_of(job: str, mended: int | None) -> object:
    """Join the other ranks.  What this one is given; rank 0's, which is right, if it is mended."""
    from deepspeed import comm

    comm.init_distributed()
    rank = comm.get_rank()
    return DATA[job][0 if rank == mended else rank]


def rows(mended: int | None = None) -> None:
    from deepspeed import comm

    batches = data_of("rows", mended)
    for _ in range(batches):
        comm.all_reduce(torch.ones(1))


def nan(mended: int | None = None) -> None:
    from deepspeed import comm

    loss = data_of("nan", mended)
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


def pairs(mended: int | None = None) -> None:
    from deepspeed import comm

    steps = data_of("pairs", mended)
    pair = [comm.new_group([0, 1]), comm.new_group([2, 3])][comm.get_rank() // 2]
    for tokens in steps:
        if tokens > 0:
            mean_of_pair(torch.ones(1), pair)
        mean_of_all(torch.ones(1))


JOBS = {"rows": rows, "nan": nan, "pairs": pairs}
TEXTS = {name: inspect.getsource(job) for name, job in JOBS.items()}
