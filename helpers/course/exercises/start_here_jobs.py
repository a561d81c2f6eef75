"""Three jobs that fail.  In each one rank is to blame; with that rank mended each comes to its end."""

from __future__ import annotations

import torch


def join() -> tuple[int, torch.Tensor]:
    """Join the other ranks: this one's number, and room for a loss of each on its device."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    return deepspeed.comm.get_rank(), torch.zeros(4, device=get_accelerator().current_device_name())


def rows(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, losses = join()
    batches = 2 if rank == 2 and mended != 2 else 3
    for _ in range(batches):
        comm.all_reduce(losses)


def nan(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, losses = join()
    losses[rank] = 1.25 if rank != 1 or mended == 1 else float("nan")
    comm.all_reduce(losses)
    if rank == 3 and not losses.isfinite().all():
        raise ValueError(f"the mean loss is {losses.mean():.2f}; rank by rank {losses.tolist()}")
    comm.all_reduce(losses)


def save_checkpoint() -> None:
    from deepspeed import comm

    comm.barrier()


def save(mended: int | None = None) -> None:
    from deepspeed import comm

    rank, losses = join()
    comm.all_reduce(losses)
    if rank == 0 and mended != 0:
        save_checkpoint()
    comm.all_reduce(losses)


JOBS = {"rows": rows, "nan": nan, "save": save}
