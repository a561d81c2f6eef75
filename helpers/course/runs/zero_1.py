"""Lesson 07's trainings by hand, in a rank: what they hold and send is counted, and faults are planted in
their step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from helpers.course.exercises.ladders import rebound
from helpers.course.exercises.solutions.zero_1 import reduce_to_owner_solution, zero_1_step_solution
from helpers.course.training.comparable import gathered, learned, own_rows, weights_of
from helpers.tools.measure.carried import Carried
from helpers.tools.measure.ledger import Ledger

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

Step = Callable[..., torch.Tensor]  # as a learner writes `zero_1_step`


def one_update(engine: DeepSpeedEngine) -> None:
    """One step of an engine, in all its micro-batches, on the first step's sequences."""
    for _ in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(*own_rows(0, engine.device)))
        engine.step()


class HandMade:
    """The report of a training by ZeRO-1 that is written by hand, in a rank; enter it around the steps, and
    `add` each to it.

    From the second step on it counts what messages carry, as {category: elements} of one step: what the
    optimizer's first step makes has no name before.

    Args:
        model: with parameters in a flat tensor.
        master: of shape (S,), fp32: this rank's shard, all that `optimizer` updates.
    """

    def __init__(
        self, model: torch.nn.Module, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer
    ) -> None:
        self._made, self.losses, self.norms = (model, optimizer, master), [], []
        self.start = weights_of(model)

    def __enter__(self) -> HandMade:
        self._open = ExitStack()
        self._ledger = self._open.enter_context(Ledger())
        model, optimizer, master = self._made
        self._ledger.watch(model, optimizer).label("master weights", master)
        self._carried = Carried(self._ledger)
        return self

    def add(self, loss: float, norm: torch.Tensor | float) -> None:
        """Note a step: this rank's loss, and the norm of the whole gradient before clipping."""
        self.losses.append(loss)
        self.norms.append(float(norm))
        if len(self.losses) == 1:
            self._open.enter_context(self._carried)

    def __exit__(self, *problem: object) -> None:
        self._open.close()

    def learned(self) -> dict:
        """{"losses", "norms" of each step, "weights", "gradients", "start", "masters": tensors of the whole,
        "carried": {category: elements} of a step}; a collective."""
        model, optimizer, master = self._made
        counted = len(self.losses) - 1
        carried = {kind: sent / counted for kind, sent in self._carried.elements.items()}
        found = {"losses": self.losses, "norms": self.norms, "start": self.start, "carried": carried}
        masters = gathered(master.detach(), len(self.start))
        return found | learned(model, optimizer, master) | {"masters": masters}


# --- faults


def undivided(parameters: list[torch.nn.Parameter], flat: torch.Tensor) -> torch.Tensor:
    """`reduce_to_owner` with a bug: owners get the sum of the ranks' gradients, not the mean."""
    import deepspeed.comm as comm

    return reduce_to_owner_solution(parameters, flat) * comm.get_world_size()


def planted(step: Step, **rungs: Callable) -> Step:
    """The step with faulty functions in the places of some that it calls by name; the course's step where it
    calls none by these."""
    calls_all = set(rungs) <= set(step.__code__.co_names)
    return rebound(step if calls_all else zero_1_step_solution, rungs)


def no_gather(
    flat: torch.Tensor, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer, gradient: torch.Tensor
) -> None:
    """`step_and_gather` with a bug: each rank writes its own shard into its own model, and sends nothing."""
    import deepspeed.comm as comm

    master.grad = gradient
    optimizer.step()
    flat.chunk(comm.get_world_size())[comm.get_rank()].copy_(master.detach())
    master.grad = None


def masters_reread(
    flat: torch.Tensor, master: torch.nn.Parameter, optimizer: torch.optim.Optimizer, gradient: torch.Tensor
) -> None:
    """`step_and_gather` with a bug: the master begins each step as a copy of the model's rounded weights."""
    import deepspeed.comm as comm

    master.data.copy_(flat.chunk(comm.get_world_size())[comm.get_rank()])
    master.grad = gradient
    optimizer.step()
    comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))
    master.grad = None
