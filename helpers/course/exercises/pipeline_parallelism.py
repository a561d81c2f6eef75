"""Lesson 06: the order in which a rank works, its two passes, and what waiting costs."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers import paths
from helpers.course.exercises import planner
from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.comparing import described, kind, plain
from helpers.course.exercises.editing import edit, source_of
from helpers.course.exercises.engine import Check, before_running, first_thought, reading_note
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.reading import is_unwritten, names_of
from helpers.course.exercises.start_here_script import FOOT
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.telling import tell
from helpers.tools.theory import schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from helpers.course.exercises.seeing import See
    from helpers.course.plots.style import Plot

stubs = Stubs("pipeline_parallelism")
SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}  # how long an action takes; what the lesson counts with
CASES = ((4, 8), (2, 3), (4, 2), (3, 7), (1, 2))  # stages and micro-batches of schedules that are looked at
WIDTH = 5


# --- schedules


def properties(orders: list[list[tuple]]) -> dict[str, object]:
    """What can be said of a schedule without carrying it out: {name: value}; the later names are missing
    where it cannot be carried out."""
    actions = {"actions": [sorted(order) for order in orders]}
    try:
        timelines = schedules.replay(orders, SLOTS)
    except ValueError as error:
        return actions | {"deadlock": str(error)}
    held = [schedules.most_in_flight(order) for order in orders]
    return actions | {"deadlock": "", "held": held, "idle": round(schedules.idle_fraction(timelines), 6)}


def differing(got: dict[str, object], right: dict[str, object]) -> str:
    """In words, what of a schedule's properties is not as good as it should be first; "" where all are."""
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
        if mine > due:
            return f"rank {rank} has up to {mine} in flight at once where {due} is right"
    if got["idle"] > right["idle"]:
        return f"{100 * got['idle']:.1f} % of the time is idle where {100 * right['idle']:.1f} % is right"
    return ""


def no_action(action: object) -> bool:
    match action:
        case (str(kind), int(), int()) if kind in SLOTS:
            return False
    return True


@dataclass
class Schedule(Check):
    """An order of actions to write: what counts is that all is done, that nobody waits for ever, what is in
    flight and what is idle."""

    cases: tuple[tuple[int, int], ...] = CASES

    def verdict(self, answer: object) -> str:
        if ready := before_running(answer, names_of(self.solution), self.solution, "code", by_position=True):
            return ready
        found = called(answer, self.cases)
        for ranks, count in self.cases:
            orders = []
            for rank in range(ranks):
                order, failure = found[rank, ranks, count]
                if wrong := failure and f"your function {failure}" or no_order(order):
                    return f"not yet: for rank={rank}, ranks={ranks}, count={count} {wrong}"
                orders.append([tuple(action) for action in order])
            if wrong := self.wrong(orders, ranks, count):
                return f"not yet: with {ranks} ranks and {count} micro-batches: {wrong}"
        how = f"for {len(self.cases)} pipelines{self.score(found)}"
        return self.correct(how) + reading_note(answer, self.solution)

    def score(self, found: dict[tuple[int, int, int], tuple]) -> str:
        """What to add about an answer that passes."""
        return ""

    def wrong(self, orders: list[list[tuple]], ranks: int, count: int) -> str:
        def of(function: Callable) -> dict[str, object]:
            return properties([function(rank, ranks, count) for rank in range(ranks)])

        got = properties(orders)
        if wrong := differing(got, of(self.solution)):
            mistaken = {words: of(function) for words, function in self.mistaken().items()}
            return wrong + first_thought(mistaken, lambda mistake: mistake == got)
        return ""

    def mistaken(self) -> dict[str, Callable]:
        """{what to think about: a wrong answer}."""
        names = {rung.name: rung.solution for rung in self.rungs}
        return {words: edit(self.solution, *change, names=names) for words, change in self.mistakes.items()}


def called(function: Callable, cases: Iterable[tuple[int, int]]) -> dict[tuple[int, int, int], tuple]:
    """{(rank, ranks, count): (its order, how it failed)}."""
    each = [(rank, *case) for case in cases for rank in range(case[0])]
    calls = [dict(zip(names_of(function), call)) for call in each]
    with closing(call_with_each(as_lists(function), calls)) as outcomes:
        return dict(zip(each, outcomes))


def as_lists(function: Callable) -> Callable:
    """A function whose actions come as a list of tuples, whatever it returns them in."""

    def listed(**given: object) -> object:
        order = function(*given.values())
        return order if order is None else [tuple(action) for action in order]

    return listed


def no_order(order: object) -> str:
    """What is wrong with what should be a list of actions; else ""."""
    if order is None:
        return "your function returns nothing"
    if not isinstance(order, (list, tuple)):
        return f"your function gives {order!r}, which is no list of actions"
    if wrong := [action for action in order if no_action(tuple(action))]:
        return f'your list holds {tuple(wrong[0])!r}, which is no action such as ("F", rank, micro)'
    return ""


one_f_one_b = stubs.check(Schedule, "one_f_one_b")


@dataclass
class Capped(Schedule):
    """A schedule with at most `most` micro-batches in flight; scored by what is idle."""

    most: int = 2
    cases: tuple[tuple[int, int], ...] = ((4, 8), (4, 2), (2, 3))

    def wrong(self, orders: list[list[tuple]], ranks: int, count: int) -> str:
        got, alone = properties(orders), properties([one_by_one(rank, count) for rank in range(ranks)])
        if wrong := differing(got, alone | {"held": [self.most] * ranks}):
            return wrong
        easily = properties([in_groups(rank, count, self.most) for rank in range(ranks)])["idle"]
        if got["idle"] <= easily:
            return ""
        return f"{100 * got['idle']:.1f} % of the time is idle, and {100 * easily:.1f} % is possible easily"

    def score(self, found: dict[tuple[int, int, int], tuple]) -> str:
        ranks, count = self.cases[0]
        orders = [[tuple(action) for action in found[rank, ranks, count][0]] for rank in range(ranks)]
        return f" (yours idles {100 * properties(orders)['idle']:.1f} % of the first)"


def in_groups(rank: int, count: int, most: int) -> list[tuple]:
    """So many micro-batches at a time, each group as in GPipe."""
    groups = [range(first, min(first + most, count)) for first in range(0, count, most)]
    return [(kind, rank, micro) for group in groups for kind in "FB" for micro in group]


def one_by_one(rank: int, count: int) -> list[tuple]:
    return [(kind, rank, micro) for micro in range(count) for kind in "FB"]


two_in_flight = stubs.check(Capped, "two_in_flight")
zero_bubble = stubs.check(Schedule, "zero_bubble", rungs=[one_f_one_b])


def draw(function: Callable, ranks: int = 4, count: int = 8) -> Plot | None:
    """A schedule's figure, without any rank: when each action would happen, forward 1 slot and backward 2; or
    words on why there is none."""
    from helpers.course import plots

    if is_unwritten(function):
        return tell("not written yet: this cell draws your schedule, as often as you like")
    orders = []
    for (rank, *_), (order, failure) in called(function, [(ranks, count)]).items():
        if wrong := failure and f"your function {failure}" or no_order(order):
            return tell(f"not yet: for rank {rank} {wrong}")
        if not order:
            return tell(f"not yet: rank {rank} does nothing so far, and nothing is drawn until all ranks do")
        orders.append([tuple(action) for action in order])
    try:
        timelines = schedules.replay(orders, SLOTS)
    except ValueError as error:
        return tell(f"not yet: {error}")
    if missing := lacking(orders, count):
        tell(f"not yet: {missing}; drawn is what there is")
    title = f"{function.__name__}: {count} micro-batches on {ranks} ranks"
    return plots.pipeline_schedules({"yours": timelines}, title, "slots")


def lacking(orders: list[list[tuple]], count: int) -> str:
    """In words, the first pass of a step that a rank has left out; else ""."""
    kinds = "FIW" if any(action[0] in "IW" for order in orders for action in order) else "FB"
    for rank, order in enumerate(orders):
        for due in ((pass_, rank, micro) for pass_ in kinds for micro in range(count)):
            if due not in order:
                return f"rank {rank} never does {due!r}"
    return ""


# --- a rank's two passes


PLACES = {  # roles that a rank plays in its trial
    ", as the first rank of four": 0,
    ", as a rank in the middle of four": 1,
    ", as the last rank of four": 3,
}


class Bench:
    """What a pass gets as its worker: a small stage of four, and messages that come from nowhere and are
    noted."""

    def __init__(self, see: See, rank: int, count: int) -> None:
        self.rank, self.ranks, self.count = rank, 4, count
        self.first, self.last = self.rank == 0, self.rank == self.ranks - 1
        inner = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        self.layers = nn.Sequential(*([nn.Embedding(7, WIDTH)] if self.first else []), *inner)
        self.ids = [torch.randint(7, (2, 3)) for _ in range(count)]
        self.targets = [torch.randn(2, 3, WIDTH) for _ in range(count)]
        self.arriving = {micro: see.randn(count, 2, 3, WIDTH)[micro] + 1 for micro in range(count)}
        self.kept, self.losses, self.sent, self.received = {}, [], [], []

    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (y - targets).square().mean()

    def send(self, tensor: torch.Tensor, to: int, micro: int) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"send a tensor, not {tensor!r}")
        self.sent.append((to, micro, tensor.detach()))  # read at the end: it must live until then

    def receive(self, source: int, micro: int) -> torch.Tensor:
        self.received.append((source, micro))
        return self.arriving[micro].clone()

    def told(self, see: See) -> None:
        """What went to whom, and came from whom."""
        see("messages received, (from rank, micro-batch)", str(self.received))
        see("messages sent, (to rank, micro-batch)", str([(to, micro) for to, micro, _ in self.sent]))
        for to, micro, tensor in self.sent:
            see(f"what is sent to rank {to} for micro-batch {micro}", tensor)


@stubs.in_ranks()
def forward(see: See, answer: Callable) -> None:
    """Three micro-batches forward, at three places of the line; then the gradients of what was kept."""
    for place in see.each(PLACES):
        worker = Bench(see, place, 3)
        for micro in range(3):
            see.call(answer, worker, micro)
        worker.told(see)
        see("the losses", [float(loss) for loss in worker.losses])
        see("micro-batches in worker.kept", sorted(worker.kept))
        for micro, pair in worker.kept.items():
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
                raise TypeError("worker.kept[micro] is the pair (x, y)")
            x, y = pair
            see(f"x of micro-batch {micro}", x.detach())
            see(f"y of micro-batch {micro}", y.detach())
            see(f"x of micro-batch {micro} asks for a gradient", x.requires_grad)
            see(f"y of micro-batch {micro} knows how it was computed", y.grad_fn is not None)
            if x.requires_grad and y.grad_fn is not None:
                y.sum().backward()
                see(f"the gradient of x of micro-batch {micro}", x.grad)


@stubs.in_ranks()
def backward(see: See, answer: Callable) -> None:
    """Three micro-batches forward by the course, and two of them back, at three places of the line."""
    for place in see.each(PLACES):
        worker = Bench(see, place, 3)
        for micro in range(3):
            stubs.solutions.forward_solution(worker, micro)
        worker.received.clear()
        worker.sent.clear()
        for micro in range(2):
            see.call(answer, worker, micro)
            for name, weight in worker.layers.named_parameters():
                gradient = None if weight.grad is None else weight.grad.clone()
                see(f"the gradient of the stage's {name} after micro-batch {micro}", gradient)
        worker.told(see)
        see("micro-batches that are still kept", sorted(worker.kept))


@stubs.in_ranks()
def send_and_wait(see: See, answer: Callable) -> None:
    """From even ranks to odd ones, which receive late."""
    tensor, late = torch.randn(3) + see.rank, 0.4
    worker = type("Worker", (), {"rank": see.rank, "under_way": []})()
    see.meet()
    if see.rank % 2:
        time.sleep(late)
        found = torch.empty(3)
        dist.recv(found, see.rank - 1, tag=see.seed % 5)
        see("what arrives", found)
    else:
        begin = time.monotonic()
        see.call(answer, worker, tensor, see.rank + 1, see.seed % 5)
        see("it waits until the other rank receives", time.monotonic() - begin > late / 2)
    see("nothing is left in worker.under_way", not worker.under_way)
    see.meet()  # until then an `isend` may be under way


# --- seconds


bubble = stubs.formula(
    "bubble",
    [
        ([60.0] * 4, 8),
        ([2.0, 3.0], 8),
        ([3.0, 2.0, 5.0], 4),
        ([5.0, 2.0, 3.0], 4),
        ([1.0], 4),
        ([4.0, 1.0, 1.0, 1.0], 1),
    ],
    then=planner.keep,
)


# --- a decision


def cut(blocks: object, whole: int = 32, stages: int = 8) -> dict[str, list[int]]:
    """{"yours": the blocks of each stage as a learner wrote them}; or words on what is missing, and {}."""
    if blocks is ... or blocks is None:
        return tell("not written yet: put your eight numbers in the place of the dots") or {}
    found = plain(blocks)
    if not isinstance(found, (list, tuple)) or any(kind(one) != "number" for one in found):
        return tell(f"not yet: a cut is a list of {stages} numbers, not {described(blocks)}") or {}
    if len(found) != stages or sum(found) != whole or any(one < 0 or one != int(one) for one in found):
        said = f"{len(found)} numbers that add up to {sum(found):g}"
        return tell(f"not yet: {stages} stages have {whole} blocks in all, and yours are {said}") or {}
    return {"yours": [int(one) for one in found]}


# --- an exercise


@stubs.in_ranks(together=True)
def clip(see: See, answer: Callable) -> None:
    """Stages of different sizes, whose norm is above the limit and below it; and one of which the first
    stage's own norm is below it."""
    cases = {"": (0.5, 1), ", where nothing has to be clipped": (1e3, 1)}
    cases[", where the first stage's own norm is below the limit"] = (0.5, 1e-3)
    for most, small in see.each(cases):
        model = nn.Linear(3 + see.rank, 4)
        for parameter in model.parameters():
            parameter.grad = (see.randn(*parameter.shape) + see.rank) * (1 if see.rank else small)
        see.call(answer, list(model.parameters()), most)
        for name, parameter in model.named_parameters():
            see(f"the gradient of the stage's {name}", parameter.grad)


# --- the learner's script

NAME = "pipeline.py"
HEAD = '''"""A pipeline with 1F1B: torchrun --standalone --nproc-per-node 2 pipeline.py"""

from functools import partial

import torch
from torch import distributed as dist
from torch import nn

WIDTH, LENGTH, MICRO = 64, 16, 4
SHAPE = MICRO, LENGTH, WIDTH  # of a message
'''
MAIN = """class Report:
    def __init__(self):
        self.losses = []

    def note(self, action, kept):
        assert kept <= dist.get_world_size() - dist.get_rank(), f"too many in flight after {action}"


def counting(step, count):
    generator = torch.Generator().manual_seed(step)  # the same on all ranks of a line
    starts = torch.randint(64, (count, MICRO, 1), generator=generator)
    tokens = (starts + torch.arange(LENGTH + 1)) % 64
    return [(one[:, :-1], one[:, 1:]) for one in tokens]


def loss_of(y, targets):
    return nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten())


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)]
    layers = [nn.Embedding(64, WIDTH), *blocks, nn.Linear(WIDTH, 64)]
    each = len(layers) // ranks
    worker = Worker(nn.Sequential(*layers[rank * each : (rank + 1) * each]), send)
    adam = torch.optim.AdamW(worker.layers.parameters(), lr=3e-3)
    report = Report()
    for step in range(60):
        one_step(worker, one_f_one_b(rank, ranks, 8), counting(step, 8), report)
        adam.step()
        adam.zero_grad()
    end(worker, report.losses)


"""


def end(worker: object, losses: list[float]) -> None:
    """Assert that nothing is in flight any more and that the loss has fallen, and leave the others."""
    assert not worker.kept, "micro-batches are still in flight"
    assert not worker.last or losses[-1] < 0.5, f"the loss is still {losses[-1]:.2f}"
    count = sum(parameter.numel() for parameter in worker.layers.parameters())
    said = "; the loss has fallen" if worker.last else ""
    print(f"rank {worker.rank}: {count:,} weights, nothing in flight{said}")
    dist.destroy_process_group()


def script(*parts: Callable) -> str:
    """The text of `pipeline.py`: functions and classes, the course's under the learner's names; kept in
    `work/`, too, unless a file of that name is there."""
    texts = [source_of(one).replace("_solution(", "(", 1).rstrip() for one in (*parts, end)]
    text = "\n\n\n".join([HEAD.rstrip(), *texts, MAIN + FOOT])
    for name, instead in {"staged.SHAPE": "SHAPE", "models.next_token_loss": "loss_of"}.items():
        text = text.replace(name, instead)
    text = text.replace("worker: object, losses: list[float]) -> None", "worker, losses)")
    file = paths.WORK / NAME
    if Path.cwd().resolve() == paths.WORK.resolve() and not file.exists():
        file.write_text(text)
        tell(f"{NAME} is in your folder.")
    return text
