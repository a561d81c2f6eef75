"""Answers of lesson 06: pipelines, and the mistakes that people make there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.reading import is_unwritten
from helpers.course.exercises.telling import tell
from helpers.tools.theory import schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.course.plots.style import Plot

__all__ = ["draw", "gpipe", "guess", "micro_batches_for", "one_f_one_b", "pass_back", "zero_bubble"]

SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}  # how long an action takes; what the lesson counts with
WIDTH = 5


# --- a schedule, looked at

CASES = ((4, 8), (2, 3), (4, 2), (3, 7))  # stages, micro-batches


class NotASchedule(Exception):
    """What a function gave is no list of actions; says what it is."""


def orders_of(function: Callable, ranks: int, count: int) -> list[list[schedules.Action]]:
    """The order of every rank; raises `NotASchedule` for what is no list of (kind, stage, micro)."""
    orders = []
    for rank in range(ranks):
        said = f"rank={rank}, ranks={ranks}, count={count}"
        try:
            order = function(rank, ranks, count)
            order = [tuple(action) for action in order]
        except Exception as error:
            raise NotASchedule(
                f"your function raised {type(error).__name__} for {said}: {error}, or gives no "
                "list of actions"
            ) from error
        for action in order:
            if (
                len(action) != 3
                or action[0] not in SLOTS
                or not all(isinstance(number, int) for number in action[1:])
            ):
                raise NotASchedule(
                    f'for {said} your list holds {action!r}, which is no action such as ("F", stage, micro)'
                )
        orders.append(order)
    return orders


def properties(function: Callable, ranks: int, count: int) -> dict[str, object]:
    """What can be said of a schedule without carrying it out: {name: value}; the later names are missing
    where it cannot be carried out."""
    orders = orders_of(function, ranks, count)
    found = {"actions": [sorted(order) for order in orders]}
    try:
        timelines = schedules.replay(orders, SLOTS)
    except ValueError as error:
        return found | {"deadlock": str(error)}
    idle = schedules.idle_fraction(timelines)
    return found | {
        "deadlock": "",
        "held": [schedules.most_in_flight(order) for order in orders],
        "idle": round(idle, 6),
    }


def differing(got: dict[str, object], right: dict[str, object]) -> str:
    """In words, what of a schedule's properties is not right first; "" where all are."""
    for rank, (mine, due) in enumerate(zip(got["actions"], right["actions"])):
        missing, more = Counter(due) - Counter(mine), Counter(mine) - Counter(due)
        if more:
            action = min(more)
            return f"rank {rank} does {action!r} " + (
                f"{mine.count(action)} times" if action in due else "and should not"
            )
        if missing:
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

    def looked_at(self, answer: Callable, solution: Callable) -> str:
        """What is wrong with the orders of all ranks, in words, and what to think about; "" where nothing
        is."""
        for ranks, count in CASES:
            try:
                got = properties(answer, ranks, count)
            except NotASchedule as error:
                return f"not yet: {error}"
            if wrong := differing(got, properties(solution, ranks, count)):
                thought = next(
                    (
                        words
                        for words, mistake in self.mistakes.items()
                        if properties(mistake, ranks, count) == got
                    ),
                    "",
                )
                return f"not yet: with {ranks} ranks and {count} micro-batches: {wrong}" + (
                    f"; {thought}" if thought else ""
                )
        return ""


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
    return plots.pipeline_schedules(
        {"yours": timelines}, f"{function.__name__}: {count} micro-batches on {ranks} ranks", "slots"
    )


# --- and carried out


class _Line:
    """A line of ranks with a small layer each, which carries out actions on micro-batches and counts
    nothing."""

    def __init__(self, seed, count):
        import deepspeed.comm as comm

        self.rank, self.last, self.count = comm.get_rank(), comm.get_world_size() - 1, count
        random = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, 2, WIDTH, generator=random)
        with torch.random.fork_rng():
            torch.manual_seed(seed + self.rank)
            self.layer = nn.Linear(WIDTH, WIDTH)
        self.kept, self.gradients, self.losses, self.under_way = {}, {}, [], []

    def send(self, kind, to, micro, tensor):
        import deepspeed.comm as comm

        self.under_way.append((comm.isend(tensor.contiguous(), to, tag=2 * micro + kind), tensor))

    def receive(self, kind, source, micro):
        import deepspeed.comm as comm

        tensor = torch.empty(2, WIDTH)
        comm.recv(tensor, source, tag=2 * micro + kind)
        return tensor

    def arrived(self, micro):
        """The gradient of what this rank sent; None on the last rank."""
        return None if self.rank == self.last else self.receive(1, self.rank + 1, micro)

    def act(self, kind, micro):
        if kind == "F":
            x = self.receive(0, self.rank - 1, micro).requires_grad_() if self.rank else self.inputs[micro]
            y = self.layer(x).tanh()
            if self.rank == self.last:
                y = y.square().mean() / self.count
                self.losses.append((micro, y.item()))
            else:
                self.send(0, self.rank + 1, micro, y.detach())
            self.kept[micro] = x, y
        elif kind in "BI":
            x, y = self.kept[micro]
            self.gradients[micro] = gradient = self.arrived(micro)
            wanted = ([x] if self.rank else []) + (list(self.layer.parameters()) if kind == "B" else [])
            found = torch.autograd.grad(y, wanted, gradient, retain_graph=kind == "I") if wanted else []
            if self.rank:
                self.send(1, self.rank - 1, micro, found[0])
            if kind == "B":
                self.add(found[-2:])
        else:
            _, y = self.kept[micro]
            self.add(torch.autograd.grad(y, list(self.layer.parameters()), self.gradients[micro]))

    def add(self, gradients):
        for parameter, gradient in zip(self.layer.parameters(), gradients):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def finish(self):
        for request, _ in self.under_way:
            request.wait()


def _carried_out(function, seed):
    """Losses and gradients of a line of layers, with more micro-batches than ranks and with fewer; only what
    can be carried out is."""
    import deepspeed.comm as comm

    rank, ranks, found = comm.get_rank(), comm.get_world_size(), {}
    for count in (ranks + 1 + seed % 4, max(1, ranks - 1 - seed % 2)):
        said = f"with {count} micro-batches"
        seen = properties(function, ranks, count)
        found[f"actions, {said}"], found[f"deadlock, {said}"] = str(seen["actions"][rank]), seen["deadlock"]
        if seen["deadlock"]:
            return found
        line = _Line(seed, count)
        for kind, _, micro in function(rank, ranks, count):
            line.act(kind, micro)
        line.finish()
        found[f"the losses, {said}"] = [loss for _, loss in sorted(line.losses)]
        found[f"the gradient of the weights, {said}"] = line.layer.weight.grad
    return found


def _order(rank, ranks, count, first, backwards=True):
    """Forward passes first, then forward and backward in turns, then what is left."""
    ahead = [("F", rank, micro) for micro in range(count)]
    back = [("B", rank, micro) for micro in range(count)]
    order = ahead[:first]
    for pair in zip(ahead[first:], back):
        order += pair
    return order + (back[len(ahead[first:]) :] if backwards else [])


def _one_f_one_b(rank, ranks, count):
    return _order(rank, ranks, count, min(ranks - rank - 1, count))


def _backward_first(rank, ranks, count):
    """As many forward passes first as in 1F1B, then a backward pass before each forward pass."""
    ahead, back = (
        [("F", rank, micro) for micro in range(count)],
        [("B", rank, micro) for micro in range(count)],
    )
    first = min(ranks - rank - 1, count)
    order = ahead[:first]
    for pair in zip(back, ahead[first:]):
        order += pair
    return order + back[len(ahead[first:]) :]


def _gpipe(rank, ranks, count):
    return _order(rank, ranks, count, count)


def _without_limit(rank, ranks, count):
    ahead = [("F", rank, micro) for micro in range(ranks - rank - 1)]
    return ahead + _one_f_one_b(rank, ranks, count)[min(ranks - rank - 1, count) :]


gpipe = Schedule(
    "gpipe",
    _carried_out,
    mistakes={
        "that is one micro-batch after another: all forward passes come first": lambda rank, ranks, count: (
            _order(rank, ranks, count, 0)
        ),
        "a rank has one stage, whose number is the rank's": lambda rank, ranks, count: [
            (kind, micro, rank) for kind, _, micro in _gpipe(rank, ranks, count)
        ],
        "every forward pass needs its backward pass": lambda rank, ranks, count: _gpipe(rank, ranks, count)[
            :count
        ],
        "a rank works on all micro-batches, not on one": lambda rank, ranks, count: [
            ("F", rank, 0),
            ("B", rank, 0),
        ],
        "stage 0 is rank 0's; a rank's own stage has its own number": lambda rank, ranks, count: [
            (kind, 0, micro) for kind, _, micro in _gpipe(rank, ranks, count)
        ],
    },
    praise="no stage waits for a gradient before it has done all its forward passes, so all of them are "
    "in flight at once",
)
one_f_one_b = Schedule(
    "one_f_one_b",
    _carried_out,
    mistakes={
        "that is GPipe: begin with the backward passes as soon as the first gradient can be there": _gpipe,
        "do some forward passes before you alternate: with none, all others wait while one "
        "micro-batch goes there and back": (lambda rank, ranks, count: _order(rank, ranks, count, 0)),
        "later stages need fewer forward passes before they alternate, since "
        "their gradients come sooner": lambda rank, ranks, count: _order(
            rank, ranks, count, min(ranks - 1, count)
        ),
        "that is one forward pass too few before they alternate: the last rank does none, the "
        "one before it one": lambda rank, ranks, count: _order(
            rank, ranks, count, max(0, min(ranks - rank - 2, count))
        ),
        "that is one forward pass too many before they "
        "alternate: the last rank needs none": lambda rank, ranks, count: _order(
            rank, ranks, count, min(ranks - rank, count)
        ),
        "it is the first rank whose gradients take longest "
        "to come back, not the last": lambda rank, ranks, count: _order(rank, ranks, count, min(rank, count)),
        "in a pair the forward pass comes first: the last rank cannot go back "
        "with what it has not seen": _backward_first,
        "at the end, the backward passes that are left over are missing": lambda rank, ranks, count: _order(
            rank, ranks, count, min(ranks - rank - 1, count), backwards=False
        ),
        "there may be fewer micro-batches than ranks": _without_limit,
    },
    praise="a stage takes up a new micro-batch when it has finished one, so it holds no more than there "
    "are stages from it to the end",
)


def _zero_bubble(rank, ranks, count, delay):
    order = []
    for kind, stage, micro in _one_f_one_b(rank, ranks, count):
        order.append(("F" if kind == "F" else "I", stage, micro))
        if kind == "B" and micro >= delay:
            order.append(("W", stage, micro - delay))
    return order + [("W", rank, micro) for micro in range(max(count - delay, 0), count)]


zero_bubble = Schedule(
    "zero_bubble",
    _carried_out,
    mistakes={
        "every backward pass is to be done in two parts, I and W": _one_f_one_b,
        "nothing is postponed yet: with each W right after its I, "
        "only the sending is earlier": lambda rank, ranks, count: _zero_bubble(rank, ranks, count, 0),
        "it is the last rank that ends early and has most "
        "time left over, not the first": lambda rank, ranks, count: _zero_bubble(
            rank, ranks, count, ranks - 1 - rank
        ),
        "all W at the end hold every micro-batch until then: "
        "postpone by the rank's number": lambda rank, ranks, count: _zero_bubble(rank, ranks, count, count),
        "the postponed gradients of the weights are missing at the end": lambda rank, ranks, count: [
            action
            for action in _zero_bubble(rank, ranks, count, rank)
            if action[0] != "W" or action[2] < count - rank
        ],
    },
    praise="only the gradient of the input is waited for by others; the gradients of the weights fill "
    "what would be idle time",
)


# --- one stage's backward pass


def _passed_back(function, seed):
    """Two micro-batches through a line of layers and back, so that gradients add up; the learner's function
    is each rank's backward pass.

    What torch says of a wrong call is a finding as others are, so that it can be answered in words; the
    neighbours get zeros then, and go on."""
    import deepspeed.comm as comm

    rank, found = comm.get_rank(), {}
    line = _Line(seed, 2)
    for micro in (0, 1):
        line.act("F", micro)
    for micro in (0, 1):
        x, y = line.kept[micro]
        arrived = line.arrived(micro)
        try:
            given, found[f"what torch says of micro-batch {micro}"] = function(x, y, arrived), "nothing"
        except RuntimeError as error:
            given, found[f"what torch says of micro-batch {micro}"] = None, str(error).partition("\n")[0]
        fits = isinstance(given, torch.Tensor) and given.shape == (2, WIDTH)
        if rank:
            line.send(1, rank - 1, micro, given.detach().float() if fits else torch.zeros(2, WIDTH))
        found[f"what is returned for micro-batch {micro}"] = given
    line.finish()
    found["the gradient of the weights"] = line.layer.weight.grad
    return found


def _only_for_the_input(x, y, gradient):
    given = None
    if x.requires_grad:
        (given,) = torch.autograd.grad(y, x, gradient)
    return given


def _forgets_what_arrived(x, y, gradient):
    y.sum().backward()
    return x.grad


def _hands_on(x, y, gradient):
    y.backward(gradient)
    return gradient


def _without_what_arrived(x, y, gradient):
    y.backward()
    return x.grad


def _for_the_input_of_any_stage(x, y, gradient):
    (given,) = torch.autograd.grad(y, x, gradient)
    return given


pass_back = Build(
    "pass_back",
    _passed_back,
    mistakes={
        "`y` is no loss except on the last stage: `backward` needs the gradient "
        "of `y`, which has arrived": _without_what_arrived,
        "the first stage's `x` are token ids, which have no gradient; `y.backward(gradient)` and "
        "then `x.grad` do on every stage, and fill the "
        "weights' gradients too": _for_the_input_of_any_stage,
        "that is the right gradient of what came in, but the weights have got "
        "none: `backward` fills both": _only_for_the_input,
        "the gradient that has arrived must go in: it says how the loss changes with this "
        "stage's output": _forgets_what_arrived,
        "that is the gradient of what this stage sent; the stage before "
        "needs that of what it sent": _hands_on,
    },
    praise="autograd's graph ends at a rank, and the gradient of what was sent takes it up again",
)


# --- how many micro-batches

micro_batches_for = Exercise(
    reference=lambda stages, fraction: (stages - 1) * (1 - fraction) / fraction,
    cases=(
        {"stages": 4, "fraction": 0.2},
        {"stages": 2, "fraction": 0.1},
        {"stages": 8, "fraction": 0.05},
        {"stages": 3, "fraction": 0.3},
    ),
    mistakes={
        "that is Megatron-LM's ratio of bubble to useful time; "
        "asked is the part of the whole": lambda stages, fraction: (stages - 1) / fraction,
        "a pipeline of p stages fills in p - 1 slots": lambda stages, fraction: (
            stages * (1 - fraction) / fraction
        ),
        "that is the bubble in slots; divide by the fraction": lambda stages, fraction: (
            (stages - 1) * (1 - fraction)
        ),
    },
    praise="filling and draining take the same slots however many micro-batches there are, so more of "
    "them dilute the bubble",
)
