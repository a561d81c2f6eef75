"""Lesson 08: the rungs of ZeRO-2's step, a bug to plant, what a step sends, and the configuration to keep."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F  # noqa: F401  mistakes call it
from helpers import paths
from helpers.course.exercises import planner
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import helped
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.zero_1 import DTYPES, fit, multiples, own_part, with_sgd
from helpers.course.exercises.zero_1_pictures import ELEMENTS, at_its_place, with_padding

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("zero_2")


@stubs.in_ranks()
def pieces(see: See, answer: Callable) -> None:
    """Gradients inside a shard, at its ends, across a border, and over three shards and more."""
    shard = 12 + see.seed % 5
    cases = {
        " of a gradient inside a shard": (shard + 2, shard - 4),
        " of a gradient that fills a shard": (shard, shard),
        " of a gradient that ends at a border": (3, shard - 3),
        " of a gradient that begins at a border": (2 * shard, 5),
        " of a gradient across one border": (shard - 3, 5),
        " of a gradient with one element beyond the border": (shard - 3, 4),
        " of a gradient over four shards": (shard - 1, 2 * shard + 2),
    }
    due = "pieces must return a list of tuples (owner, begin, end)"
    for start, length in see.each(cases):
        found = see.call(answer, start, length, shard, returns=(list, tuple), due=due)
        see("the pieces", [f"{owner} has {begin} to {end}" for owner, begin, end in found])


def rehearsed(function: Callable, *arguments: object) -> tuple[str, bool, int]:
    """Whether all ranks would call the same, in words, whether they wait for what they begin, and how many
    messages these are.  Nothing is sent, so that no rank can hang."""
    with Calls(carry_out=False) as calls:
        function(*arguments)
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, [str(call) for call in calls.made], group=own_group())
    for rank, theirs in enumerate(by_rank):
        for call, other in zip_longest(by_rank[0], theirs, fillvalue="nothing"):
            if call != other:
                return f"rank 0 calls {call}, rank {rank} calls {other}", True, 0
    return "alike", calls.all_waited_for, len(calls.made)


def some_buckets(seed: int, ranks: int) -> tuple[list[dict[int, int]], int]:
    """{where a gradient begins: its elements} of three buckets, and the elements of a shard.  The first
    touches all owners, and its second gradient lies across a border.  The second touches the first rank's
    shard only.  The third is the first again: a further micro-batch."""
    shard = 12 + seed % 5
    first = {shard + 2: (ranks - 1) * shard - 4 - seed % 2, shard - 1: 3, shard - 3: 2}
    return [first, {4: shard - 7, 0: 4}, first], shard


def bucket_of(places: Mapping[int, int], see: See, dtype: torch.dtype) -> dict[int, torch.Tensor]:
    """A bucket with this rank's own gradients."""
    each = [
        {start: multiples((count,), 8).to(dtype) for start, count in places.items()} for _ in range(see.ranks)
    ]
    return each[see.rank]


def owners_of(places: Mapping[int, int], shard: int) -> set[int]:
    """The ranks that own something of a bucket, {where a gradient begins: its elements}."""
    return {place // shard for start, count in places.items() for place in range(start, start + count)}


def fine(shard: int) -> torch.Tensor:
    """A shard's sums, finer than bf16."""
    return 1 + multiples((shard,), 4096)


def buckets_reduced(see: See, answer: Callable) -> None:
    """Four parameters in two buckets; a gradient's tens are its owner's number + 1, its ones its rank's."""
    shard = -(-ELEMENTS // see.ranks)
    made = torch.tensor([10.0 * (place // shard + 1) + see.rank + 1 for place in range(see.ranks * shard)])
    own = torch.zeros(shard)
    see("before: the gradients of each backward pass", with_padding(made))
    for words, cuts in {"the first": (42, 45, 24, 42), "the second": (18, 24, 0, 18)}.items():
        begin, end, first, last = cuts
        answer({begin: made[begin:end].clone(), first: made[first:last].clone()}, own)
        see(f"after {words} bucket: the owners' sums", at_its_place(own.tolist()))


@stubs.in_ranks(together=True, rungs=(pieces,), example=buckets_reduced)
def reduce_to_owners(see: See, answer: Callable) -> None:
    """In fp32 and bf16: this rank's sums after each bucket, the messages, and the bytes."""
    buckets, shard = some_buckets(see.seed, see.ranks)
    for dtype in see.dtypes(*DTYPES):
        own = fine(shard)
        for places in see.each({f", bucket {number}": one for number, one in enumerate(buckets, 1)}):
            bucket = bucket_of(places, see, dtype)
            copies = {start: gradient.clone() for start, gradient in bucket.items()}
            gradients, before = list(bucket.values()), torch.cat(list(bucket.values()))
            with helped(see.hints):
                calls, waited, messages = rehearsed(answer, copies, own.clone())
            see("what the ranks call", calls)
            see("every message with `async_op` is waited for", waited)
            if calls != "alike" or not waited:
                return
            see.call(answer, bucket, own)
            owners = owners_of(places, shard)
            see("there is at most one message for each owner", messages <= len(owners))
            needed = sum(places.values()) * dtype.itemsize * (see.ranks - 1) / see.ranks
            see("this rank's sums", own.clone())
            see("the gradients are as they were", torch.cat(gradients).equal(before))
            see("bytes sent, as multiples of what the owners need", max(1.0, round(see.sent / needed, 1)))


@stubs.in_ranks(together=True, rungs=(reduce_to_owners,))
def reduce_and_release(see: See, answer: Callable) -> None:
    """Two backward passes in two buckets each, as lesson 04's `collect` fills them: the sums, and what is
    alive after each bucket, inside the pass."""
    for dtype in see.dtypes(*DTYPES):
        shapes = [(3, 4 + see.seed % 3), (5,), (2, 3), (1 + see.ranks,)]
        parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
        starts, total = {}, 0
        for parameter in parameters:
            starts[parameter] = total
            total += parameter.numel()
        own, memory = fine(-(-total // see.ranks)), []
        for _ in see.steps(2):
            for ready in see.each({", bucket 1": parameters[2:], ", bucket 2": parameters[:2]}):
                for parameter in reversed(ready):
                    each = [multiples(parameter.shape, 8).to(dtype) for _ in range(see.ranks)]
                    left = parameter.grad
                    parameter.grad = each[see.rank] if left is None else left + each[see.rank]
                    memory.append(StorageWeakRef(parameter.grad.untyped_storage()))
                    del each, left
                calls = []
                see.call(
                    answer, list(ready), starts, own, look=lambda call, calls=calls: calls.append(call.name)
                )
                owners = owners_of({starts[one]: one.numel() for one in ready}, len(own))
                gc.collect()
                see("this rank's sums", own.clone())
                see("gradients on parameters", sum(one.grad is not None for one in parameters))
                see("gradients whose memory is still alive", sum(not one.expired() for one in memory))
                see("there is at most one message for each owner", len(calls) <= len(owners))


class OneParameter:
    """A model of one parameter, whose gradients wait in a bucket until it is flushed.

    Attributes:
        early: forward passes that began before the gradients of all earlier ones were sent.
    """

    def __init__(self, shape: torch.Size, own: torch.Tensor) -> None:
        self.weight, self.own, self.waiting = nn.Parameter(torch.zeros(shape)), own, []
        self.begun = self.sent = self.early = 0
        self.weight.register_post_accumulate_grad_hook(self._arrived)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        """A micro-batch's loss."""
        self.early += self.sent < self.begun
        self.begun += 1
        return (self.weight * row).sum()

    def _arrived(self, weight: nn.Parameter) -> None:
        self.waiting.append(own_part(weight.grad))
        weight.grad = None

    def flush(self) -> None:
        """Add what waits to the sums."""
        while self.waiting:
            self.own.add_(self.waiting.pop())
            self.sent += 1


@stubs.in_ranks(together=True)
def zero_2_step(see: See, answer: Callable) -> None:
    """Two steps of three micro-batches, the second clipped, in fp32 and in bf16, beside one process."""
    for dtype in see.dtypes(*DTYPES):
        full = nn.Parameter(multiples((see.ranks * (16 + see.seed % 4),), 4096))
        flat, master = full.detach().to(dtype, copy=True), nn.Parameter(own_part(full.detach()))
        optimizer, alone = with_sgd(master, full)
        own = torch.zeros_like(master.data)
        model = OneParameter(full.shape, own)
        for step in see.steps(2):
            limit = 0.5 if step == 2 else float("inf")
            rows = [multiples(full.shape, 8) for _ in range(3)]
            passes = [partial(model.forward, row) for row in rows]
            norm = see.call(answer, passes, model.flush, own, flat, master, optimizer, limit, look=fit)
            full.grad = sum(rows) / len(rows)
            nn.utils.clip_grad_norm_([full], limit)
            alone.step()
            see("this rank's masters", master.detach().clone())
            see("they are those of one process", master.allclose(own_part(full), atol=1e-5))
            see("the flat tensor", flat.detach().clone())
            see("the norm that was returned", float("nan") if norm is None else float(norm))
            see("gradients that wait for `flush`", len(model.waiting))
            see("forward passes that begin before the gradients of the one before are sent", model.early)


not_released = stubs.fault("not_released", reduce_and_release, rungs=(reduce_to_owners,))

sent = stubs.formula(
    "sent",
    [(1, 1, True), (1, 8, True), (1, 8, False), (2, 1, True), (2, 8, True), (2, 4, False)],
    then=planner.keep,
)


def keep_configuration(config: Mapping[str, object], name: str) -> None:
    """Print a configuration of DeepSpeed, and write it into the learner's folder where the lesson is a copy
    of his own."""
    text = json.dumps(config, indent=2)
    if Path.cwd().resolve() == paths.WORK.resolve():
        paths.replace(paths.WORK / name, f"{text}\n")
    print(text)
