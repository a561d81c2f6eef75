"""What lesson 06 runs beside the learner's functions: a small GPT as a list of layers, of which ranks have
consecutive ones; one process with all of them; and what a rank reports."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy
import torch
from torch import nn
from helpers.course import corpus, models
from helpers.course.training.comparable import WITHIN, join, words
from helpers.tools.launcher.failures import RankError
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.internals import wrap_instructions
from helpers.tools.measure.traffic import Traffic
from helpers.tools.theory import schedules

if TYPE_CHECKING:
    from deepspeed import PipelineEngine

    Rows = tuple[torch.Tensor, torch.Tensor]
    Order = list[schedules.Action]

SIZE, MICRO, LENGTH = models.GPTSize(layers=6), 2, 32  # a micro-batch has 2 sequences of 32 tokens
STEPS, COUNT = 3, 8  # training steps, micro-batches of each
SHAPE = MICRO, LENGTH, SIZE.width  # of a message
SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}  # how long an action takes; what the lesson counts with
PATIENCE = 6.0  # seconds after which a training of a second counts as hung
SEEDS = {"seed_layers": True, "base_seed": 0, "seed_fn": lambda seed: torch.manual_seed(int(seed))}


def layer(index: int) -> nn.Module:
    """A layer by its place in the model, with the same weights on whatever rank it is built."""
    torch.manual_seed(index)
    if index == 0:
        return models.Embedding(SIZE)
    return models.Head(SIZE) if index == SIZE.layers + 1 else models.Block(SIZE)


def stage(rank: int, ranks: int) -> nn.Sequential:
    """A rank's layers, equally many on each, by their places in the model."""
    each = (SIZE.layers + 2) // ranks
    return nn.Sequential(OrderedDict((str(at), layer(at)) for at in range(rank * each, (rank + 1) * each)))


def rows(step: int, count: int = COUNT) -> list[Rows]:
    """The micro-batches of a step, (ids, targets) each."""
    ids, targets = corpus.batch(step, MICRO * count, LENGTH)
    return list(zip(ids.split(MICRO), (part.clone() for part in targets.split(MICRO))))


# --- what a rank reports


class Report:
    """What a rank reports of a training.

    Attributes:
        losses: of every step; 0 on all ranks but the last.
        order: what it did in the last step.
        in_flight: micro-batches that it kept at most.
        sent: bytes that it handed to `isend` in the last step.
        weights, gradients: {parameter: numpy array}; gradients as Adam's running mean of them, which grows
            with them, as Adam's steps do not.
    """

    def __init__(self) -> None:
        self.losses, self.order, self.in_flight, self.sent = [], [], 0, 0
        self.weights, self.gradients = {}, {}

    def note(self, action: schedules.Action, kept: int) -> None:
        """After an action."""
        self.order.append(tuple(action))
        self.in_flight = max(self.in_flight, kept)

    def end(self, layers: nn.Module, adam: object) -> Report:
        """After the last step."""
        named = dict(layers.named_parameters())
        self.weights = {name: array(one) for name, one in named.items()}
        self.gradients = {name: array(mean_of(one, adam)) for name, one in named.items()}
        return self

    @contextmanager
    def step(self) -> Iterator[None]:
        """Inside is one step, whose messages are counted."""
        self.order.clear()
        with Traffic() as traffic:
            yield
        self.sent = traffic.logged.get("isend", 0)


def array(tensor: torch.Tensor) -> numpy.ndarray:
    return tensor.detach().cpu().numpy().copy()


def mean_of(parameter: nn.Parameter, adam: object) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_optimizer_state  # ZeRO shards the means

    if parameter in adam.state:
        return adam.state[parameter]["exp_avg"]
    return safe_get_full_optimizer_state(parameter, "exp_avg")


class Executed(Report):
    """The same of an engine of DeepSpeed."""

    def __init__(self, engine: PipelineEngine) -> None:
        super().__init__()
        self.engine, self.names = engine, []
        wrap_instructions(engine, self.noted)

    def noted(self, name: str, instruction: Callable) -> Callable:
        def execute(*arguments: object, **options: object) -> None:
            instruction(*arguments, **options)
            self.names.append(name)

        return execute

    def note_step(self, loss: torch.Tensor) -> None:
        """After `train_batch`."""
        self.losses.append(loss.item())
        self.order = schedules.actions(self.names, self.engine.stage_id)
        self.names.clear()

    def end(self) -> Report:
        """After the last step: plain data alone, since an engine does not leave its rank."""
        engine = self.engine
        first, functions = engine.module.parts[engine.stage_id], engine.module.forward_funcs
        own = {str(first + at): one for at, one in enumerate(functions) if isinstance(one, nn.Module)}
        found = Report()
        found.losses, found.order = self.losses, self.order
        found.in_flight = schedules.most_in_flight(self.order)
        if engine.stage_id < engine.num_stages - 1:
            found.losses = [0.0] * len(self.losses)  # DeepSpeed tells all ranks what the last one knows
        return found.end(nn.ModuleDict(own), engine.optimizer)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what DeepSpeed prints about its cut."""
    with redirect_stdout(io.StringIO()):
        yield


# --- beside one process


def in_one_process(count: int) -> Report:
    join()
    layers, report = stage(0, 1), Report()
    adam = torch.optim.AdamW(layers.parameters(), lr=1e-3)
    for step in range(STEPS):
        ids, targets = (torch.cat(parts) for parts in zip(*rows(step, count)))
        loss = models.next_token_loss(layers(ids), targets)
        loss.backward()
        adam.step()
        adam.zero_grad()
        report.losses.append(loss.item())
    return report.end(layers, adam)


@cache
def one_process(count: int = COUNT) -> Report:
    """Three steps of one process with all layers, which reads all micro-batches at once."""
    return launch(in_one_process, ranks=1, arguments={"count": count}, device="cpu")[0]


def apart(reports: Sequence[Report], right: Report) -> float:
    """The largest difference of losses and weights from another training's, and of gradients in multiples of
    a tensor's largest."""
    off = [abs(mine - due) for mine, due in zip(losses_of(reports), right.losses)]
    for report in reports:
        for name, weight in report.weights.items():
            off.append(abs(weight - right.weights[name]).max())
            gradient, due = report.gradients[name], right.gradients[name]
            off.append(abs(gradient - due).max() / abs(due).max())
    return max(off)


def losses_of(reports: Sequence[Report]) -> list[float]:
    return [sum(step) for step in zip(*(report.losses for report in reports))]


def beside_one_process(trained: Mapping[str, Sequence[Report]], count: int = COUNT) -> list[dict]:
    """Rows for a table: losses, and whether these, all weights and all gradients are one process's.

    Args:
        trained: {name: what each rank reports}.
    """
    rows = []
    for name, reports in trained.items():
        off = apart(reports, one_process(count))
        tensors = len({one for report in reports for one in report.weights})
        row = {"": name, "ranks": len(reports), "losses": words(losses_of(reports))}
        row[f"within {WITHIN:g} of one process"] = (
            f"losses, {tensors} weights and gradients" if off < WITHIN else f"NO, {off:.2g} off"
        )
        row["in flight"] = ", ".join(str(report.in_flight) for report in reports)
        rows.append(row)
    return rows


# --- schedules


def replayed(
    order_of: Callable[[int, int, int], Order],
    ranks: int = 4,
    count: int = COUNT,
    seconds: Mapping | None = None,
) -> list[list[tuple]]:
    """Every rank's timeline, in slots or by `seconds` as `schedules.replay` takes them."""
    return schedules.replay([order_of(rank, ranks, count) for rank in range(ranks)], seconds or SLOTS)


def one_by_one(rank: int, ranks: int, count: int) -> Order:
    """Each micro-batch there and back before the next begins."""
    return [(kind, rank, micro) for micro in range(count) for kind in "FB"]


def interleaved(rank: int, ranks: int, count: int, chunks: int = 2) -> Order:
    """1F1B where a rank has several stages: rank 0 the stages 0, `ranks`, ... (Narayanan et al., arXiv
    2104.04473, section 2.2.2); the companion shows the same lines."""

    def walk(kind: str, order: range) -> Order:  # groups of `ranks` micro-batches, each through all chunks
        groups = range(0, count, ranks)
        return [(kind, c * ranks + rank, g + k) for g in groups for c in order for k in range(ranks)]

    forwards, backwards = walk("F", range(chunks)), walk("B", range(chunks)[::-1])
    first = min(len(forwards), 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
    order = forwards[:first]
    for pair in zip(forwards[first:], backwards):
        order += pair
    return order + backwards[len(forwards) - first :]


def of_deepspeed(stages: int) -> list[Order]:
    """What DeepSpeed's own schedule generates, for every stage."""
    arguments = {"stages": stages, "micro_batches": COUNT}
    return launch(schedules.deepspeed_orders, ranks=1, arguments=arguments, device="cpu")[0]


def outcomes(orders: Mapping[str, Callable], waiting: Callable) -> dict[str, str]:
    """What comes of a training on two ranks with each order: one that lasts longer than `PATIENCE` is ended,
    and its ranks say where they are."""
    found = {}
    for name, order_of in orders.items():
        given = {"ranks": 2, "arguments": {"order_of": order_of}, "device": "cpu", "timeout": PATIENCE}
        found[name] = outcome(partial(launch, waiting, **given))
    return found


def outcome(function: Callable[[], object]) -> str:
    """In words: what comes of a training that might hang."""
    try:
        function()
    except RankError as error:
        if not error.hung:
            raise
        return str(error).partition(" after")[0]
    return "comes to its end"
