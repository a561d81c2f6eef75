"""Lesson 04: the rungs of data parallelism, a bug to plant, and what of a message can hide."""

from __future__ import annotations

import copy
import linecache
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises import keeping, planner
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import helped, returned, seed_of_rank
from helpers.course.exercises.start_here_script import FOOT, HEAD, NAME
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.telling import tell
from helpers.tools import theory
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("data_parallelism")
WIDTH = 6


# torch's own generator is alike on all ranks at the beginning of a trial, and so are models and sizes.


def layers(widths: list[int]) -> nn.Sequential:
    """Linear layers with biases, of which the second's bias is frozen."""
    model = nn.Sequential(*(nn.Linear(ins, outs) for ins, outs in zip(widths, widths[1:])))
    model[1].bias.requires_grad_(False)
    return model


def is_left_over(sizes: list[int], full: int) -> bool:
    """Whether the last bucket does not get full."""
    waiting = 0
    for size in sizes:
        waiting = 0 if waiting + size >= full else waiting + size
    return waiting > 0


def layers_and_size(seed: int) -> tuple[nn.Sequential, int]:
    """Layers of unequal widths, and a bucket that the first three or four gradients of a backward pass fill
    to the element; later ones overflow, and the last is not full, neither after one pass nor after two that
    share their buckets."""
    sizes, full = [], 0
    while not (is_left_over(sizes, full) and is_left_over(sizes * 2, full)):
        model = layers([WIDTH, *torch.randint(3, 9, (4,)).tolist(), WIDTH, WIDTH])
        trained = [tensor for layer in reversed(model) for tensor in (layer.bias, layer.weight)]
        sizes = [tensor.numel() for tensor in trained if tensor.requires_grad]
        full = sum(sizes[: 3 + seed % 2])
    return model, full


def gradients(see: See, model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            see(f"the gradient of {name}", None if parameter.grad is None else parameter.grad.clone())


class Loss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (self.inside(rows) - targets).square().mean()


# --- the rungs


@stubs.in_ranks(together=True)
def same_start(see: See, answer: Callable) -> None:
    """Each rank's seed is its own; a layer is frozen, and a norm has buffers, one of them a whole number, and
    one that no state dict holds."""
    torch.manual_seed(seed_of_rank(see.seed))
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].running_mean.copy_(torch.randn(4))
    model[1].num_batches_tracked += 1 + see.rank
    model[2].register_buffer("scale", torch.randn(3), persistent=False)
    model[2].requires_grad_(False)
    before = dict(model.named_parameters())
    see.call(answer, model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        see(f"the model's {name}", tensor.detach().clone())
    after = dict(model.named_parameters())
    see("its parameters are the objects that they were", all(after[name] is before[name] for name in before))
    see("those that are trained", [name for name, one in after.items() if one.requires_grad])
    see("no parameter belongs to a graph of autograd", all(one.is_leaf for one in after.values()))


@stubs.in_ranks()
def start(see: See, answer: Callable) -> None:
    """Two messages, one after the other, of tensors of several shapes."""
    shapes = [(3, 2 + see.seed % 5), (7,), (2, 2, 1 + see.seed % 3)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    values = iter(see.randn(2, 60).flatten().split(60))
    for _ in see.steps(2):
        for parameter, part in zip(parameters, next(values).split(20)):
            parameter.grad = part[: parameter.numel()].view(parameter.shape).clone()
        with Traffic() as traffic, Calls() as calls, helped(stubs.told["hints"]):
            due = "start must return a function, to be called later (`return finish`, without parentheses)"
            finish = returned(answer(list(parameters)), Callable, due)
            see("the elements of the messages that are begun", [call.elements for call in calls.made])
            see("start returns without waiting for its message", not calls.waited)
            see.meet()
            finish()
            see.meet()
        see("finish waits for the message", calls.all_waited_for)
        see("messages in all", len(calls.made))
        elements = sum(parameter.numel() for parameter in parameters)
        most = theory.wire_bytes("all_reduce", 4 * elements, see.ranks)
        see("no more bytes are sent than an all-reduce must send", sum(traffic.ideal.values()) <= most)
        for index, parameter in enumerate(parameters):
            see(f"gradient {index}", parameter.grad)


@stubs.in_ranks(together=True)
def collect(see: See, answer: Callable) -> None:
    """Three backward passes; then the same with buckets that a single gradient fills, so that nothing is left
    to flush."""
    model, full = layers_and_size(see.seed)
    for size in see.each({f", in buckets of {full}": full, ", in buckets of 1": 1}):
        model = copy.deepcopy(model)  # without the hooks of the first
        place = {parameter: index for index, parameter in enumerate(model.parameters())}
        arrived, sent = set(), []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(arrived.add)

        def send(parameters: list[nn.Parameter], sent: list = sent, arrived: set = arrived) -> None:
            sent.append((parameters, list(parameters), set(parameters) <= arrived))

        due = "collect must return a function, to be called after the backward pass (`return flush`)"
        flush = returned(answer(model, size, send), Callable, due)
        for _ in see.steps(3):
            sent.clear()
            arrived.clear()
            model(see.randn(5, WIDTH)).square().mean().backward()
            see("elements of what is sent during the pass", elements_in(sent))
            flush()
            see("elements of all that is sent", elements_in(sent))
            see("gradients are complete when they are sent", all(complete for *_, complete in sent))
            there = [sorted(place[parameter] for parameter in list(live)) for live, *_ in sent]
            see("the parameters in each list that was sent, numbered as in the model", there)
            model.zero_grad()


def elements_in(sent: list[tuple]) -> list[int]:
    """Of each list that was sent, as it was then."""
    return [sum(parameter.numel() for parameter in copied) for _, copied, _ in sent]


@stubs.in_ranks(rungs=(same_start, start, collect))
def replicas(see: See, answer: Callable) -> None:
    """Two steps of three micro-batches, the first two inside `no_sync`; then two steps of one."""
    model, full = layers_and_size(see.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += see.rank
    with helped(stubs.told["hints"]):
        judge_replicas(see, answer, model, full)


def judge_replicas(see: See, answer: Callable, model: nn.Module, full: int) -> None:
    due = "replicas must return two functions: `return finish, no_sync`"
    finish, no_sync = returned(answer(model, full), (tuple, list), due)
    rows = see.randn(8, 5, WIDTH).unbind()
    for name, parameter in model.named_parameters():
        see(f"{name} at the start", parameter.detach().clone())
    passes = iter(rows)
    for step in see.steps(4):
        with Calls() as calls:
            for _ in range(2 if step < 3 else 0):
                with no_sync():
                    model(next(passes)).square().mean().backward()
            see("messages sent inside no_sync", len(calls.made))
        with Calls() as calls:
            model(next(passes)).square().mean().backward()
            during = [call.elements for call in calls.made]
            see(f"elements of the messages sent during the last pass, in buckets of {full}", during)
            see("the backward pass waits for no message", not calls.waited)
            finish()
            see.meet()
        see("every message is waited for", calls.all_waited_for)
        see("elements sent in all", sum(call.elements for call in calls.made))
        gradients(see, model)
        model.zero_grad(set_to_none=False)


@stubs.in_ranks(together=True)
def one_step(see: See, answer: Callable) -> None:
    """Four micro-batches, then three; messages are counted."""
    inside, full = layers_and_size(see.seed)
    model = Loss(inside)
    finish, no_sync = stubs.solutions.replicas_solution(model, full)
    passes, quiet, forwards = [], [], []
    inside[0].weight.register_post_accumulate_grad_hook(passes.append)  # of the layer that comes last
    inside.register_forward_pre_hook(lambda *_: forwards.append(bool(quiet)))

    @contextmanager
    def noted() -> Iterator[None]:
        quiet.append(True)
        try:
            with no_sync():
                yield
        finally:
            quiet.pop()

    for count in see.each({", four micro-batches": 4, ", three": 3}):
        rows = see.randn(count, 2, 5, WIDTH)
        parts = [(part[0], part[1]) for part in rows]
        given = list(parts)
        passes.clear()
        forwards.clear()
        due = "return a plain number (`.item()` turns a one-element tensor into one)"
        with Calls() as calls:
            loss = see.call(answer, model, finish, noted, parts, returns=(int, float), due=due)
        gradients(see, model)
        see("the mean loss that was returned", loss)
        see("backward passes, one for each micro-batch, so that its activations can go", len(passes))
        kept = len(parts) == count and all(one is other for one, other in zip(parts, given))
        see("the list of micro-batches is as it was", kept)
        see("elements sent in the step", sum(call.elements for call in calls.made))
        see("the forward passes that ran inside no_sync", list(forwards))
        model.zero_grad()


forgets_the_rest = stubs.fault("forgets_the_rest", collect)

until_sent = stubs.formula(
    "until_sent",
    [
        ([2.0, 4.0, 6.0, 8.0], [3.0] * 4),  # the link falls behind
        ([2.0, 4.0, 6.0, 8.0], [1.0] * 4),  # it waits for each
        ([1.0, 1.5, 6.0], [2.0, 0.5, 0.25]),  # it does both
        ([0.4], [0.32]),
        ([0.1, 0.2, 0.7, 0.9], [0.3, 0.3, 0.4, 0.05]),
    ],
)

tokens_to_hide = stubs.formula(
    "tokens_to_hide",
    [(8.03e9, 400e12, 300e9, 8), (70.6e9, 400e12, 25e9, 64), (1.2e9, 70e12, 3e9, 2), (8e9, 1e15, 5e10, 1024)],
    near=1e-3,  # whole tokens are right, too
)


def known(exposed: Callable) -> str:
    """Keep the range in the learner's planner, and say in how many recorded steps the seconds lay in it."""
    from helpers.course import recorded

    rows = recorded.costs_of_messages("DDP")
    inside = sum(row.is_within(exposed) for row in rows)
    said = f"In {inside} of {len(rows)} recorded steps DDP's messages cost something between, within a tenth."
    return f"{planner.keep(exposed)} {said}".strip()


exposed = stubs.formula(
    "exposed", [(0.8, 0.0937), (0.8, 1.26), (0.4, 0.4), (0.0, 0.3), (2.5, 0.0)], then=known
)


# --- the exercises


def micro_batches(see: See) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two micro-batches of rows and targets; a target of -100 is padding and counts for nothing.

    The numbers of targets differ from micro-batch to micro-batch and from rank to rank, so that no two ways
    to weigh agree.
    """
    rows, found = see.randn(2, 8, WIDTH), []
    for at, count in enumerate((1 + see.seed % 3, 4 + see.rank % 4)):
        targets = torch.tensor(see.random().choices(range(WIDTH), k=8))
        targets[count:] = -100
        found.append((rows[at], targets))
    return found


@stubs.in_ranks(together=True)
def weighted_gradients(see: See, answer: Callable) -> None:
    """Ranks and micro-batches with unequal numbers of targets."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    see.call(answer, model, micro_batches(see))
    gradients(see, model)


# --- the learner's script


def begin() -> tuple[int, int, str]:
    """Join the other ranks: this one's number, how many there are, and its device."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.manual_seed(rank)  # each rank draws its own start
    return rank, ranks, f"cuda:{local}" if torch.cuda.is_available() else "cpu"


def end(model: nn.Module) -> None:
    """Say what the weights add up to, and leave the other ranks."""
    total = sum(one.double().sum().item() for one in model.parameters())
    print(f"rank {dist.get_rank()}: its weights add up to {total:.3f}")
    dist.destroy_process_group()


def script(main: Callable, *functions: Callable) -> str:
    """The text of `train.py` with a `main` and the functions that it calls, the course's under the learner's
    names; `begin` joins the ranks, `end` leaves them.

    It is kept in `work/`, too, where what the learner has changed stays.
    """
    used = (*functions, begin, end, main)
    texts = [source_of(one).replace("_solution(", "(", 1).rstrip() for one in used]
    texts = [text.replace("model: nn.Module) -> None", "model)") for text in texts]
    texts = [text.replace("begin() -> tuple[int, int, str]", "begin()") for text in texts]
    names, file = {"os": os, "torch": torch, "dist": dist}, f"<{NAME}>"
    text = "\n\n\n".join(texts) + "\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    if words := keeping.keep(names[main.__name__], NAME, f"{HEAD}\n\n{FOOT}"):
        tell(words)
    return "\n\n\n".join([HEAD.rstrip(), *texts, FOOT])
