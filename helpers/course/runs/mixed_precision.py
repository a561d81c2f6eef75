"""Lesson 02's training by hand, in one process: notes on it, steps that differ from the learner's, and tests
that look at what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from helpers.course import corpus, models
from helpers.course.exercises.solutions.training_memory import mixed_step_solution
from helpers.course.training.comparable import weights_of
from helpers.tools import theory
from helpers.tools.measure.ledger import Ledger

Tensors = Sequence[torch.Tensor]


class Notes:
    """Notes on a training in one process; enter them around its steps, each of which begins with `passes`.

    Args:
        masters: what `optimizer` updates; the model's own weights where it has no others.
        memory: whether to count bytes, which takes time.

    Attributes:
        losses: of each step.
    """

    def __init__(
        self, model: torch.nn.Module, masters: Tensors, optimizer: torch.optim.Optimizer, memory: bool = True
    ) -> None:
        self.model, self.masters, self.losses, self.start = model, masters, [], weights_of(model)
        self._open, self.ledger = ExitStack(), Ledger("cpu") if memory else None
        if self.ledger:
            self.ledger.watch(model, optimizer)
            weights = set(map(id, model.parameters()))
            for master in masters:
                if id(master) not in weights:
                    self.ledger.label("master weights", master)

    def __enter__(self) -> Notes:
        if self.ledger:
            self._open.enter_context(self.ledger)
        return self

    def passes(self, model: torch.nn.Module, rows: Tensors) -> None:
        """A forward and a backward pass of a step's rows; what comes behind them is the optimizer's step."""
        self._mark("forward")
        loss = model(*rows)
        self._mark("backward")
        loss.backward()
        self.losses.append(loss.item())
        del loss
        self._mark("step", looks=True)

    def _mark(self, phase, looks=False):
        if self.ledger:
            (self.ledger.snapshot if looks else self.ledger.mark)(phase)

    def __exit__(self, *problem: object) -> None:
        if self.ledger:
            self.ledger.snapshot("end")
        self._open.close()

    def report(self) -> dict:
        """{"losses", "start", "weights", "masters": tensors of all}, and of the last step, where bytes are
        counted, "moments": {"after backward", "after step": `Snapshot`} and its "history"."""
        masters = torch.cat([master.detach().float().flatten() for master in self.masters])
        report = {"losses": self.losses, "start": self.start, "weights": weights_of(self.model)}
        if self.ledger:
            names, history = ("after backward", "after step"), self.ledger.history("forward", "end")
            report |= {"moments": dict(zip(names, self.ledger.snapshots[-2:])), "history": history}
        return report | {"masters": masters}


def built(
    again: Callable | None = None, seed: int = 0, size: models.GPTSize = models.TINY
) -> torch.nn.Module:
    """The course's GPT; with `again`, each block is called as `again(its forward pass, x)`."""
    model = models.build(models.GPT, size, seed=seed)
    for block in model.blocks if again else ():
        block.forward = partial(again, block.forward)
    return model


def after_an_empty_step(masters: Tensors, lr: float) -> torch.optim.Optimizer:
    """AdamW that has its states already, as DeepSpeed makes it in mixed precision: it stepped once with
    gradients of zero."""
    optimizer = torch.optim.AdamW(masters, lr=lr)
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def one_weight(step: Callable[..., None], steps: int = 40) -> dict[str, tuple[range, list[float]]]:
    """How far a weight of 1 has come after each step of SGD by a thousandth, in thousandths, for
    `plots.curves`: a master and its bf16 weight by `step`, and a bf16 weight alone."""
    lines = {"fp32 master": [0.0], "its bf16 weight": [0.0], "bf16 alone": [0.0]}
    weight, alone = (torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16)) for _ in range(2))
    master = weight.detach().float()
    sgd, own = torch.optim.SGD([master], lr=1e-3), torch.optim.SGD([alone], lr=1e-3)
    for _ in range(steps):
        weight.grad, alone.grad = torch.ones_like(weight), torch.ones_like(alone)
        step([weight], [master], sgd)
        own.step()
        for line, value in zip(lines.values(), (master, weight, alone)):
            line.append(round(1000 * (1 - value.item()), 3))
    stairs = {name: [moved for moved in line for _ in range(2)][:-1] for name, line in lines.items()}
    return {name: (sorted([*range(steps + 1), *range(1, steps + 1)]), line) for name, line in stairs.items()}


def kept_by_length(shapes: Mapping[str, Mapping]) -> dict[str, dict[str, tuple[list[int], list[float]]]]:
    """{name: GB that all blocks of a Llama keep of a sequence}, for `plots.by_length`: all that the backward
    pass reads; the results of matrix products and of attention, and the block's input; that input alone."""
    lengths, found = [2**power for power in range(10, 18)], {}
    for name, config in shapes.items():
        size = theory.LlamaSize.of(config)
        products = 2 * (4 * size.width + 2 * size.kv_width + 2 * size.feed_forward)
        plan = partial(theory.Plan, size=size, gpus=1, batch=1)
        kept = {
            "all kept": [plan(sequence=tokens).kept for tokens in lengths],
            "selective": [products * tokens for tokens in lengths],
            "checkpointed": [plan(sequence=tokens, checkpointed=True).kept for tokens in lengths],
        }
        found[name] = {
            way: (lengths, [size.layers * each / 1e9 for each in sizes]) for way, sizes in kept.items()
        }
    return found


def sums_apart(counts: Sequence[int]) -> dict[str, dict[str, str]]:
    """How far the gradients of so many micro-batches, added one by one, are off in bf16 from the same sum in
    fp32, relative to its norm: a row for each count."""
    model, found, ways = built().bfloat16(), {}, (torch.bfloat16, torch.float32)
    weights = list(model.parameters())
    sums = [[torch.zeros_like(weight, dtype=way) for weight in weights] for way in ways]
    for number in range(1, max(counts) + 1):
        model(*corpus.batch(number, 2, 32)).backward()
        for total, way in zip(sums, ways):
            torch._foreach_add_(total, [weight.grad.to(way) for weight in weights])
        model.zero_grad()
        low, high = (torch.cat([one.double().flatten() for one in total]) for total in sums)
        found[number] = float((low - high).norm() / high.norm())
    return {f"{count} gradients": {"bf16 off": f"{found[count]:.1%}"} for count in counts}


# --- steps that a learner's can be replaced with


def in_place(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer updates the model's weights themselves, in their own dtype: masters are the weights."""
    optimizer.step()
    optimizer.zero_grad()


def rounded_at_random(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """`mixed_step` with masters that keep nothing: each step reads them from the weights, and rounds what
    becomes of them up or down at random, so that the mean is right."""
    for weight, master in zip(weights, masters):
        master.copy_(weight.detach())
        master.grad, weight.grad = weight.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            bits = master.view(torch.int32) + torch.randint(2**16, master.shape, dtype=torch.int32)
            weight.copy_((bits & -(2**16)).view(torch.float32))
            master.grad = None


def left_zeros(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """`mixed_step` with a bug: gradients become zeros, and stay."""
    mixed_step_solution(weights, masters, optimizer)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)


def left_gradients(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """`mixed_step` with a bug: the weights' gradients stay, and the next backward pass adds to them."""
    gradients = [weight.grad for weight in weights]
    mixed_step_solution(weights, masters, optimizer)
    for weight, gradient in zip(weights, gradients):
        weight.grad = gradient
