"""Lesson 01: what the layers of a Llama and a whole one cost and keep, how long a training takes, and a model
that betrays bugs; in the companion a Llama block, and where the square of the scores takes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.against_layers import AgainstLayers
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.miscounts import OddModel
from helpers.course.exercises.stubs import Stubs
from helpers.tools.measure.saved import SavedActivations

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("transformer_layers")


class Of(nn.Module):
    """A function of a layer's parts and its input, as a module."""

    def __init__(self, parts: nn.Module | None, function: Callable) -> None:
        super().__init__()
        self.parts, self.function = parts, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.parts, x)


def what_autograd_gets_back(answer: Callable, x: torch.Tensor) -> str:
    """From the answer's hooks, in words: a module asks for its gradient while they are on."""
    words = "no call of the module"

    def differentiated(_: None, x: torch.Tensor) -> torch.Tensor:
        nonlocal words
        y = x.square()
        try:
            torch.autograd.grad(y.sum(), x, retain_graph=True)
            words = "the tensor"
        except (RuntimeError, TypeError):
            words = "nothing"
        return y

    answer(Of(None, differentiated), x)
    return words


@stubs.in_ranks()
def kept_bytes(see: See, answer: Callable) -> None:
    """What is kept in modules of random sizes that each have their own trap; inputs are the rank's own."""
    rows, inputs, outputs = 3 + see.seed % 4, 2 * (4 + see.seed % 5), 6 + see.seed % 3
    dtype = (torch.float32, torch.bfloat16)[see.seed % 2]
    x = see.randn(2, rows, inputs).to(dtype).requires_grad_()
    before = x.detach().clone()
    see("what autograd gets back", words := what_autograd_gets_back(answer, x))
    if words != "the tensor":
        return  # counts are left to chance: what nobody keeps is freed, and its address used again
    three = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(3))
    modules = {
        "a linear map": nn.Linear(inputs, outputs),
        "three linear maps of one input": Of(three, lambda maps, x: sum(linear(x) for linear in maps)),
        "x @ weight.T": Of(nn.Linear(inputs, outputs, bias=False), lambda linear, x: x @ linear.weight.T),
        "a GELU of half of the channels": Of(None, lambda _, x: F.gelu(x[..., : x.shape[-1] // 2])),
        "two halves of one result, multiplied": Of(
            nn.Linear(inputs, 2 * outputs), lambda linear, x: torch.mul(*linear(x).chunk(2, -1))
        ),
        "a sum of two inputs": Of(None, lambda _, x: x + x),
        "a block": models.Block(models.GPTSize(width=inputs, heads=2)),
    }
    for name, module in modules.items():
        see(f"bytes kept by {name}", answer(module.to(dtype), x))
        see(f"the input afterwards, of {name}", "as it was" if torch.equal(x, before) else "changed")
    see("a gradient of the input", "none" if x.grad is None else "left")


@stubs.in_ranks()
def llama_block(see: See, answer: Callable) -> None:
    """Output and gradients of a small block whose rows are the rank's own, and how many tensors as large as x
    it keeps: repeated keys and values are as large, no other layer's tensors are, nor scores.  Several query
    heads share a key-value head, and there are several of these."""
    heads, kv_heads = ((4, 2), (6, 3), (6, 2))[see.seed % 3]
    width = heads * (4 + 2 * (see.seed % 2))
    parts = models.LlamaParts(width, heads, kv_heads, feed_forward=11 + 2 * (see.seed % 3))
    with torch.no_grad():  # gains that are not one
        for norm in (parts.attention_norm, parts.feed_forward_norm):
            norm.weight += torch.rand(width)
    x = see.randn(2, 7 + see.seed % 4, width).requires_grad_()
    with SavedActivations(block := Of(parts, answer)) as kept:
        after = see.call(block, x)
    see("the block's output", after.detach().clone())
    see("the tensors as large as x that are kept for the backward pass", kept.sizes.count(x.nbytes))
    after.square().mean().backward()
    see("the gradient of x", x.grad)
    see("the gradient of the keys' matrix", parts.k.weight.grad)


attention = stubs.formula("attention", [], AgainstLayers)
feed_forward = stubs.formula("feed_forward", [], AgainstLayers)
block = stubs.formula("block", [], AgainstLayers, rungs=(attention, feed_forward))
llama = stubs.formula("llama", [], AgainstLayers, rungs=(attention, feed_forward, block))

days = stubs.formula("days", [(2e11, 1.5e10, 8, 989e12, 0.4), (1e12, 2e9, 64, 312e12, 0.5)])
checkpointed = stubs.formula(
    "checkpointed",
    [(2, 64, 64, 4, 2, 16, 160, 4, 256, False), (3, 40, 96, 6, 2, 8, 104, 5, 181, True)],
    rungs=(llama,),
)
odd_model = stubs.formula("odd_model", [()], OddModel, formula=llama.solution)
crossover_length = stubs.formula("crossover_length", [(64, 4), (768, 12), (12288, 96)])
