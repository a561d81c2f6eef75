"""Three jobs that fail.  In each one rank is to blame; with that rank mended each comes to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def join() -> tuple[int, torch.Tensor]:
    """Join the other ranks: this one's number, and room for a loss of each on its device."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    return deepspeed.comm.get_rank(), torch.zeros(4, device=get_accelerator().current_device_name())


def rows(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, losses = join()
    batches = 3 if rank == 1 and mended != 1 else 2
    for _ in range(batches):
        comm.all_reduce(losses)


def nan(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, sums = join()
    sums[: rank + 1] = 1.25 if rank != 2 or mended == 2 else float("nan")  # its own and those of ranks below
    comm.all_reduce(sums)
    if rank == 0 and not sums.isfinite().all():
        raise ValueError(f"summed from rank 3 down, ranks 0 to 3 have {sums.tolist()}")
    comm.all_reduce(sums)


def mean_of_pair(losses: torch.Tensor, pair: ProcessGroup) -> None:
    from deepspeed import comm

    comm.all_reduce(losses, group=pair)


def mean_of_all(losses: torch.Tensor) -> None:
    from deepspeed import comm

    comm.all_reduce(losses)


def pairs(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, losses = join()
    pair = [comm.new_group([0, 1]), comm.new_group([2, 3])][rank // 2]
    for step in range(2):
        tokens = 0 if (rank, step) == (3, 1) and mended != 3 else 100
        if tokens > 0:
            mean_of_pair(losses, pair)
        mean_of_all(losses)


JOBS = {"rows": rows, "nan": nan, "pairs": pairs}
