"""Lesson 00: rows dealt evenly, a mean over ranks, a deadlock and its cure, what differs between ranks, and a
training loop.  The lesson's script is in `start_here_script`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.nn import functional as F
from helpers.course.exercises.comparing import article
from helpers.course.exercises.failing import Hang
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.start_here_jobs import JOBS as JOBS
from helpers.course.exercises.start_here_jobs import odd_rank as odd_rank
from helpers.course.exercises.start_here_jobs import show as show
from helpers.course.exercises.start_here_script import as_in_a_script
from helpers.course.exercises.start_here_script import main as main
from helpers.course.exercises.start_here_script import mean_over_tokens as mean_over_tokens
from helpers.course.exercises.start_here_script import script_of as script_of
from helpers.course.exercises.stubs import Stubs

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from helpers.course.exercises.seeing import See

stubs = Stubs("start_here")
NUMBER = {
    "returns": (int, float),
    "due": "return a plain number (`.item()` turns a one-element tensor into one)",
}
SGD = {"type": "SGD", "params": {"lr": 0.5}}


class Deal(Exercise):
    """Rows are a list in the cases, and a tensor where the lesson trains."""

    def verdict(self, answer: object) -> str:
        said = super().verdict(answer)
        return said if not said.startswith("correct") else self.of_a_tensor(answer) or said

    def of_a_tensor(self, answer: Callable) -> str:
        """The verdict on what rank 1 of 2 gets of five rows of a tensor; "" where it is right."""
        rows = torch.arange(10).reshape(5, 2)
        begin = "not yet: for rows = torch.arange(10).reshape(5, 2), rank=1, ranks=2 your function"
        try:
            got = answer(rows, rank=1, ranks=2)
        except Exception as error:
            return f"{begin} raised {type(error).__name__}: {error}"
        if not rows.equal(torch.arange(10).reshape(5, 2)):
            return f"{begin} changes `rows` itself, which others still need: return a part of it"
        if not isinstance(got, torch.Tensor):
            return f"{begin} returns {article(type(got).__name__)}, where a tensor is asked for: slice `rows`"
        due = self.solution(rows, 1, 2)
        return "" if got.equal(due) else f"{begin} returns {got.tolist()} where {due.tolist()} is right"


DEALT = [("abcde", 0, 2), ("abcde", 1, 2), ("abcdefgh", 3, 4), ("abc", 0, 4), ("abcdefghijk", 1, 3)]
deal = stubs.formula("deal", [(list(rows), rank, ranks) for rows, rank, ranks in DEALT], kind=Deal)


@stubs.in_ranks(together=True)
def mean_over_ranks(see: See, answer: Callable) -> None:
    """A number of each rank's own, of which one is zero, and one that is the same everywhere."""
    for value in (see.seed % 97 + 2.5 * see.rank**2 + 1 / 3, 1.5, 3 + see.rank, 2.0 * see.rank):
        see(f"the mean where this rank brings {value:g}", see.call(answer, value, **NUMBER))


def asked(function: Callable) -> object:
    """A rank of a job that logs once: what it gets for it."""
    import deepspeed

    deepspeed.init_distributed()
    return function(2.0 + dist.get_rank())


log_alone = stubs.check(Hang, "log_alone", call=asked, rungs=(mean_over_ranks,))


@stubs.in_ranks(together=True, rungs=(mean_over_ranks,))
def log_mean(see: See, answer: Callable) -> None:
    """What a rank has to log, twice."""
    for step in (1, 2):
        loss = see.seed % 97 + step + 3.0 * see.rank
        log = see.call(answer, loss, returns=(int, float, type(None)), due=NUMBER["due"])
        see(f"whether this rank returned something to log in step {step}", log is not None)
        see(f"what it is to log in step {step}", 0.0 if log is None else log)


@stubs.in_ranks(together=True)
def differing(see: See, answer: Callable) -> None:
    """Weights that are the same everywhere; then such that differ from rank 1 on: on rank r in r + 6 places,
    in all but one of them by a single bit, and in the signs of four zeros."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4 + see.seed % 3))
    see("the count where no element differs", see.call(answer, model, **NUMBER))
    with torch.no_grad():
        if see.rank:
            for place in (model[1].weight.flatten()[: 2 + see.rank], model[1].bias[:3]):
                place.copy_(place.nextafter(torch.tensor(9.0)))
            model[1].bias[3] += see.rank
        model[0].bias.fill_(-0.0 if see.rank else 0.0)
        before = torch.cat([weight.flatten() for weight in model.parameters()])
        when = "where elements differ, four of them in the sign of a zero"
        see(f"the count {when}", see.call(answer, model, **NUMBER))
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    see("the model is as it was", bool(before.equal(after)))


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


@stubs.in_ranks(together=True, rungs=(deal, mean_over_ranks))
def train(see: See, answer: Callable) -> None:
    """Three batches whose rows differ."""
    batches = [torch.randint(0, 16, (2, 2 * see.ranks, 5)).unbind() for _ in range(3)]
    engine = small_engine(2)
    pairs = see.call(answer, engine, batches, returns=list, due="return a list with a pair for each batch")
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError("return a list with a pair for each batch, this rank's loss and the mean")
    if not all(isinstance(loss, (int, float)) for pair in pairs for loss in pair):
        raise TypeError(f"the losses are plain numbers; {NUMBER['due']}")
    own = torch.tensor([float(loss) for loss, _ in pairs])
    everybodys = [torch.empty_like(own) for _ in range(see.ranks)]
    dist.all_gather(everybodys, own, group=own_group())
    by_rank = torch.stack(everybodys)
    see("the mean of the ranks' own losses", by_rank.mean(0))
    see("the ranks' own losses are those of different rows", len(by_rank.unique(dim=0)) == see.ranks)
    see("the mean losses", [mean for _, mean in pairs])
    see("steps of the engine", engine.global_steps)
    see("the weights", engine.module.table.weight.detach().clone())


sum_of_ranks = stubs.formula("sum_of_ranks", [(4,), (1,), (2,), (8,)])


@stubs.in_ranks()
def mean_of_squares(see: See, answer: Callable) -> None:
    """A number of each rank's own, in a function that joins the ranks itself."""
    value = 10.0 + see.seed % 40 + 3 * see.rank**2
    see("what this rank returned", see.call(as_in_a_script([])(answer), value, **NUMBER))
