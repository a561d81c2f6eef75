"""Lesson 02's training by hand, in one process: notes on it, steps that differ from the learner's, and tests
that look at what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from helpers.course import corpus, job, models
from helpers.course.exercises.solutions.training_memory import mixed_step_solution
from helpers.course.training.comparable import weights_of
from helpers.tools import theory
from helpers.tools.measure.ledger import Ledger

Tensors = Sequence[torch.Tensor]


class Notes:
    """Notes on a training in one process; enter them around its steps, each of which begins with passes.

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
        self._open, self.ledger, self._marks = ExitStack(), Ledger("cpu") if memory else None, set()
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

    def passes(self, split: Callable, micro_batches: Sequence[Tensors]) -> None:
        """The passes of a step's micro-batches by `split`; what comes behind them is the optimizer's step."""
        self._mark("passes")
        self.losses.append(float(split(self.model, micro_batches)))
        self._mark("step", looks=True)

    def both_passes(self, rows: Tensors) -> None:
        """A forward and a backward pass of a whole step's rows."""
        self._mark("forward")
        loss = self.model(*rows)
        self._mark("backward")
        loss.backward()
        self.losses.append(loss.item())
        del loss
        self._mark("step", looks=True)

    def _mark(self, phase, looks=False):
        self._marks.add(phase)
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
            first = next(moment for moment in ("forward", "passes") if moment in self._marks)
            names, history = ("after backward", "after step"), self.ledger.history(first, "end")
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


def train(
    step: Callable[..., None],
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    lr: float = 1e-3,
    dtype: torch.dtype = torch.bfloat16,
    steps: int = 3,
    sequences: int = 8,
    seed: int = 0,
    memory: bool = True,
    split: Callable | None = None,
    micro_batches: int = 1,
    **model: object,
) -> dict:
    """A small GPT, trained with `step(weights, masters, optimizer)`: what `Notes.report` returns.

    Args:
        make: of masters and `lr=` an optimizer.
        split: what makes the passes of a step's micro-batches; without it they are made at once.
        model: of `built`.
    """
    gpt = built(seed=seed, **model).to(dtype)
    weights = list(gpt.parameters())
    masters = [weight.detach().float() for weight in weights]
    optimizer = make(masters, lr=lr)
    with Notes(gpt, masters, optimizer, memory) as notes:
        for number in range(steps):
            rows = corpus.batch(1000 * seed + number, sequences, 32)
            if split:
                notes.passes(split, list(zip(*(part.chunk(micro_batches) for part in rows))))
            else:
                notes.both_passes(rows)
            step(weights, masters, optimizer)
    return notes.report()


def losses_with(step: Callable[..., None]) -> dict[str, list[list[float]]]:
    """For `plots.over_seeds`: losses of 40 small steps from three seeds, by fp32, by `step` in bf16, and by
    steps that keep no masters."""
    ways = {"fp32": (step, torch.float32), "fp32 masters": (step, torch.bfloat16)}
    ways["no masters, rounded to nearest"] = rounded_to_nearest, torch.bfloat16
    ways["no masters, rounded at random"] = rounded_at_random, torch.bfloat16
    rest = {"lr": 3e-5, "steps": 40, "sequences": 4, "memory": False}
    return {
        way: [train(one, dtype=dtype, seed=seed, **rest)["losses"] for seed in range(3)]
        for way, (one, dtype) in ways.items()
    }


def undivided(split: Callable, model: torch.nn.Module, micro_batches: Sequence[Tensors]) -> float:
    """`split` with a bug: nobody divides by the number of micro-batches."""
    loss = split(model, micro_batches)
    for weight in model.parameters():
        weight.grad *= len(micro_batches)
    return loss


def update_without_division(step: Callable[..., None], split: Callable, count: int = 4) -> dict[str, float]:
    """{optimizer: how many times as long its first update is if gradients of `count` micro-batches are added
    and not divided}."""
    found = {}
    for make in (torch.optim.SGD, torch.optim.AdamW):
        ways = {"make": make, "steps": 1, "memory": False, "micro_batches": count}
        reports = [train(step, split=one, **ways) for one in (partial(undivided, split), split)]
        more, right = ((one["masters"] - one["start"]).norm().item() for one in reports)
        found[make.__name__] = round(more / right, 2)
    return found


def after_an_empty_step(masters: Tensors, lr: float, **ways: object) -> torch.optim.Optimizer:
    """AdamW that has its states already, as DeepSpeed makes it in mixed precision: it stepped once with
    gradients of zero."""
    optimizer = torch.optim.AdamW(masters, lr=lr, **ways)
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


def held_by_length(
    config: Mapping[str, object], lengths: Sequence[int]
) -> dict[str, dict[str, dict[str, float]]]:
    """What a Llama's training holds at the loss of one sequence, for `plots.memory_bars`, {tokens: {way:
    {category: bytes}}}: all kept; the results of matrix products and of attention, and the block's input;
    that input alone.  "other" are the logits."""
    size, found = theory.LlamaSize.of(config), {}
    products = 2 * (4 * size.width + 2 * size.kv_width + 2 * size.feed_forward)
    for tokens in lengths:
        plan = partial(theory.Plan, size=size, gpus=1, batch=2, sequence=tokens)  # two: gradients are there
        kept = {"all": plan().kept, "selective": products * tokens, "inputs": plan(checkpointed=True).kept}
        states = theory.ideal_bytes(plan().parameters)
        found[f"{tokens:,} tokens"] = {
            way: states | {"activations": size.layers * each, "other": 12 * tokens * size.vocabulary}
            for way, each in kept.items()
        }
    return found


def in_the_step_by_adam(parameters: float) -> dict[str, dict[str, dict[str, float]]]:
    """For `plots.memory_bars`: what a GPU holds at the highest moment of the optimizer's step, {whose:
    {way: {category: bytes}}}.  "other" are fp32 copies that live in the step alone."""
    states = theory.ideal_bytes(parameters)
    adams = {"torch's fused": 4, "torch's default": 8, "its own FusedAdam": 8}
    bars = {adam: states | {"other": more * parameters} for adam, more in adams.items()}
    mine = states | {"gradients": 0, "other": 4 * parameters}
    return {"by you": {"your step": mine}, "by DeepSpeed, with an Adam": bars}


def out_of_memory(run: object) -> tuple[str, float, float]:
    """Of a run that ended with torch's error: the error without its advice, the bytes that the process had,
    and the bytes of tensors."""
    amounts = (run.error.partition(words)[2] for words in ("process has ", "allocated memory "))
    in_use, allocated = (float(amount.split()[0]) * 2**30 for amount in amounts)
    return run.error.partition(" If reserved")[0], in_use, allocated


def spare_on_a_b200(at_the_loss: Callable, in_the_step: Callable, room: float) -> dict[str, dict]:
    """For `plots.curves`: GB that the course's job leaves of a B200's `room` at two moments, by the number of
    blocks that are checkpointed; where that begins to fit and ends to help; with every block's recomputation
    selective; and three rehearsals.  Between none and all, every block saves the same."""
    name, config = "1 B200, fused by torch", job.MODELS["8 B"]
    shape = {"gpus": 1, "batch": job.SEQUENCES, "sequence": job.SEQUENCE}
    plan = partial(theory.Plan, size=theory.LlamaSize.of(config), **shape)
    none, every = (at_the_loss(plan(checkpointed=again)) for again in (False, True))
    loss = [(room - none - (every - none) * blocks / 32) / 1e9 for blocks in range(33)]
    step = 33 * [(room - in_the_step(plan())) / 1e9]
    plans = {0: f"{name}, not checkpointed", 8: f"{name}, 8 of 32 blocks checkpointed", 32: name}
    held = [(room - job.peak(one)) / 1e9 for one in plans.values()]
    (ways,) = held_by_length(config, [job.SEQUENCE]).values()
    points = {"rehearsed peak": (list(plans), held)}
    points["all selective"] = [0], [(room - sum(ways["selective"].values())) / 1e9]
    least = next(blocks for blocks in range(33) if loss[blocks] > 0)
    most = next(blocks for blocks in range(33) if loss[blocks] > step[0])
    points |= {f"{least} blocks": ([least], [loss[least]]), f"{most} blocks": ([most], [step[0]])}
    return {"lines": {"at the loss": (range(33), loss), "in the step": (range(33), step)}, "points": points}


def sums_apart(counts: Sequence[int]) -> dict[str, dict[str, str]]:
    """How far the gradients of so many micro-batches, added one by one, are off in bf16 from the same sum in
    fp32, relative to its norm, and how far the fp32 sum of as many other micro-batches is: a row for each."""
    model, ways = built().bfloat16(), (torch.bfloat16, torch.float32)
    weights, most = list(model.parameters()), max(counts)

    def sums(first: int) -> dict[int, list[torch.Tensor]]:
        totals = [[torch.zeros_like(weight, dtype=way) for weight in weights] for way in ways]
        found = {}
        for number in range(1, most + 1):
            model(*corpus.batch(first + number, 2, 32)).backward()
            for total, way in zip(totals, ways):
                torch._foreach_add_(total, [weight.grad.to(way) for weight in weights])
            model.zero_grad()
            if number in counts:
                found[number] = [torch.cat([one.double().flatten() for one in total]) for total in totals]
        return found

    these, others, rows = sums(0), sums(most), {}
    for count in counts:
        (low, high), (_, other) = these[count], others[count]
        row = {"summed in bf16": f"{float((low - high).norm() / high.norm()):.1%}"}
        row["other micro-batches"] = f"{float((other - high).norm() / high.norm()):.0%}"
        rows[f"{count} gradients"] = row
    return rows


# --- steps that a learner's can be replaced with


def rounded_to_nearest(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """`mixed_step` with masters that keep nothing: each step reads them from the rounded weights."""
    for weight, master in zip(weights, masters):
        master.copy_(weight.detach())
    mixed_step_solution(weights, masters, optimizer)


def rounded_at_random(weights: Tensors, masters: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """The same, but what becomes of the masters is rounded at random, so that the mean is right."""
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
