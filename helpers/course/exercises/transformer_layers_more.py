"""Answers of lesson 01's companion: counting what autograd keeps, the order of a Llama block, and where the
square of the scores takes over; and the mistakes that people make there."""

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.seeing import helped
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank
from helpers.course.models import GPTSize
from helpers.tools.measure.saved import SavedActivations

stubs = Stubs("transformer_layers")


class _Calls(nn.Module):
    """A function of a layer's parts and its input, as a module."""

    def __init__(self, parts, function):
        super().__init__()
        self.parts, self.function = parts, function

    def forward(self, x):
        return self.function(self.parts, x)


def _halves_multiplied(linear, x):
    left, right = linear(x).chunk(2, -1)
    return left * right


class _Differentiates(nn.Module):
    """Asks for its gradient while the hooks are on, so that it notices what autograd gets back from them."""

    gets_back = "no call of the module"

    def forward(self, x):
        y = x.square()
        try:
            torch.autograd.grad(y.sum(), x, retain_graph=True)
            self.gets_back = "the tensor"
        except (RuntimeError, TypeError):
            self.gets_back = "nothing"
        return y


def _kept_bytes(function, seed):
    """What is kept in modules of random sizes that each have their own trap; inputs are the rank's own."""
    rows, inputs, outputs = 3 + seed % 4, 2 * (4 + seed % 5), 6 + seed % 3
    dtype = (torch.float32, torch.bfloat16)[seed % 2]
    x = randn_of_rank(seed, 2, rows, inputs).to(dtype).requires_grad_()
    function(differentiates := _Differentiates(), x)
    found = {"what autograd gets back": differentiates.gets_back}
    if differentiates.gets_back != "the tensor":
        return found  # counts are left to chance: what nobody keeps is freed, and its address used again
    three = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(3))
    modules = {
        "a linear map": nn.Linear(inputs, outputs),
        "three linear maps of one input": _Calls(three, lambda maps, x: sum(linear(x) for linear in maps)),
        "x @ weight.T": _Calls(nn.Linear(inputs, outputs, bias=False), lambda linear, x: x @ linear.weight.T),
        "a GELU of half of the channels": _Calls(None, lambda _, x: F.gelu(x[..., : x.shape[-1] // 2])),
        "two halves of one result, multiplied": _Calls(nn.Linear(inputs, 2 * outputs), _halves_multiplied),
        "a sum of two inputs": _Calls(None, lambda _, x: x + x),
        "a block": models.Block(GPTSize(width=inputs, heads=2)),
    }
    return found | {f"bytes kept by {name}": function(part.to(dtype), x) for name, part in modules.items()}


kept_bytes = stubs.build("kept_bytes", Returning(_kept_bytes))


HINTS = {  # what torch raises where the heads are not beside each other: what to do
    "shapes cannot be multiplied": "a linear map reads (b, s, h): after attention, put the heads side by "
    "side with .transpose(1, 2).flatten(2)"
}


def _llama_block(function, seed):
    """Output, gradients and kept bytes of a small block whose rows are the rank's own.  Several query heads
    share a key-value head, and there are several of these."""
    heads, kv_heads = ((4, 2), (6, 3), (6, 2))[seed % 3]
    width = heads * (4 + 2 * (seed % 2))
    parts = models.LlamaParts(width, heads, kv_heads, feed_forward=10 + seed % 7)
    with torch.no_grad():  # gains that are not one
        for norm in (parts.attention_norm, parts.feed_forward_norm):
            norm.weight += torch.rand(width)
    x = randn_of_rank(seed, 2, 5 + seed % 4, width).requires_grad_()
    with helped(HINTS), SavedActivations(block := _Calls(parts, function)) as kept:
        after = block(x)
    found = {"the block's output": after.detach().clone(), "bytes kept for the backward pass": kept.total}
    after.square().mean().backward()
    return found | {"the gradient of x": x.grad, "the gradient of the keys' matrix": parts.k.weight.grad}


llama_block = stubs.build("llama_block", Returning(_llama_block))


crossover_length = stubs.formula("crossover_length", [(64, 4), (768, 12), (12288, 96)])
