"""Answers of lesson 01: counting what autograd keeps, the order of a Llama block, and formulas; and the
mistakes that people make there."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.models import GPTSize

# --- counting what is kept


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
    import deepspeed.comm as comm

    random = torch.Generator().manual_seed(1000 * seed + comm.get_rank())
    rows, inputs, outputs = 3 + seed % 4, 2 * (4 + seed % 5), 6 + seed % 3
    dtype = (torch.float32, torch.bfloat16)[seed % 2]
    x = torch.randn(2, rows, inputs, generator=random).to(dtype).requires_grad_()
    function(differentiates := _Differentiates(), x)
    found = {"what autograd gets back": differentiates.gets_back}
    if differentiates.gets_back != "the tensor":
        return found  # counts are left to chance: what nobody keeps is freed, and its address used again
    three = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(3))
    modules = {
        "a linear map": nn.Linear(inputs, outputs),
        "three linear maps of one input": _Calls(three, lambda maps, x: sum(linear(x) for linear in maps)),
        "x @ weight.T": _Calls(nn.Linear(inputs, outputs, bias=False), lambda linear, x: x @ linear.weight.T),
        "a GELU of half of the channels": _Calls(
            nn.Identity(), lambda parts, x: F.gelu(x[..., : x.shape[-1] // 2])
        ),
        "two halves of one result, multiplied": _Calls(nn.Linear(inputs, 2 * outputs), _halves_multiplied),
        "a sum of two inputs": _Calls(nn.Identity(), lambda parts, x: x + x),
        "a block": models.Block(GPTSize(width=inputs, heads=2)),
    }
    counts = {f"bytes kept by {name}": function(module.to(dtype), x) for name, module in modules.items()}
    return found | counts


def kept_bytes_solution(module, *inputs):
    parameters = {one.untyped_storage().data_ptr() for one in module.parameters()}  # in memory anyway
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()  # several views may share one, which takes memory once
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()  # in full, since any view keeps all of it alive
        return tensor  # autograd keeps what is returned here, as it would have without us

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    return sum(kept.values())


_SIZE, _KEY, _OUT = "storage.nbytes()", "kept[storage.data_ptr()]", "not in parameters"
_EACH_TIME, _EVERYTHING = (_KEY, "kept[len(kept)]"), (_OUT, "not in ()")

_KEPT_BYTES_MISTAKES = {
    ("return tensor", "return None"): "autograd stores what `pack` returns: end it with `return tensor`, and "
    "let `unpack` return what it is given",
    (_SIZE, "storage.nbytes() // tensor.element_size()"): "that is the number of elements: count bytes",
    (_SIZE, "tensor.numel()"): "that is the number of a view's elements: count the bytes of its storage",
    _EACH_TIME: "a tensor that several operations keep is in memory once: count each storage once",
    _EVERYTHING: "the parameters are in memory anyway: leave their storages out",
    (
        "{one.untyped_storage().data_ptr() for",
        "{id(one) for",
        f"storage.data_ptr() {_OUT}",
        f"id(tensor) {_OUT}",
    ): "`weight.T` is a tensor of its own that looks into the weight's storage: compare "
    "storages, not tensors",
    (_SIZE, "tensor.nbytes"): "a view keeps its whole storage alive: count `untyped_storage().nbytes()`",
    (_KEY, "kept[tensor.data_ptr(), tensor.shape]"): "two views of one storage are in memory once: count "
    "storages, not tensors",
    (_KEY, "kept[tensor.data_ptr()]"): "storages, not tensors: `tensor.untyped_storage().data_ptr()` is the "
    "same for all views, `tensor.data_ptr()` is not",
    (*_EACH_TIME, *_EVERYTHING, _SIZE, "tensor.nbytes"): "these are all tensors that `pack` gets: count "
    "storages, each once and in its full size, and no parameter's",
    ("in module.parameters()", "in (*module.parameters(), *inputs)"): "the input counts too: the weight's "
    "gradient is computed from it",
}
kept_bytes = Build(
    "kept_bytes",
    _kept_bytes,
    mistakes=edits(kept_bytes_solution, _KEPT_BYTES_MISTAKES),
    praise="storages are what memory holds, and tensors are views of them",
)


# --- a Llama block


def _shape(seed):
    """(heads, key-value heads, width, hidden) of a small Llama block; several query heads share a key-value
    head, and there are several of these."""
    heads, kv_heads = ((4, 2), (6, 3), (6, 2))[seed % 3]
    return heads, kv_heads, heads * (4 + 2 * (seed % 2)), 10 + seed % 7


HINTS = {  # what torch raises where the heads are not beside each other: what to do
    "shapes cannot be multiplied": "a linear map reads (B, T, C): after attention, put the heads side by "
    "side with .transpose(1, 2).flatten(2)"
}


def _llama_block(function, seed):
    """Output, gradients and kept bytes of a block whose rows are the rank's own."""
    import deepspeed.comm as comm

    heads, kv_heads, width, hidden = _shape(seed)
    parts = models.LlamaParts(width, heads, kv_heads, hidden)
    with torch.no_grad():  # gains that are not one
        for norm in (parts.attention_norm, parts.feed_forward_norm):
            norm.weight += torch.rand(width)
    random = torch.Generator().manual_seed(1000 * seed + comm.get_rank())
    x = torch.randn(2, 5 + seed % 4, width, generator=random, requires_grad=True)
    with helped(HINTS):
        after = function(parts, x)
    found = {"the block's output": after.detach().clone()}
    after.square().mean().backward()
    found |= {"the gradient of the input": x.grad, "the gradient of the keys' matrix": parts.k.weight.grad}
    return found | {"bytes kept for the backward pass": kept_bytes_solution(_Calls(parts, function), x)}


def llama_block_solution(parts, x_BTC):
    from torch.nn import functional as F

    B, T, C = x_BTC.shape
    y_BTC = parts.attention_norm(x_BTC)
    q, k, v = (m(y_BTC).view(B, T, -1, C // parts.heads).transpose(1, 2) for m in (parts.q, parts.k, parts.v))
    q, k = models.rotated(q), models.rotated(k)
    # enable_gqa lets query heads share a key and a value: repeated heads would be copies, which are kept.
    y_BHTD = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x_BTC = x_BTC + parts.out(y_BHTD.transpose(1, 2).flatten(2))
    y_BTC = parts.feed_forward_norm(x_BTC)
    return x_BTC + parts.down(F.silu(parts.gate(y_BTC)) * parts.up(y_BTC))


_ROTATES, _GROUPED = "q, k = models.rotated(q), models.rotated(k)", "k, v, is_causal=True, enable_gqa=True"
_FIRST, _SECOND = "y_BTC = parts.attention_norm(x_BTC)", "y_BTC = parts.feed_forward_norm(x_BTC)"
_REMEMBERS_INPUT = _FIRST, f"{_FIRST}\n    start = x_BTC"

_LLAMA_BLOCK_MISTAKES = {
    (_ROTATES, "pass"): "positions are missing: rotate queries and keys",
    (", models.rotated(k)", ", k"): "a score compares a query with a key: rotate the keys as well",
    (_ROTATES, "q, k, v = (models.rotated(m) for m in (q, k, v))"): "values carry contents, not positions: "
    "rotate queries and keys only",
    (
        _GROUPED,
        "*(m.repeat(1, parts.heads // parts.kv_heads, 1, 1) for m in (k, v)), is_causal=True",
    ): "neighbouring query heads share a key-value head, 0 and 1 the first: tiling the heads pairs others",
    ("is_causal=True, ", ""): "a token sees the tokens after it: is_causal=True",
    ("x_BTC + parts.out", "parts.out"): "attention's result is added to its input: the residual connection "
    "is missing",
    (*_REMEMBERS_INPUT, _SECOND, "y_BTC = parts.feed_forward_norm(start)"): "the second sub-layer reads the "
    "sum after attention, not the block's input",
    ("x_BTC + parts.down", "parts.down"): "the feed-forward layer's result is added too: its residual "
    "connection is missing",
    (*_REMEMBERS_INPUT, "x_BTC + parts.down", "start + parts.down"): "the feed-forward layer's result is "
    "added to the sum after attention, not to the block's input",
    ("x_BTC + parts.down", "y_BTC + parts.down"): "the feed-forward layer's result is added to the stream, "
    "not to the normalised copy",
    ("parts.feed_forward_norm", "parts.attention_norm"): "each sub-layer has a norm of its own: the second "
    "reads `parts.feed_forward_norm`",
    (_SECOND, "y_BTC = x_BTC"): "the feed-forward layer reads a normalised copy too: "
    "`parts.feed_forward_norm`",
    ("y_BHTD.transpose(1, 2).flatten(2)", "y_BHTD.reshape(B, T, C)"): "the result is (B, H, T, D): transpose "
    "to (B, T, H, D) before the heads are put side by side",
    (
        "F.silu(parts.gate(y_BTC)) * parts.up(y_BTC)",
        "parts.gate(y_BTC) * F.silu(parts.up(y_BTC))",
    ): "`silu` is for the gate; `up` is multiplied as it is",
    ("F.silu", "F.gelu"): "the gate's function is SiLU, not GELU",
    (
        ".view(B, T, -1, C // parts.heads).transpose(1, 2)",
        ".view(B, -1, T, C // parts.heads)",
    ): "the channels of a linear map's result are (heads, head width): view as (B, T, heads, D), then "
    "transpose",
    (
        *(_FIRST, "y_BTC = x_BTC", _SECOND, "y_BTC = x_BTC = parts.attention_norm(x_BTC)"),
        *("return x_BTC + ", "return parts.feed_forward_norm(x_BTC + "),
        *("parts.up(y_BTC))", "parts.up(y_BTC)))"),
    ): "Llama normalises what a sub-layer reads, not the sum",
    (
        _GROUPED,
        "*(m.repeat_interleave(parts.heads // parts.kv_heads, 1) for m in (k, v)), is_causal=True",
    ): "repeated keys and values are copies, and are kept: give the kernel the few heads, with "
    "enable_gqa=True",
}
llama_block = Build(
    "llama_block",
    _llama_block,
    mistakes=edits(llama_block_solution, _LLAMA_BLOCK_MISTAKES),
    praise="four changes to GPT-2's block, and none of them touches the residual stream",
)


# --- formulas


def crossover_length_solution(width, heads):
    return 9 * width / heads  # a s² elements = 9 h s: the input, h, and 4 h on both sides of GELU


_CROSSOVER_LENGTH_MISTAKES = {
    ("9 * ", "18 * "): "both are kept in 2 bytes per element: the bytes cancel",
    ("9 * ", "16 * "): "that is what the whole block keeps: the feed-forward layer alone is asked for",
    (" / heads", ""): "every head keeps its own T x T matrix",
    ("9 * ", "8 * "): "the feed-forward keeps its input as well as the two wide tensors",
    ("9 * ", "5 * "): "the GELU's output is kept as well as its input",
}
crossover_length = Exercise(
    reference=crossover_length_solution,
    cases=({"width": 64, "heads": 4}, {"width": 768, "heads": 12}, {"width": 12288, "heads": 96}),
    mistakes=edits(crossover_length_solution, _CROSSOVER_LENGTH_MISTAKES),
    praise="the attention matrices grow with the square of the length and all the rest with the length, "
    "so they meet once",
)


def affordable_parameters_solution(flops_per_second, seconds, tokens_per_parameter):
    return math.sqrt(flops_per_second * seconds / (6 * tokens_per_parameter))  # 6 N D, and D grows with N


_AFFORDABLE_PARAMETERS_MISTAKES = {
    ("math.sqrt", ""): "parameters and tokens both grow: 6 N D with D in proportion to N is a square",
    ("(6 * ", "(2 * "): "2 N is the forward pass alone: a step takes 6",
    ("(6 * tokens_per_parameter)", "6"): "the tokens are a multiple of the parameters: where are the tokens "
    "per parameter?",
    ("/ (6 * tokens_per_parameter)", "* tokens_per_parameter / 6"): "that is the number of tokens",
}
affordable_parameters = Exercise(
    reference=affordable_parameters_solution,
    cases=(
        {"flops_per_second": 3.2e15, "seconds": 864_000, "tokens_per_parameter": 20},
        # A whole number of parameters:
        {"flops_per_second": 4.5e14, "seconds": 86_400, "tokens_per_parameter": 200},
    ),
    mistakes=edits(affordable_parameters_solution, _AFFORDABLE_PARAMETERS_MISTAKES),
    praise="four times the budget pays for twice the parameters on twice the tokens",
)
