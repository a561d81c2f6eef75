"""Answers of lesson 01's companion: counting what autograd keeps, the order of a Llama block, and where the
square of the scores takes over; and the mistakes that people make there."""

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import transformer_layers as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank
from helpers.course.models import GPTSize
from helpers.tools.measure.saved import SavedActivations


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


KEPT_BYTES = """
correct: memory holds storages; tensors are views of them

autograd stores what `pack` returns: end it with `return tensor`, and let `unpack` return what it is given
    return tensor -> return None
that is the number of elements: count bytes
    storage.nbytes() -> storage.nbytes() // tensor.element_size()
that is the number of a view's elements: count the bytes of its storage
    storage.nbytes() -> tensor.numel()
a tensor that several operations keep is in memory once: count each storage once
    kept[storage.data_ptr()] -> kept[len(kept)]
the parameters are in memory anyway: leave their storages out
    not in parameters -> not in ()
`weight.T` is a tensor of its own that looks into the weight's storage: compare storages, not tensors
    {one.untyped_storage().data_ptr() for -> {id(one) for
    storage.data_ptr() not in -> id(tensor) not in
a view keeps its whole storage alive: count `untyped_storage().nbytes()`
    storage.nbytes() -> tensor.nbytes
two views of one storage are in memory once: count storages, not tensors
    kept[storage.data_ptr()] -> kept[tensor.data_ptr(), tensor.shape]
storages, not tensors: `tensor.untyped_storage().data_ptr()` is the same for all views, `tensor.data_ptr()` is
not
    kept[storage.data_ptr()] -> kept[tensor.data_ptr()]
these are all tensors that `pack` gets: count storages, each once and in its full size, and no parameter's
    kept[storage.data_ptr()] = storage.nbytes() -> kept[len(kept)] = tensor.nbytes
    not in parameters -> not in ()
the input counts too: the weight's gradient is computed from it
    in module.parameters() -> in (*module.parameters(), *inputs)
"""
kept_bytes = build(solutions.kept_bytes_solution, _kept_bytes, KEPT_BYTES)


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


LLAMA_BLOCK = """
correct: four changes to GPT-2's block, and none of them touches the residual stream

positions are missing: rotate queries and keys
    q, k = models.rotated(q), models.rotated(k) -> pass
a score compares a query with a key: rotate the keys as well
    , models.rotated(k) -> , k
values carry contents, not positions: rotate queries and keys only
    q, k = models.rotated(q), models.rotated(k) -> q, k, v = (models.rotated(m) for m in (q, k, v))
neighbouring query heads share a key-value head, 0 and 1 the first: tiling the heads pairs others
    k, v, is_causal -> *(m.repeat(1, parts.heads // parts.kv_heads, 1, 1) for m in (k, v)), is_causal
    , enable_gqa=True ->
a token sees the tokens after it: is_causal=True
    is_causal=True, ->
attention's result is added to its input: the residual connection is missing
    x_bsh + parts.out -> parts.out
the second sub-layer reads the sum after attention, not the block's input
    y_bsh = parts.attention_norm(x_bsh) -> y_bsh = parts.attention_norm(start := x_bsh)
    parts.feed_forward_norm(x_bsh) -> parts.feed_forward_norm(start)
the feed-forward layer's result is added too: its residual connection is missing
    x_bsh + parts.down -> parts.down
the feed-forward layer's result is added to the sum after attention, not to the block's input
    y_bsh = parts.attention_norm(x_bsh) -> y_bsh = parts.attention_norm(start := x_bsh)
    x_bsh + parts.down -> start + parts.down
the feed-forward layer's result is added to the stream, not to the normalised copy
    x_bsh + parts.down -> y_bsh + parts.down
each sub-layer has a norm of its own: the second reads `parts.feed_forward_norm`
    parts.feed_forward_norm -> parts.attention_norm
the feed-forward layer reads a normalised copy too: `parts.feed_forward_norm`
    parts.feed_forward_norm(x_bsh) -> x_bsh
the result is (b, a, s, d): transpose to (b, s, a, d) before the heads are put side by side
    y_basd.transpose(1, 2).flatten(2) -> y_basd.reshape(b, s, h)
`silu` is for the gate; `up` is multiplied as it is
    F.silu(parts.gate(y_bsh)) * parts.up(y_bsh) -> parts.gate(y_bsh) * F.silu(parts.up(y_bsh))
the gate's function is SiLU, not GELU
    F.silu -> F.gelu
the channels of a linear map's result are (heads, head width): view as (b, s, heads, d), then transpose
    .view(b, s, -1, h // parts.heads).transpose(1, 2) -> .view(b, -1, s, h // parts.heads)
Llama normalises what a sub-layer reads, not the sum
    parts.attention_norm(x_bsh) -> x_bsh
    y_bsh = parts.feed_forward_norm(x_bsh) -> y_bsh = x_bsh = parts.attention_norm(x_bsh)
    return x_bsh + -> return parts.feed_forward_norm(x_bsh +
    parts.up(y_bsh)) -> parts.up(y_bsh)))
repeated keys and values are copies, and are kept: give the kernel the few heads, with enable_gqa=True
    k, v, is_causal -> *(m.repeat_interleave(parts.heads // parts.kv_heads, 1) for m in (k, v)), is_causal
    , enable_gqa=True ->
"""
llama_block = build(solutions.llama_block_solution, _llama_block, LLAMA_BLOCK)


CROSSOVER_LENGTH = """
correct: attention grows with the square of the length, everything else with the length, so they cross once

both are kept in 2 bytes per element: the bytes cancel
    9 * -> 18 *
that is what the whole block keeps: the feed-forward layer alone is asked for
    9 * -> 16 *
every head keeps its own T x T matrix
    / heads ->
the feed-forward keeps its input as well as the two wide tensors
    9 * -> 8 *
the GELU's output is kept as well as its input
    9 * -> 5 *
"""
crossover_length = formula(
    solutions.crossover_length_solution, [(64, 4), (768, 12), (12288, 96)], CROSSOVER_LENGTH
)
