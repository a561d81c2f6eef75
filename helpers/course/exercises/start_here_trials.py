"""What the checks of lesson 00 look at, in every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import torch
from torch import distributed as dist
from torch.nn import functional as F
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.solutions.start_here import (  # noqa: F401  mistakes call the rungs by these names
    deal,
    mean_over_ranks,
    who_am_i,
)

NUMBER = "return a plain number (`.item()` turns a one-element tensor into one)"

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from helpers.course.exercises.in_ranks import Values

SGD = {"type": "SGD", "params": {"lr": 0.5}}


def number(answer: object) -> object:
    return returned(answer, (int, float), NUMBER)


def introduced(function: Callable, seed: int) -> Values:
    """Who a rank says that it is, as if each were alone on its machine, and before the ranks are joined."""
    due = "return two numbers, this rank's and how many there are"
    with mock.patch.dict(os.environ, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"), not_joined():
        said = returned(function(), (tuple, list), due)
    return {"what who_am_i returned": list(said)}


@contextmanager
def not_joined() -> Iterator[None]:
    """The check's own process group is not there for the learner's function, unless it makes one."""
    import deepspeed
    import deepspeed.comm as comm

    known = [(module, name) for module in (dist, comm) for name in ("get_rank", "get_world_size")]
    made = [(deepspeed, "init_distributed"), (comm, "init_distributed"), (dist, "init_process_group")]

    def refuse(*arguments: object, **named: object) -> None:
        raise RuntimeError("the ranks are not joined yet: read RANK and WORLD_SIZE from `os.environ`")

    with ExitStack() as patches:
        for place in known:
            patches.enter_context(mock.patch.object(*place, refuse))
        for place in made:
            patches.enter_context(mock.patch.object(*place, lambda *given, **named: patches.close()))
        yield


def averaged(function: Callable, seed: int) -> Values:
    """A number of each rank's own, of which one is zero, and one that is the same everywhere."""
    rank = dist.get_rank()
    given = [seed % 97 + 2.5 * rank**2, 1.5, 3 + rank, 2.0 * rank]
    return {f"the mean where this rank brings {value:g}": number(function(value)) for value in given}


def logged(function: Callable, seed: int) -> Values:
    """What a rank has to log, twice."""
    values = {}
    for step in (1, 2):
        log = function(seed % 97 + step + 3.0 * dist.get_rank())
        values[f"whether this rank returned something to log in step {step}"] = log is not None
        values[f"what it is to log in step {step}"] = 0.0 if log is None else number(log)
    return values


def asked(function: Callable) -> object:
    """A rank of a job that logs once: what it gets for it."""
    import deepspeed

    deepspeed.init_distributed()
    return function(2.0 + dist.get_rank())


def compared(function: Callable, seed: int) -> Values:
    """Weights that are the same everywhere; then such that differ from rank 1 on: on rank r in r + 6 places,
    in all but one of them by a single bit, and in the signs of four zeros."""
    rank, values = dist.get_rank(), {}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4 + seed % 3))
    values["the count where no element differs"] = number(function(model))
    with torch.no_grad():
        if rank:
            for place in (model[1].weight.flatten()[: 2 + rank], model[1].bias[:3]):
                place.copy_(place.nextafter(torch.tensor(9.0)))
            model[1].bias[3] += rank
        model[0].bias.fill_(-0.0 if rank else 0.0)
        before = torch.cat([weight.flatten() for weight in model.parameters()])
        when = "where elements differ, four of them in the sign of a zero"
        values[f"the count {when}"] = number(function(model))
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
    own = torch.tensor([float(number(pair[0])) for pair in pairs])
    everybodys = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(everybodys, own, group=own_group())
    return {
        "the mean of the ranks' own losses": torch.stack(everybodys).mean(0),
        "the ranks' own losses are those of different rows": len({tuple(one.tolist()) for one in everybodys})
        == ranks,
        "the mean losses": [number(pair[-1]) for pair in pairs],
        "steps of the engine": engine.global_steps,
        "the weights": engine.module.table.weight.detach().clone(),
    }


def squared(function: Callable, seed: int) -> Values:
    """A number of each rank's own, in a function that joins the ranks itself."""
    value = 10.0 + seed % 40 + 3 * dist.get_rank() ** 2
    with not_joined():
        return {"what this rank returned": number(function(value))}
