"""What the checks of lesson 00 look at, in every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.nn import functional as F
from helpers.course.exercises.solutions.start_here import (  # noqa: F401  mistakes call the rungs by these names
    deal,
    mean_over_ranks,
    who_am_i,
)
from helpers.course.exercises.trials import returned

NUMBER = "return a plain number (`.item()` turns a one-element tensor into one)"

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from helpers.course.exercises.in_ranks import Values

SGD = {"type": "SGD", "params": {"lr": 0.5}}


def number(answer: object) -> object:
    return returned(answer, (int, float), NUMBER)


def introduced(function: Callable, seed: int) -> Values:
    """Who a rank says that it is."""
    due = "return two numbers, this rank's and how many there are"
    said = returned(function(), (tuple, list), due)
    return {"what who_am_i returned": list(said)}


def averaged(function: Callable, seed: int) -> Values:
    """A number of each rank's own, and one that is the same everywhere."""
    rank = dist.get_rank()
    values = {"a value per rank": seed % 97 + 2.5 * rank**2, "equal values": 1.5, "whole numbers": 3 + rank}
    return {f"the mean, {name}": number(function(value)) for name, value in values.items()}


def logged(function: Callable, seed: int) -> Values:
    """What a rank has to log, twice."""
    logs = [function(seed % 97 + step + 3.0 * dist.get_rank()) for step in range(2)]
    return {f"what to log, {step}": "nothing" if log is None else log for step, log in enumerate(logs)}


def asked(function: Callable) -> object:
    """A rank of a job that logs once: what it gets for it."""
    import deepspeed

    deepspeed.init_distributed()
    return function(2.0 + dist.get_rank())


def compared(function: Callable, seed: int) -> Values:
    """Weights that are the same everywhere; then such that differ from rank 1 on, on rank r in r + 1 places
    and in the signs of four zeros."""
    rank, values = dist.get_rank(), {}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2 + seed % 3))
    values["how many differ where none does"] = number(function(model))
    with torch.no_grad():
        model[1].weight.flatten()[:rank] += 1e-6
        model[1].bias[:1] += rank
        model[0].bias.fill_(-0.0 if rank else 0.0)
        before = torch.cat([weight.flatten() for weight in model.parameters()])
        values["how many differ, four of them in the sign of a zero"] = number(function(model))
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return values | {"the model is as it was": bool(before.equal(after))}


class Fit(torch.nn.Module):
    """Learns the next of 16 tokens, with a table alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, 16)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.table(ids).flatten(0, 1), targets.flatten())


def small_engine(rows: int) -> DeepSpeedEngine:
    """Plain SGD: a wrong scale of the gradients shows in its weights."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": rows, "optimizer": SGD, "zero_allow_untested_optimizer": True}
    model = Fit()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def trained(function: Callable, seed: int) -> Values:
    """Three batches whose rows differ."""
    ranks = dist.get_world_size()
    batches = [torch.randint(0, 16, (2, 2 * ranks, 5)).unbind() for _ in range(3)]
    engine = small_engine(2)
    losses = returned(function(engine, batches), list, "return a list with a pair for each batch")
    pairs = [list(returned(pair, (tuple, list), "a pair for each batch")) for pair in losses]
    return {
        "this rank's losses": [number(pair[0]) for pair in pairs],
        "the mean losses": [number(pair[-1]) for pair in pairs],
        "steps of the engine": engine.global_steps,
        "the weights": engine.module.table.weight.detach().clone(),
    }
