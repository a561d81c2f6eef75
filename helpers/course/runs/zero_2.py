"""Lesson 08's trainings by hand, in a rank: what they hold after each bucket, what they send, and faults in
them.  And DeepSpeed's where gradients wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from helpers.course import models
from helpers.course.exercises.ladders import rebound
from helpers.course.exercises.solutions.data_parallelism import collect_solution
from helpers.course.exercises.solutions.zero_1 import (
    clip_shard_solution,
    flatten_solution,
    own_shard_solution,
    step_and_gather_solution,
)
from helpers.course.exercises.solutions.zero_2 import (
    pieces_solution,
    reduce_and_release_solution,
    reduce_to_owners_solution,
)
from helpers.course.runs import zero_1
from helpers.course.training.comparable import STEPS, gradients_of, join, learned, own_rows, weights_of
from helpers.course.training.looking import tests_of as tests_of_any
from helpers.course.training.one_process import backward
from helpers.tools.measure.held import MODEL_STATES
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from helpers.course.plots.style import Plot

Send = Callable[..., None]  # of parameters, `starts` and `own`, as a learner writes `reduce_and_release`


class HandMade(zero_1.HandMade):
    """The report of a training by ZeRO-2 that is written by hand, in a rank; enter it around the steps.

    Args:
        own: this rank's fp32 sums of gradients.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        master: torch.nn.Parameter,
        optimizer: torch.optim.Optimizer,
        own: torch.Tensor,
    ) -> None:
        super().__init__(model, master, optimizer)
        self.own, self.course, self.losses_of_step = own, [], []

    def __enter__(self) -> HandMade:
        super().__enter__()
        self._ledger.label("gradients", self.own)
        return self

    def after(self, send: Callable) -> Callable:
        """The same function of parameters; before and after it the bytes of gradients are noted."""

        def noted(parameters: list[torch.nn.Parameter]) -> None:
            self._note()
            send(parameters)
            self._note()

        return noted

    def _note(self) -> None:
        now = self._ledger.categories()  # a snapshot would let the ranks wait for each other
        self.held = {category: now[category] for category in MODEL_STATES}
        self.course[-1].append(now["gradients"])

    def passes(self, step: int, device: str) -> list[Callable[[], torch.Tensor]]:
        """Forward passes of a step's micro-batches of one sequence; each returns its loss."""
        self.losses_of_step.clear()
        return [partial(self._forward, rows) for rows in micro_batches(step, device)]

    def _forward(self, micro_batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        loss = self._made[0](*micro_batch)
        self.losses_of_step.append(loss.item())
        self.course.append([])
        return loss

    def add(self, norm: torch.Tensor | float) -> None:
        """Note a step: the norm of the whole gradient before clipping, and the mean of its losses."""
        super().add(sum(self.losses_of_step) / len(self.losses_of_step), norm)

    def learned(self) -> dict:
        """As lesson 07's, and "course": the bytes of gradients before and after each bucket of each pass."""
        return super().learned() | {"course": self.course}


def micro_batches(step: int, device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """This rank's sequences of a step, token ids and targets, one after the other."""
    return zip(*(part.split(1) for part in own_rows(step, device)))


def flattened(model: torch.nn.Module, ranks: int) -> tuple[torch.Tensor, dict[torch.nn.Parameter, int]]:
    """The model's flat tensor, of which its parameters become views, and {parameter: its place in it}."""
    parameters = list(model.parameters())
    sizes = accumulate((parameter.numel() for parameter in parameters), initial=0)
    return flatten_solution(parameters, ranks), dict(zip(parameters, sizes))


def staircase(report: Mapping, parameters: int, passes: int) -> Plot:
    """Bytes of gradients for each parameter before and after every bucket of a step's backward passes, beside
    those of ZeRO-1."""
    from helpers.course import plots

    each = [size / parameters for one in report["course"][-passes:] for size in one]
    at, first = [1 + place // 2 for place in range(len(each))], len(report["course"][-1]) // 2
    piled = [2 * min(1.0, place / first) for place in at]
    lines = {
        "ZeRO-1, fp32 sums,\nDeepSpeed": (at, [4 + two for two in piled]),
        "ZeRO-1, bf16 sums": (at, piled),
        "yours, fp32 sums": (at, each),
    }
    title = f"Gradients in {passes} backward passes of one step, bucket by bucket"
    return plots.curves(lines, title, "buckets", "bytes per parameter", ends=True)


def with_adam(dtype: torch.dtype, full: int = 10_000) -> dict:
    """The lesson's ZeRO-2 with AdamW, by the course's rungs, in two micro-batches and buckets of `full`
    elements.

    Returns:
        {"losses": of this rank, "weights", "gradients": tensors, and of the last step "traffic": a `Traffic`,
        "held": a `Snapshot` when the last bucket has gone, "buckets": [{place of a gradient: its elements}],
        "history": the `History` of its passes and its update}.
    """
    rank, ranks, device = join()
    losses, buckets = [], []
    with Ledger() as ledger:
        model = models.build(models.GPT).to(device, dtype)
        flat, starts = flattened(model, ranks)
        master = own_shard_solution(flat, rank, ranks)
        own, adam = torch.zeros_like(master.data), torch.optim.AdamW([master], lr=1e-3)
        ledger.watch(model, adam).label("master weights", master)
        ledger.label("gradients", own)

        def send(ready: list[torch.nn.Parameter]) -> None:
            buckets.append({starts[parameter]: parameter.numel() for parameter in ready})
            reduce_and_release_solution(ready, starts, own)

        flush = collect_solution(model, full, send)
        for step in range(STEPS):
            with Traffic() as traffic:
                ledger.mark("start")
                each, buckets[:] = [], []
                for rows in zip(*(part.chunk(2) for part in own_rows(step, device))):
                    each.append(backward(model, rows))
                    flush()
                held = ledger.snapshot("after backward")
                step_and_gather_solution(flat, master, adam, own / 2)
                own.zero_()
                ledger.snapshot("after step")
            losses.append(sum(each) / 2)
    report = {"losses": losses, **learned(model, adam, master), "traffic": traffic, "held": held}
    return report | {"buckets": buckets, "history": ledger.history("start", "after step")}


# --- faults


def overwritten(bucket: dict[int, torch.Tensor], own: torch.Tensor) -> None:
    """`reduce_to_owners` with a bug: a piece replaces what earlier micro-batches brought."""
    for start, gradient in bucket.items():
        own[_mine(start, len(gradient), len(own))] = 0
    reduce_to_owners_solution(bucket, own)


def _mine(start: int, length: int, shard: int) -> slice:
    """This rank's part of a gradient, in its shard."""
    import deepspeed.comm as comm

    first = comm.get_rank() * shard
    return slice(max(0, start - first), max(0, min(shard, start + length - first)))


def only_the_first(start: int, length: int, shard: int) -> list[tuple[int, int, int]]:
    """`pieces` with a bug: what lies beyond the first border is dropped."""
    return pieces_solution(start, length, shard)[:1]


def not_emptied(
    passes: list[Callable],
    flush: Callable,
    own: torch.Tensor,
    flat: torch.Tensor,
    master: torch.nn.Parameter,
    optimizer: torch.optim.Optimizer,
    max_norm: float = float("inf"),
) -> torch.Tensor:
    """`zero_2_step` with a bug: the sums stay."""
    for forward in passes:
        forward().backward()
        flush()
    gradient = own / len(passes)
    norm = clip_shard_solution(gradient, max_norm)
    step_and_gather_solution(flat, master, optimizer, gradient)
    return norm


def tests_of(looks: Mapping[str, tuple[str, dict]]) -> dict[str, Callable]:
    """`training.tests_of` for whole trainings."""
    return tests_of_any(lambda run, **options: run(**options), looks)


def faults(train: Callable, not_released: Send, step: Callable, send: Send) -> dict[str, Callable]:
    """{name: the training with a fault}."""
    reduce = {
        "overwritten": overwritten,
        "far piece lost": rebound(reduce_to_owners_solution, {"pieces": only_the_first}),
    }
    found = {"not released": partial(train, step=step, send=not_released)}
    for name, one in reduce.items():
        faulty = rebound(reduce_and_release_solution, {"reduce_to_owners": one})
        found[name] = partial(train, step=step, send=faulty)
    return found | {"not emptied": partial(train, step=not_emptied, send=send)}


# --- by DeepSpeed


def coalesced(config: dict, micro_batches: int) -> dict:
    """The training by DeepSpeed where gradients stay on each rank until a step's last micro-batch
    (`engine.coalesce_grad_reduction`).

    Args:
        config: DeepSpeed's, of one micro-batch in a step: the loop divides the loss by `micro_batches`.

    Returns:
        {"losses": of this rank, "weights", "gradients": tensors, and of the last step "traffic": a `Traffic`,
        "held": a `Snapshot` before the reduction}.
    """
    import deepspeed

    means = []
    with Ledger() as ledger:
        model = models.build(models.GPT)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ledger.watch(engine)
        for step in range(STEPS):
            rows, losses = own_rows(step, engine.device), []
            with Traffic() as traffic:
                with engine.coalesce_grad_reduction():
                    for micro_batch in zip(*(part.chunk(micro_batches) for part in rows)):
                        losses.append(engine(*micro_batch) / micro_batches)
                        engine.backward(losses[-1])
                    held = ledger.snapshot("before the reduction")
                engine.step()
            means.append(sum(loss.item() for loss in losses))
    report = {"losses": means, "weights": weights_of(model), "traffic": traffic, "held": held}
    return report | {"gradients": gradients_of(model, engine.optimizer)}
