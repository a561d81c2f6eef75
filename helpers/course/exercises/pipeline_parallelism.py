"""Answers of lesson 06: pipelines, and the mistakes that people make there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.builds import Build
from helpers.course.exercises.engine import first_thought
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.reading import is_unwritten
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.telling import tell
from helpers.tools.theory import schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helpers.course.exercises.in_ranks import Judged
    from helpers.course.plots.style import Plot

stubs = Stubs("pipeline_parallelism")


SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}  # how long an action takes; what the lesson counts with
WIDTH = 5
CASES = ((4, 8), (2, 3), (4, 2), (3, 7))  # stages and micro-batches of schedules that are looked at


class NotASchedule(Exception):
    """What a function gave is no list of actions; says what it is."""


def orders_of(function: Callable, ranks: int, count: int) -> list[list[schedules.Action]]:
    """The order of every rank; raises `NotASchedule` for what is no list of (kind, stage, micro)."""
    orders = []
    for rank in range(ranks):
        said = f"for rank={rank}, ranks={ranks}, count={count}"
        try:
            orders.append([tuple(action) for action in function(rank, ranks, count)])
        except Exception as error:
            raised = f"your function raised {type(error).__name__} {said}: {error}"
            raise NotASchedule(f"{raised}, or gives no list of actions") from error
        for action in orders[-1]:
            match action:
                case (str(kind), int(), int()) if kind in SLOTS:
                    continue
            due = 'no action such as ("F", stage, micro)'
            raise NotASchedule(f"{said} your list holds {action!r}, which is {due}")
    return orders


def properties(function: Callable, ranks: int, count: int) -> dict[str, object]:
    """What can be said of a schedule without carrying it out: {name: value}; the later names are missing
    where it cannot be carried out."""
    orders = orders_of(function, ranks, count)
    actions = {"actions": [sorted(order) for order in orders]}
    try:
        timelines = schedules.replay(orders, SLOTS)
    except ValueError as error:
        return actions | {"deadlock": str(error)}
    held = [schedules.most_in_flight(order) for order in orders]
    return actions | {"deadlock": "", "held": held, "idle": round(schedules.idle_fraction(timelines), 6)}


def differing(got: dict[str, object], right: dict[str, object]) -> str:
    """In words, what of a schedule's properties is not right first; "" where all are."""
    for rank, (mine, due) in enumerate(zip(got["actions"], right["actions"])):
        if more := Counter(mine) - Counter(due):
            action = min(more)
            times = f"{mine.count(action)} times" if action in due else "and should not"
            return f"rank {rank} does {action!r} {times}"
        if missing := Counter(due) - Counter(mine):
            return f"rank {rank} never does {min(missing)!r}"
    if got["deadlock"]:
        return got["deadlock"]
    for rank, (mine, due) in enumerate(zip(got["held"], right["held"])):
        if mine != due:
            return f"rank {rank} has up to {mine} in flight at once where {due} is right"
    if got["idle"] != right["idle"]:
        return f"{100 * got['idle']:.1f} % of the time is idle where {100 * right['idle']:.1f} % is right"
    return ""


@dataclass
class Schedule(Build):
    """A schedule to write: looked at without ranks first, by `schedules.replay`, then carried out in real
    ranks."""

    def looked_at(self, answer: Callable) -> str:
        """What is wrong with the orders of all ranks, in words, and what to think about; "" where nothing
        is."""
        for ranks, count in CASES:
            of = partial(properties, ranks=ranks, count=count)
            try:
                got = of(answer)
            except NotASchedule as error:
                return f"not yet: {error}"
            if wrong := differing(got, of(self.solution)):
                thought = first_thought(self.mistaken(), lambda mistake, got=got, of=of: of(mistake) == got)
                return f"not yet: with {ranks} ranks and {count} micro-batches: {wrong}{thought}"
        return ""

    def judged(
        self, answer: Callable, mistakes: dict[str, Callable], ranks: int, seed: int
    ) -> Sequence[Judged]:
        """Without mistakes: those were looked at, and in ranks some of them hang."""
        return super().judged(answer, {}, ranks, seed)


def draw(function: Callable, ranks: int = 4, count: int = 8) -> Plot | None:
    """A schedule's figure, without any rank: when each action would happen, forward 1 slot and backward 2; or
    words on why there is none."""
    from helpers.course import plots

    if is_unwritten(function):
        return tell(
            "not written yet: put your code in the place of the dots, and this cell draws your schedule"
        )
    try:
        timelines = schedules.replay(orders_of(function, ranks, count), SLOTS)
    except (NotASchedule, ValueError) as error:
        return tell(f"not yet: {error}")
    title = f"{function.__name__}: {count} micro-batches on {ranks} ranks"
    return plots.pipeline_schedules({"yours": timelines}, title, "slots")


class _Line:
    """A line of ranks with a small layer each, which carries out actions on micro-batches and counts
    nothing."""

    def __init__(self, count):
        self.rank, ranks, self.count = dist.get_rank(), dist.get_world_size(), count
        self.inputs = torch.randn(count, 2, WIDTH)
        self.layer = [nn.Linear(WIDTH, WIDTH) for _ in range(ranks)][self.rank]
        self.last = self.rank == ranks - 1
        self.kept, self.gradients, self.losses, self.under_way = {}, {}, {}, []

    def send(self, to, micro, tensor):
        request = dist.isend(tensor.contiguous(), to, group=own_group(), tag=micro)
        self.under_way.append((request, tensor))

    def receive(self, source, micro):
        tensor = torch.empty(2, WIDTH)
        dist.recv(tensor, source, group=own_group(), tag=micro)
        return tensor

    def arrived(self, micro):
        """The gradient of what this rank sent; None on the last rank."""
        return None if self.last else self.receive(self.rank + 1, micro)

    def act(self, kind, micro):
        if kind == "F":
            self.forward(micro)
        if kind in "BI":
            self.pass_back(micro)
        if kind in "BW":
            self.add_gradients(micro)

    def forward(self, micro):
        x = self.receive(self.rank - 1, micro).requires_grad_() if self.rank else self.inputs[micro]
        y = self.layer(x).tanh()
        if self.last:
            y = y.square().mean() / self.count
            self.losses[micro] = y.item()
        else:
            self.send(self.rank + 1, micro, y.detach())
        self.kept[micro] = x, y

    def pass_back(self, micro):
        x, y = self.kept[micro]
        self.gradients[micro] = self.arrived(micro)
        if self.rank:
            (gradient,) = torch.autograd.grad(y, x, self.gradients[micro], retain_graph=True)
            self.send(self.rank - 1, micro, gradient)

    def add_gradients(self, micro):
        parameters, (_, y) = list(self.layer.parameters()), self.kept[micro]
        for parameter, gradient in zip(parameters, torch.autograd.grad(y, parameters, self.gradients[micro])):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def finish(self):
        """Waits for all messages; returns {name: gradient} of the layer."""
        for request, _ in self.under_way:
            request.wait()
        return {f"the gradient of {name}": value.grad for name, value in self.layer.named_parameters()}


def _carried_out(function, seed):
    """Losses and gradients of a line of layers, with more micro-batches than ranks and with fewer; only what
    can be carried out is."""
    rank, ranks, values = dist.get_rank(), dist.get_world_size(), {}
    for count in (ranks + 1 + seed % 4, max(1, ranks - 1 - seed % 2)):
        when, schedule = f", with {count} micro-batches", properties(function, ranks, count)
        values[f"actions{when}"] = str(schedule["actions"][rank])
        values[f"deadlock{when}"] = schedule["deadlock"]
        if schedule["deadlock"]:
            return values
        line = _Line(count)
        for kind, _, micro in function(rank, ranks, count):
            line.act(kind, micro)
        values |= {f"{name}{when}": gradient for name, gradient in line.finish().items()}
        values[f"the losses{when}"] = [line.losses[micro] for micro in sorted(line.losses)]
    return values


gpipe = stubs.build("gpipe", Returning(_carried_out), kind=Schedule)


one_f_one_b = stubs.build("one_f_one_b", Returning(_carried_out), kind=Schedule)


zero_bubble = stubs.build("zero_bubble", Returning(_carried_out), kind=Schedule, rungs=[one_f_one_b])


def _passed_back(function, seed):
    """Two micro-batches through a line of layers and back, so that gradients add up; the learner's function
    is each rank's backward pass.

    What torch says of a wrong call is compared too, so that the verdict can answer it in words; the
    neighbours get zeros then, and go on."""
    values, line = {}, _Line(2)
    for micro in (0, 1):
        line.forward(micro)
    for micro in (0, 1):
        x, y = line.kept[micro]
        arrived, said = line.arrived(micro), "nothing"
        try:
            gradient = function(x, y, arrived)
        except RuntimeError as error:
            gradient, said = None, str(error).partition("\n")[0]
        if line.rank:
            fits = isinstance(gradient, torch.Tensor) and gradient.shape == (2, WIDTH)
            line.send(line.rank - 1, micro, gradient.detach().float() if fits else torch.zeros(2, WIDTH))
        values[f"what torch says of micro-batch {micro}"] = said
        values[f"what is returned for micro-batch {micro}"] = gradient
    return values | line.finish()


pass_back = stubs.build("pass_back", Returning(_passed_back))


micro_batches_for = stubs.formula("micro_batches_for", [(4, 0.2), (2, 0.1), (8, 0.05), (3, 0.3)])
