"""Lesson 05: the rungs of tensor parallelism, a bug to plant, and a block's seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers import paths
from helpers.course.exercises import planner
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.data_parallelism import begin as begin
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.start_here_script import FOOT
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.telling import tell
from helpers.course.exercises.tokens import gather as gather
from helpers.course.exercises.tokens import scatter as scatter
from helpers.course.exercises.trials import complete
from helpers.course.exercises.trials import summed as summed
from helpers.course.models.llama import attend, rotated

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("tensor_parallelism")
PARTS = ("qkv", "out", "gate_up", "down")
IN_PLACE = "; `all_reduce` works in place and returns nothing: return the tensor that you gave it"


# torch's own generator is alike on all ranks at the beginning of a trial; `see.randn` differs from rank to
# rank.


@stubs.in_ranks(together=True)
def own_rows(see: See, answer: Callable) -> None:
    """Rows of several shapes of attention, with one key-value head for each rank and with more; then
    attention itself, whose parts the ranks add up."""
    groups = {", two query heads for each key": (2, 1), ", as many keys as queries": (1, 1), ", more": (3, 2)}
    for group, each in see.each(groups):
        kv_heads, width = see.ranks * each, 2 + 2 * (see.seed % 2)
        heads = group * kv_heads
        stacked = torch.randn((heads + 2 * kv_heads) * width, 6)
        before, shape = stacked.clone(), (see.rank, see.ranks, heads, kv_heads)
        rows = see.call(answer, stacked, *shape, returns=torch.Tensor, due="return the rows as one tensor")
        see("the rows' shape", list(rows.shape))
        see("the stack that you were given is unchanged", bool(stacked.equal(before)))
        see("the rows' dtype", str(rows.dtype))
        due = (group + 2) * each * width
        if tuple(rows.shape) == (due, 6):
            x, out = torch.randn(1, 5, 6), torch.randn(heads * width, 3)
            own_out = out.chunk(see.ranks)[see.rank]
            result = attend(x @ rows.T, group, width) @ own_out
            see("attention, summed over the ranks", summed(result))
        see("the rows", rows)


def operated(see: See, function: Callable, tensor: torch.Tensor, weights: torch.Tensor, quiet: str) -> None:
    """What is seen of an operator in the middle of other work, with a second use of the gradient that comes
    back to it; in the direction `quiet` nothing is sent."""
    beside = torch.ones_like(tensor, requires_grad=True)
    x = tensor.clone().requires_grad_()
    inside, shared = x * 1.0, beside * 1.0
    with helped(stubs.told["hints"]):
        with Calls() as forward:
            result = function.apply(inside)
        returned(result, torch.Tensor, f"forward must return a tensor{IN_PLACE}")
        see("the result", result)
        see("the result's dtype", str(result.dtype))
        see("what was given to forward is unchanged", bool(inside.detach().equal(tensor)))
        with Calls() as backward:
            ((result + shared) * weights).sum().backward()
    if x.grad is None:
        raise TypeError(f"backward must return the gradient of x, not None{IN_PLACE}")
    see("the gradient of what was given", x.grad)
    see("the gradient that came to backward is unchanged", bool(beside.grad.equal(weights)))
    calls = {"forward": forward, "backward": backward}[quiet]
    see(f"nothing is sent {quiet}", not calls.made)


@stubs.in_ranks()
def CopyToRanks(see: See, answer: Callable) -> None:
    """x is the same on all ranks, and each goes on with a part of its own."""
    shape = 2 + see.seed % 2, 3
    operated(see, answer, torch.randn(shape), see.randn(*shape), "forward")


@stubs.in_ranks()
def SumOverRanks(see: See, answer: Callable) -> None:
    """Each rank has a part of its own, and all go on with the same."""
    shape = 2 + see.seed % 2, 3
    operated(see, answer, see.randn(*shape), torch.randn(shape), "backward")


def _sizes(see: See) -> tuple[int, int, int]:
    """Tokens, inputs and outputs, all different."""
    return 3 + see.seed % 2, 5 + see.seed % 3, 8 + see.seed % 4


def layered(see: See, answer: Callable, weights: torch.Tensor, quiet: str, **tensors: torch.Tensor) -> None:
    """A layer's result and its gradients; in the direction `quiet` nothing is sent."""
    given = {name: one.clone().requires_grad_() for name, one in tensors.items()}
    with Calls() as forward:
        due = "a layer must return one tensor"
        result = see.call(answer, *given.values(), returns=torch.Tensor, due=due)
    see("the result", result)
    see("the result's dtype", str(result.dtype))
    if result.shape == weights.shape:
        with Calls() as backward:
            (result * weights).sum().backward()
        for name, one in given.items():
            see(f"the gradient of {name}", one.grad)
        calls = {"forward": forward, "backward": backward}[quiet]
        see(f"nothing is sent {quiet}", not calls.made)


@stubs.in_ranks(rungs=[CopyToRanks], together=True)
def column_parallel(see: See, answer: Callable) -> None:
    tokens, inputs, outputs = _sizes(see)
    x, weight = torch.randn(2, tokens, inputs), see.randn(outputs, inputs)
    layered(see, answer, see.randn(2, tokens, outputs) + 1, "forward", x=x, weight=weight)


@stubs.in_ranks(rungs=[SumOverRanks], together=True)
def row_parallel(see: See, answer: Callable) -> None:
    """With a bias, and without."""
    tokens, inputs, outputs = _sizes(see)
    x, weight, weights = (
        see.randn(2, tokens, inputs),
        see.randn(outputs, inputs),
        torch.randn(2, tokens, outputs),
    )
    layered(see, answer, weights, "backward", x=x, weight=weight, bias=torch.randn(outputs))
    for _ in see.each({" without a bias": None}):
        layered(see, answer, weights, "backward", x=x, weight=weight)


column_without_f = stubs.fault("column_without_f", column_parallel, rungs=())


# --- a block


def matrices(heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """Whole matrices of a block of 8 channels and heads of 2, the same on all ranks; inside, 3 for each
    key-value head."""
    q, kv, inside = 2 * heads, 2 * kv_heads, 3 * kv_heads
    shapes = {"q": (q, 8), "k": (kv, 8), "v": (kv, 8), "out": (8, q)}
    shapes |= {"gate": (inside, 8), "up": (inside, 8), "down": (8, inside)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@stubs.in_ranks(rungs=[own_rows], together=True)
def own_parts(see: See, answer: Callable) -> None:
    """The parts of each rank."""
    kv_heads = see.ranks * (1 + see.seed % 2)
    whole = matrices(2 * kv_heads, kv_heads)
    before = {name: one.clone() for name, one in whole.items()}
    due = 'return a dict of "qkv", "out", "gate_up" and "down"'
    found = see.call(answer, whole, see.rank, see.ranks, 2 * kv_heads, kv_heads, returns=dict, due=due)
    for name in PARTS:
        part = returned(complete(found, PARTS)[name], torch.Tensor, f"parts[{name!r}] is one tensor")
        see(f"parts[{name!r}]", part)
        see(f"the dtype of parts[{name!r}]", str(part.dtype))
    unchanged = whole.keys() == before.keys() and all(whole[name].equal(before[name]) for name in before)
    see("the matrices that you were given are unchanged", unchanged)


@stubs.in_ranks(rungs=[column_parallel, row_parallel], together=True)
def shared_block(see: See, answer: Callable) -> None:
    """The output, and all gradients."""
    kv_heads = see.ranks
    x, whole = torch.randn(2, 5, 8, requires_grad=True), matrices(2 * kv_heads, kv_heads)
    parts = stubs.solutions.own_parts_solution(whole, see.rank, see.ranks, 2 * kv_heads, kv_heads)
    parts = {name: one.clone().requires_grad_() for name, one in parts.items()}
    norms = [nn.RMSNorm(8), nn.RMSNorm(8)]
    norms[1].weight.data *= 2
    given = x, parts, norms, lambda qkv: attend(qkv, 2, 2)
    result = see.call(answer, *given, returns=torch.Tensor, due="return the block's output, one tensor")
    see("the output", result)
    if result.shape == x.shape:
        (result * torch.randn(2, 5, 8)).sum().backward()
        see("the gradient of x", x.grad)
        for name, one in parts.items():
            see(f"the gradient of parts[{name!r}]", one.grad)
        for place, norm in enumerate(norms):
            see(f"the gradient of norms[{place}]", norm.weight.grad)


@stubs.in_ranks(rungs=[SumOverRanks], together=True)
def vocabulary_parallel_loss(see: See, answer: Callable) -> None:
    """Logits around 0, and around 100, where exp() is infinite in fp32.  (Large ones that are far apart would
    round too coarsely for a gradient of other right answers.)  The ranks' parts of the vocabulary are of
    different sizes, and the first and the last id of each are among the targets."""
    ends = torch.tensor([3 + (rank + see.seed) % 3 for rank in range(see.ranks)]).cumsum(0)
    first, end = [0, *ends.tolist()][see.rank :][:2]
    targets = torch.randint(int(ends[-1]), (2, 4 + see.seed % 3))
    targets.view(-1)[: 2 * len(ends)] = torch.cat([ends - 1, ends % ends[-1]])
    due = "return the mean loss, a tensor without dimensions"
    cases = {"": (0.0, targets), ", where logits are large": (100.0, targets)}
    cases[", where all targets are rank 0's"] = 0.0, targets % 3
    for mean, right in see.each(cases):
        logits = (mean + see.randn(*targets.shape, end - first)).requires_grad_()
        before = logits.detach().clone(), right.clone()
        with Calls() as calls:
            loss = see.call(answer, logits, right, first, returns=torch.Tensor, due=due)
            if loss.dim():
                raise TypeError(f"{due}, not one of shape {tuple(loss.shape)}")
            see("the loss", loss)
            loss.backward()
        see("the gradient of logits", logits.grad)
        unchanged = logits.detach().equal(before[0]) and right.equal(before[1])
        see("logits and targets are unchanged", bool(unchanged))
        largest = max((call.elements for call in calls.made), default=0)
        see("no message has more than two numbers for each token", largest <= 2 * targets.numel())


# --- seconds


@dataclass
class EitherWay(Exercise):
    """A formula that is right in a second way too, the same in all cases.

    Attributes:
        other: the second reference.
    """

    other: Callable = None

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        if (
            not outcome[1]
            and isinstance(outcome[0], (int, float))
            and self.agree(outcome[0], self.other(**case))
        ):
            return ""
        return super().wrong(case, outcome)


def keeps_what_it_gathered(
    t: int, divided: float, repeated: float, activation: float, sequence_parallel: bool = False
) -> float:
    """Seconds of a block with eight halves of an all-reduce in either case, as torch's own layers send."""
    shared = divided + repeated if sequence_parallel else divided
    return shared / t + (divided + repeated - shared) + 8 * (t - 1) / t * activation


def kept(function: Callable) -> str:
    """Keep the term in the learner's planner; a word where it sends less than the lesson counts."""
    words = planner.keep(function)
    if function(2, 0.0, 0.0, 1.0, True) == 4.0:
        words += " Yours keeps what it has gathered, as torch does. The lesson's text counts ten halves."
    return words.strip()


block_seconds = stubs.formula(
    "block_seconds",
    [(t, 21.8, 2.2, 0.25, way) for way in (False, True) for t in (1, 2, 4, 8)],
    kind=EitherWay,
    other=keeps_what_it_gathered,
    then=kept,
)


# --- the exercises


@stubs.in_ranks(together=True)
def sum_of_own_tokens(see: See, answer: Callable) -> None:
    """Two norms, whose gradients are parts, and a matrix, whose gradient is complete."""
    model = nn.ModuleDict({"first_norm": nn.RMSNorm(5), "matrix": nn.Linear(5, 4, bias=False)})
    model["second_norm"] = nn.RMSNorm(4)
    rows = model["second_norm"](model["matrix"](model["first_norm"](see.randn(3, 5))))
    (rows * see.randn(3, 4)).sum().backward()
    see.call(answer, model)
    for name, parameter in model.named_parameters():
        see(f"the gradient of {name}", parameter.grad)


# --- the learner's script

NAME = "tp_llama.py"
HEAD = '''"""A Llama whose matrices ranks share: torchrun --standalone --nproc-per-node 2 tp_llama.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

HEADS, KV_HEADS, WIDTH = 8, 4, 64
'''
MAIN = """def main():
    rank, ranks, device = begin()
    model = Llama(llama(), rank, ranks).to(device)
    ids = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(0)).to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(20):
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        sgd.step()
        sgd.zero_grad()
    end(model, loss)


"""


def end(model: nn.Module, loss: torch.Tensor) -> None:
    """Assert that all ranks have the same loss and equal copies of what is stored on each, and leave them."""
    copies = [one.detach().flatten() for name, one in model.named_parameters() if "norm" in name]
    mine = torch.cat([*copies, loss.detach().view(1)])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    assert all(torch.equal(other[-1], mine[-1]) for other in everyone), "the ranks' losses differ"
    assert all(torch.allclose(other, mine) for other in everyone), "copies of the norms have drifted apart"
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"rank {dist.get_rank()}: {count:,} weights, loss {loss.item():.1f}, equal copies")
    dist.destroy_process_group()


def script(*parts: Callable) -> str:
    """The text of `tp_llama.py`: functions and classes, the course's under the learner's names; kept in
    `work/`, too, unless a file of that name is there."""
    texts = [
        source_of(one).replace("_solution(", "(", 1).rstrip() for one in (rotated, attend, *parts, begin, end)
    ]
    text = "\n\n\n".join([HEAD.rstrip(), *texts, MAIN + FOOT])
    for name, instead in {"divided.Block": "Block", " -> LlamaForCausalLM": "", ": Callable": ""}.items():
        text = text.replace(name, instead)
    file = paths.WORK / NAME
    if Path.cwd().resolve() == paths.WORK.resolve() and not file.exists():
        file.write_text(text)
        tell(f"{NAME} is in your folder.")
    return text


# --- the companion


def _own_tokens(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


def _kept(context: object) -> int:
    """Elements that an operator keeps for its backward pass, saved for it or as attributes of its context."""
    tensors = [*context.saved_tensors, *vars(context).values()]
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))


@stubs.in_ranks()
def GatheredLinear(see: See, answer: Callable) -> None:
    tokens, inputs, outputs = _sizes(see)
    own, weight, bias = see.randn(2, tokens, inputs), see.randn(outputs, inputs) + 1, see.randn(outputs) - 1
    tensors = {"own_tokens": own, "weight": weight, "bias": bias}
    result = answer.apply(*(tensor.requires_grad_() for tensor in tensors.values()))
    see("elements kept for the backward pass", _kept(result.grad_fn))
    see("the result", result)
    (result * (see.randn(2, tokens * see.ranks, outputs) + 2)).sum().backward()
    for name, tensor in tensors.items():
        see(f"the gradient of {name}", tensor.grad)
