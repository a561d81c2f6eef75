"""Gradients that travel behind the backward pass, or after it: the learner's reducer, torch's DDP and ZeRO,
on micro-batches whose backward pass is shorter than the messages, as long, and longer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import deepspeed
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from helpers.course import corpus, models
from helpers.course.models import GPTSize
from helpers.course.recording.collectives import ASSUMED
from helpers.course.recording.experiment import SIZES, deepspeed_configuration
from helpers.course.recording.in_ranks import busy, device, engine_of
from helpers.course.recording.links import LINKS

BUCKET = 25_000_000  # bytes, as DDP's own default of 25 MiB nearly
SIZE = "7.5B, 8 layers"
TOKENS = {"NVLink": [128, 256, 512, 1024, 2048, 4096], "sockets": [2048, 16384]}  # of a rank's micro-batch
REDUCERS = ("no messages", "at the end", "in buckets", "DDP")
WARM_UP, STEPS = 2, 8
RATE, MEMORY = 5e14, 3e12  # assumed before: FLOPs/s of bf16 products, bytes/s of a GPU's memory
ZERO_TOKENS = {"NVLink": 1024, "sockets": 4096}
PREFETCH = {"prefetch off": {"stage3_prefetch_bucket_size": 0}}
CHANGES = {"overlap on": {"overlap_comm": True}, "overlap off": {"overlap_comm": False}} | PREFETCH


def runs() -> list[tuple[int, dict]]:
    """Each reducer over each link."""
    return [
        (ranks, {"size": SIZE, "how": how, "link": link})
        for ranks in (2, 4, 8)
        for link in LINKS
        for how in REDUCERS
    ]


def zero_runs() -> list[tuple[int, dict]]:
    """ZeRO's stages with overlap and without, stage 3 also without prefetching; over sockets with one
    micro-batch alone."""
    names = ("size", "stage", "change", "link", "micro_batches")
    return [
        (ranks, dict(zip(names, (SIZE, stage, change, link, micro_batches))))
        for ranks in (2, 4, 8)
        for link in LINKS
        for stage in (1, 2, 3)
        for change in CHANGES
        for micro_batches in ((1, 8) if link == "NVLink" else (1,))
        if stage == 3 or change not in PREFETCH
    ]


def zero_configuration(
    ranks: int, stage: int, change: str, link: str, micro_batches: int, **others: object
) -> dict:
    """DeepSpeed's with its own buckets, torch's fused AdamW, and one change."""
    config = deepspeed_configuration(
        micro_batches=micro_batches, zero_optimization={"stage": stage} | CHANGES[change]
    )
    config["optimizer"]["params"]["fused"] = True
    return config


class Reducer:
    """Sums the gradients of a model's replicas in buckets, each as soon as it is full, and divides them."""

    def __init__(self, model: torch.nn.Module, bucket: float):
        """Args:
        bucket: bytes that are sent together; infinity sends nothing before `finish`.
        """
        self.bucket, self.held = bucket, 0
        self.ready, self.under_way = [], []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.add)

    def add(self, parameter: torch.nn.Parameter) -> None:
        self.ready.append(parameter.grad)
        self.held += parameter.grad.nbytes
        if self.held >= self.bucket:
            self.send()

    def send(self) -> None:
        flat = torch.cat([gradient.flatten() for gradient in self.ready])
        self.under_way.append((dist.all_reduce(flat, async_op=True), flat, self.ready))
        self.ready, self.held = [], 0

    def finish(self) -> None:
        if self.ready:
            self.send()
        for request, flat, gradients in self.under_way:
            request.wait()
            flat /= dist.get_world_size()
            parts = flat.split([gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [part.view_as(to) for part, to in zip(parts, gradients)])
        self.under_way = []


def batches(tokens: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's micro-batch of so many tokens, in sequences of `context` at most."""
    length = min(tokens, context)
    ranks = dist.get_world_size()
    return corpus.batch(0, ranks * tokens // length, length, dist.get_rank(), ranks, device())


def overlap(size: GPTSize, how: str, link: str) -> dict[str, list]:
    """Steps of replicas in bf16 with torch's fused AdamW, not checkpointed.

    Args:
        how: one of `REDUCERS`; "no messages" lets the replicas go apart.

    Returns:
        {"tokens": [of a rank's micro-batch], "seconds": [[forward, backward until all gradients are there,
        update] of each step, for each number of tokens], "busy": [what `busy` returns, for each]}.
    """
    os.environ.update(LINKS[link])
    deepspeed.init_distributed()
    with torch.device(device()):
        model = models.build(models.GPT, size).bfloat16()
    wrapped, finish = replicas(model, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    found = {"tokens": TOKENS[link], "seconds": [], "busy": []}
    for tokens in TOKENS[link]:
        rows = batches(tokens, size.context)

        def phases(rows=rows) -> Iterator[None]:
            loss = wrapped(*rows)
            yield
            loss.backward()
            finish()
            yield
            optimizer.step()
            optimizer.zero_grad()
            yield

        for _ in range(WARM_UP):
            list(phases())
        found["seconds"].append([timed(phases()) for _ in range(STEPS)])
        found["busy"].append(busy(lambda phases=phases: list(phases())))
    return found


def replicas(model: torch.nn.Module, how: str) -> tuple[torch.nn.Module, Callable[[], None]]:
    """(what to call, what ends a backward pass) of one of `REDUCERS`."""
    if how == "no messages":
        return model, lambda: None
    if how == "DDP":
        return DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True), lambda: None
    return model, Reducer(model, BUCKET if how == "in buckets" else float("inf")).finish


def timed(phases: Iterator[None]) -> list[float]:
    """Seconds of each phase, by the device's clock; all ranks begin together."""
    dist.barrier()
    marks = [mark()]
    marks += [mark() for _ in phases]
    marks[-1].synchronize()
    return [round(1e-3 * first.elapsed_time(second), 6) for first, second in zip(marks, marks[1:])]


def mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def predicted(ranks: int, size: str, how: str, link: str) -> dict[str, list[float]]:
    """{"message": seconds of one all-reduce of all gradients, "seconds": of a step, for each number of tokens
    in `TOKENS[link]`}: forward and backward pass by their FLOPs, the update by its bytes, and of the messages
    what no backward pass can hide."""
    model = SIZES[size]
    parameters = 12 * model.layers * model.width**2 + model.vocabulary * model.width
    message = 4 * (ranks - 1) / ranks * parameters / ASSUMED[link][1]
    update = 14 * parameters / MEMORY
    steps = []
    for tokens in TOKENS[link]:
        forward = 2 * parameters * tokens / RATE
        hidden = {"at the end": 0.0, "no messages": message}.get(how, min(message, 2 * forward))
        steps.append(3 * forward + update + message - hidden)
    return {"message": message, "seconds": steps}


def zero_overlap(size: GPTSize, link: str, micro_batches: int, config: dict) -> dict[str, object]:
    """Steps of ZeRO on micro-batches of `ZERO_TOKENS[link]`: {"seconds": [of each step], "busy": as `busy`
    has it}."""
    os.environ.update(LINKS[link])
    deepspeed.init_distributed()
    divided = config["zero_optimization"]["stage"] == 3
    torch.set_default_dtype(torch.float32 if divided else torch.bfloat16)
    with nullcontext() if divided else torch.device(device()):
        model = models.build(models.GPT, size, config=config)
    torch.set_default_dtype(torch.float32)
    engine = engine_of(model, config)
    rows = batches(ZERO_TOKENS[link], size.context)

    def step() -> Iterator[None]:
        for _ in range(micro_batches):
            engine.backward(engine(*rows))
            engine.step()
        yield

    for _ in range(WARM_UP):
        list(step())
    seconds = [timed(step())[0] for _ in range(STEPS if link == "NVLink" else 3)]
    return {"seconds": seconds, "busy": busy(lambda: list(step())) if link == "NVLink" else None}
