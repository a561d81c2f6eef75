"""Where the ranks of a check wait for one another, in messages that nothing counts and no learner's meet."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup, TCPStore

ROUNDS = itertools.count()


class Alone(BaseException):
    """Another rank did not come out of the learner's function."""


@functools.cache
def own_group() -> ProcessGroup:
    """The group of all ranks in which a check sends messages of its own, so that they cannot meet one of the
    learner's that another rank left out."""
    import deepspeed
    import torch.distributed as dist

    deepspeed.init_distributed()
    return dist.new_group(backend="gloo")


@functools.cache
def own_store() -> TCPStore:
    from torch.distributed import TCPStore

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def agreed(here: bool) -> bool:
    """Whether it is so on all ranks."""
    import torch
    import torch.distributed as dist

    everywhere = torch.tensor(int(here))
    dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=own_group())
    return bool(everywhere)


def meet(patience: float) -> None:
    """Wait until all ranks have come here as often as this one, at most so many seconds.

    Raises:
        Alone: a rank does not come; then no rank goes on from here.
    """
    deadline, decided = time.monotonic() + patience, arrive()
    while not own_store().check([decided]) and time.monotonic() < deadline:
        time.sleep(0.002)
    if own_store().compare_set(decided, "", "alone") != b"together":
        raise Alone


def arrive() -> str:
    """Say that this rank has come to the next meeting, and return where its outcome stands."""
    meeting = f"check/{next(ROUNDS)}"
    if own_store().add(f"{meeting}/ranks", 1) == int(os.environ["WORLD_SIZE"]):
        own_store().compare_set(f"{meeting}/decided", "", "together")
    return f"{meeting}/decided"


def leaving_together(function: Callable, patience: float) -> Callable:
    """The function, which returns when all ranks have left it; a class as it is."""

    @functools.wraps(function)
    def waits(*arguments: object, **named: object) -> object:
        try:
            value = function(*arguments, **named)
        except BaseException:
            arrive()
            raise
        meet(patience)
        return value

    return function if inspect.isclass(function) else waits
