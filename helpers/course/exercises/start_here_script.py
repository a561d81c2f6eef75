"""Lesson 00: a mean that no rank leaves out, and a training script of the learner's own, which `torchrun`
starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import torch
from torch import distributed as dist
from helpers.course.exercises import keeping
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.stubs import Stubs
from helpers.tools.measure.internals import tensors_among

if TYPE_CHECKING:
    from helpers.course.exercises.calls import Call
    from helpers.course.exercises.seeing import See

stubs = Stubs("start_here")
NAME = "train.py"
HEAD = '''"""My training script: torchrun --standalone --nproc-per-node 2 train.py"""

import os

import torch
import torch.distributed as dist
'''
FOOT = 'if __name__ == "__main__":\n    main()\n'


@stubs.in_ranks(together=True)
def mean_over_tokens(see: See, answer: Callable) -> None:
    """In pairs of neighbours: both have tokens, one has none, the other has none."""
    pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, see.ranks, 2)]
    pair, is_second = pairs[see.rank // 2], see.rank % 2
    cases = {
        " where both have tokens": (50 + see.seed % 40, 10 + see.seed % 7),
        " where the second of a pair has none": (30, 0),
        " where the first of a pair has none": (0, 20),
    }
    for tokens in see.each(cases):
        loss = 1.5 + see.rank if tokens[is_second] else float("nan")
        due = "return a plain number (`.item()` turns a one-element tensor into one)"
        see("the mean", see.call(answer, loss, tokens[is_second], pair, returns=(int, float), due=due))


@contextmanager
def as_in_a_script(noted: list[str]) -> Iterator[None]:
    """As if `torchrun` had just started this process, on a machine of its own: its group is not there until
    the function joins it, and the check's stays when the function leaves.

    Args:
        noted: gets "joined by gloo", or by what else it names, and "left".
    """
    import deepspeed
    import deepspeed.comm as comm

    def refuse(*arguments: object, **named: object) -> None:
        when = "has left the others already" if noted else "has not joined the others"
        raise RuntimeError(f"this rank {when}: join before the first message, leave after the last")

    def join(backend: str | None = None, *arguments: object, **named: object) -> None:
        if noted:
            raise RuntimeError("this rank has joined the others before: join once")
        noted.append(f"joined by {'gloo' if 'gloo' in str(backend or 'gloo') else backend}")
        before.close()

    def leave(*group: object) -> None:
        noted.append("left")
        during.enter_context(mock.patch.object(dist, "all_reduce", refuse))

    with ExitStack() as during, ExitStack() as before:
        during.enter_context(mock.patch.dict(os.environ, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"))
        for place, name, instead in (
            (dist, "init_process_group", join),
            (deepspeed, "init_distributed", lambda *given, **named: noted or join()),
            (comm, "init_distributed", lambda *given, **named: noted or join()),
            (dist, "destroy_process_group", leave),
            (torch.cuda, "is_available", lambda: False),
        ):
            during.enter_context(mock.patch.object(place, name, instead))
        for place in (dist, comm):
            for name in ("get_rank", "get_world_size", "all_reduce"):
                before.enter_context(mock.patch.object(place, name, refuse))
            before.enter_context(mock.patch.object(place, "is_initialized", lambda: False))
        yield


def kept(main: Callable) -> str:
    """Write the learner's function into `work/train.py`; a sentence."""
    return keeping.keep(main, NAME, f"{HEAD}\n\n{FOOT}")


@stubs.in_ranks(then=kept)
def main(see: See, answer: Callable) -> None:
    """The whole script, in ranks that each believe to be alone on their machine."""
    noted, sent = [], []
    due, look = "main must return the model", lambda call: sent.append(total_of(call))
    script = as_in_a_script(noted)(answer)
    model = see.call(script, returns=torch.nn.Module, due=due, look=look)
    by_torch = isinstance(model, torch.nn.parallel.DistributedDataParallel)  # whose messages are C++'s own
    model = model.module if by_torch else model
    see("what the script did with its group", noted)
    see("each rank brings a gradient of its own", by_torch or are_apart(sent[:1]))
    for name, weight in model.named_parameters():
        see(f"the model's {name} after 20 steps", weight.detach().clone())
        see(f"the gradient of its {name} in the last step", weight.grad)


def total_of(call: Call) -> float:
    """The sum of what a rank hands in."""
    return sum(tensor.sum().item() for tensor in tensors_among(list(call.arguments.values())))


def are_apart(mine: object) -> bool:
    """Whether no two ranks have the same."""
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, mine, group=own_group())
    return len({str(one) for one in by_rank}) == len(by_rank)


def script_of(function: Callable) -> str:
    """The text of `train.py` with a function as its `main`."""
    text = source_of(function).replace("main_solution", "main", 1).rstrip()
    return f"{HEAD}\n\n{text}\n\n\n{FOOT}"
