"""Lesson 08's trainings by hand, in a rank: what they hold after each bucket, what they send, and faults in
them.  And DeepSpeed's where gradients wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from helpers.course import models
from helpers.course.exercises.ladders import rebound
from helpers.course.exercises.solutions.zero_1 import clip_shard_solution, step_and_gather_solution
from helpers.course.exercises.solutions.zero_2 import (
    pieces_solution,
    reduce_and_release_solution,
    reduce_to_owners_solution,
)
from helpers.course.runs import zero_1
from helpers.course.training.comparable import STEPS, gradients_of, own_rows, weights_of
from helpers.course.training.looking import tests_of as tests_of_any
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
        """The same function of parameters; after it the bytes of gradients are noted."""

        def noted(parameters: list[torch.nn.Parameter]) -> None:
            send(parameters)
            now = self._ledger.categories()  # a snapshot would let the ranks wait for each other
            self.held = {category: now[category] for category in MODEL_STATES}
            self.course[-1].append(now["gradients"])

        return noted

    def passes(self, step: int, device: str) -> list[Callable[[], torch.Tensor]]:
        """Forward passes of a step's micro-batches of one sequence; each returns its loss."""
        self.losses_of_step.clear()
        rows = zip(*(part.split(1) for part in own_rows(step, device)))
        return [partial(self._forward, micro_batch) for micro_batch in rows]

    def _forward(self, micro_batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        loss = self._made[0](*micro_batch)
        self.losses_of_step.append(loss.item())
        self.course.append([])
        return loss

    @property
    def loss(self) -> Callable[[], float]:
        """The mean of the step's losses, once it was taken."""
        return lambda: sum(self.losses_of_step) / len(self.losses_of_step)

    def add(self, loss: Callable[[], float], norm: torch.Tensor | float) -> None:
        super().add(loss(), norm)

    def learned(self) -> dict:
        """As lesson 07's, and "course": the bytes of gradients after each bucket of each pass."""
        return super().learned() | {"course": self.course}


def staircase(report: Mapping, parameters: int, count: int = 4) -> Plot:
    """Bytes of gradients for each parameter after every bucket of a step's backward passes, beside those of
    ZeRO-1's."""
    from helpers.course import plots

    passes, lines = report["course"][-count:], {}
    each = [size / parameters for one in passes for size in one]
    lines["yours: sums in fp32, and a bucket"] = (range(1, len(each) + 1), each)
    first = len(passes[0])
    piled = [2 * min(1.0, at / first) for at in range(1, len(each) + 1)]
    lines["ZeRO-1, bf16 sums"] = (range(1, len(each) + 1), piled)
    title = "Gradients after each bucket, in the backward passes of one step"
    return plots.curves(lines, title, "buckets", "bytes per parameter", ends=True)


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
