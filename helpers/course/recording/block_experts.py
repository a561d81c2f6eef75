"""One block's experts, shared out among all ranks, by the clock: as many rows for each rank, three times as
many for the first, and all for it; one expert after the other, and in grouped products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.nn import functional as F
from helpers.course.recording.in_ranks import seconds_of

TOKENS, CHANNELS = 8192, 4096  # of each rank; of the job's stream
EXPERTS = {8: (14336, 2), 64: (1792, 16)}  # as many parameters: width inside, experts of each token
LOADS = {"even": 1, "3 : 1": 3, "all": None}  # rows of the first rank for each of another's
WARM_UP, PASSES = 2, 5
PEAK, LINK = 668e12, 300e9  # FLOP/s of large products, bytes per second of a GPU


def rows_for(ranks: int, load: str, rows: int) -> list[int]:
    """Of one rank's rows, those for the experts of each rank."""
    times = LOADS[load]
    first = rows if times is None else rows * times // (times + ranks - 1)
    return [first] + [(rows - first) // (ranks - 1)] * (ranks - 1)


def predicted(ranks: int, experts: int) -> dict[str, float]:
    """{load: seconds of both passes}: nine products of the fullest rank, and the trips of the one that sends
    or receives most, one after the other."""
    width, choices = EXPERTS[experts]
    found = {}
    for load in LOADS:
        to = rows_for(ranks, load, TOKENS * choices)
        received = (ranks - 1) * max(to)
        trips = 4 * max(received, sum(to) - min(to)) * 2 * CHANNELS / LINK
        found[load] = 9 * 2 * ranks * max(to) * CHANNELS * width / PEAK + trips
    return found


def experts(experts: int) -> list[dict]:
    """Both passes of a block's experts in bf16, of which every rank has as many.

    Returns:
        [{"load": one of `LOADS`, "way": one of `WAYS`, "rows": that this rank's experts get, "step", "work",
        "trips": [seconds of each pass, forward and backward, of all, without messages, and without work],
        or "words": why a way is refused}].
    """
    import deepspeed

    deepspeed.init_distributed()
    ranks, found = dist.get_world_size(), []
    width, choices = EXPERTS[experts]
    with torch.device("cuda"):
        shapes = [(experts // ranks, CHANNELS, width)] * 2 + [(experts // ranks, width, CHANNELS)]
        weights = [torch.randn(shape, dtype=torch.bfloat16).mul_(0.02).requires_grad_() for shape in shapes]
        rows = torch.randn(TOKENS * choices, CHANNELS, dtype=torch.bfloat16, requires_grad=True)
    for load in LOADS:
        to = rows_for(ranks, load, len(rows))
        for name, way in WAYS.items():
            told = {"load": load, "way": name, "rows": ranks * to[dist.get_rank()]}
            try:
                found.append(told | clocked(rows, weights, to, way))
            except (RuntimeError, AttributeError) as error:
                found.append(told | {"words": str(error).splitlines()[0]})
            torch.cuda.empty_cache()
    return found


def clocked(rows: torch.Tensor, weights: list, to: list[int], way: Callable) -> dict[str, list[float]]:
    """Seconds of both passes; `to` are this rank's rows for each rank, and all ranks' are alike."""
    ranks, each = len(to), len(weights[0])
    here = to[dist.get_rank()]
    sizes = [here // each + (at < here % each) for at in range(each)]  # of each own expert, from one rank
    own = torch.arange(each, device="cuda").repeat_interleave(torch.tensor(sizes, device="cuda"))
    order = own.repeat(ranks).argsort(stable=True)  # they arrive by sender, then by expert
    back = order.argsort()
    sizes = [ranks * size for size in sizes]
    from_all = [here] * ranks

    def there(sent):
        return Exchange.apply(sent, to, from_all)

    def home(answers):
        return Exchange.apply(answers, from_all, to)

    def work(arrived):
        return way(arrived[order], weights, sizes)[back]

    arrived = there(rows).detach().requires_grad_()
    parts = {
        "step": partial(both, lambda: home(work(there(rows)))),
        "work": partial(both, lambda: work(arrived)),
        "trips": partial(both, lambda: home(there(rows))),
    }
    return {name: of(part) for name, part in parts.items()}


class Exchange(torch.autograd.Function):
    """Send so many rows to each rank, and receive so many from each."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        context.sizes = sent, received
        found = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(found, rows.contiguous(), received, sent)
        return found

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent, received = context.sizes
        found = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(found, gradient.contiguous(), sent, received)
        return found, None, None


def one_by_one(rows: torch.Tensor, weights: list, sizes: list[int]) -> torch.Tensor:
    parts = zip(rows.split(sizes), *weights)
    return torch.cat([(F.silu(part @ gate) * (part @ up)) @ down for part, gate, up, down in parts])


def grouped(rows: torch.Tensor, weights: list, sizes: list[int]) -> torch.Tensor:
    if not len(rows):
        return one_by_one(rows, weights, sizes)
    gate, up, down = weights
    ends = torch.tensor(sizes, device="cuda").cumsum(0, dtype=torch.int32)
    inside = F.silu(F.grouped_mm(rows, gate, offs=ends)) * F.grouped_mm(rows, up, offs=ends)
    return F.grouped_mm(inside, down, offs=ends)


WAYS = {"loop": one_by_one, "grouped": grouped}


def both(call: Callable[[], torch.Tensor]) -> None:
    found = call()
    found.backward(torch.ones_like(found))


def of(call: Callable[[], None]) -> list[float]:
    """Seconds of each of `PASSES`, which all ranks begin together."""
    found = []
    for _ in range(WARM_UP + PASSES):
        dist.barrier()
        found.append(round(seconds_of(call), 6))
    return found[WARM_UP:]
