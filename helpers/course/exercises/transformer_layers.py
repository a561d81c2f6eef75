"""Answers of lesson 01: counting what autograd keeps, the order of a Llama block, and formulas; and the
mistakes that people make there."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course import models
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.models import GPTSize


class _Calls(nn.Module):
    """A function of a layer's parts and its input, as a module."""

    def __init__(self, parts, function):
        super().__init__()
        self.parts, self.function = parts, function

    def forward(self, x):
        return self.function(self.parts, x)


def _thrice(maps, x):
    return sum(one(x) for one in maps)


def _first_channels(parts, x):
    return F.gelu(x[..., : x.shape[-1] // 2])


def _halves_of_one(parts, x):
    left, right = parts(x).chunk(2, -1)
    return left * right


def _by_hand(parts, x):
    return x @ parts.weight.T


class _Differentiates(nn.Module):
    """Asks for its gradient while the hooks are on, so that it notices what autograd gets back from them."""

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
    rows, inputs, outputs, dtype = (
        3 + seed % 4,
        2 * (4 + seed % 5),
        6 + seed % 3,
        (torch.float32, torch.bfloat16)[seed % 2],
    )
    x = torch.randn(2, rows, inputs, generator=random).to(dtype).requires_grad_()
    function(differentiates := _Differentiates(), x)
    if (gets_back := getattr(differentiates, "gets_back", "no call of the module")) != "the tensor":
        return {
            "what autograd gets back": gets_back
        }  # counts are left to chance: what nobody keeps is freed, and its address used again
    modules = {
        "a linear map": nn.Linear(inputs, outputs),
        "three linear maps of one input": _Calls(
            nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(3)), _thrice
        ),
        "x @ weight.T": _Calls(nn.Linear(inputs, outputs, bias=False), _by_hand),
        "a GELU of half of the channels": _Calls(nn.Identity(), _first_channels),
        "two halves of one result, multiplied": _Calls(nn.Linear(inputs, 2 * outputs), _halves_of_one),
        "a sum of two inputs": _Calls(nn.Identity(), lambda parts, x: x + x),
        "a block": models.Block(GPTSize(width=inputs, heads=2)),
    }
    found = {f"bytes kept by {name}": function(module.to(dtype), x) for name, module in modules.items()}
    return {"what autograd gets back": gets_back} | found


def _counter(key="storage", size="storage", leaves_out="storages", input_counts=True, hands_back=True):
    """A count that makes the mistake that is named; without one it is right."""
    keys = {
        "storage": lambda tensor: tensor.untyped_storage().data_ptr(),
        "tensor": lambda tensor: (tensor.data_ptr(), tensor.shape),
    }
    keys["address"] = lambda tensor: tensor.data_ptr()
    sizes = {
        "storage": lambda tensor: tensor.untyped_storage().nbytes(),
        "tensor": lambda tensor: tensor.numel() * tensor.element_size(),
        "numel": lambda tensor: tensor.numel(),
        "elements": lambda tensor: tensor.untyped_storage().nbytes() // tensor.element_size(),
    }

    def kept_bytes(module, *inputs):
        known = {"storages": [keys["storage"](one) for one in module.parameters()], "nothing": []}.get(
            leaves_out, list(map(id, module.parameters()))
        )
        known += [] if input_counts else [keys["storage"](one) for one in inputs]
        kept, order = {}, iter(range(10**6))

        def pack(tensor):
            if (id(tensor) if leaves_out == "tensors" else keys["storage"](tensor)) not in known:
                kept[next(order) if key == "none" else keys[key](tensor)] = sizes[size](tensor)
            return tensor if hands_back else None

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(*inputs)
        return sum(kept.values())

    return kept_bytes


kept_bytes = Build(
    "kept_bytes",
    _kept_bytes,
    mistakes={
        "autograd stores what `pack` returns: end it with `return tensor`, and let `unpack` "
        "return what it is given": _counter(hands_back=False),
        "that is the number of elements: count bytes": _counter(size="elements"),
        "that is the number of a view's elements: count the bytes of its storage": _counter(size="numel"),
        "a tensor that several operations keep is in memory once: count each storage once": _counter(
            key="none"
        ),
        "the parameters are in memory anyway: leave their storages out": _counter(leaves_out="nothing"),
        "`weight.T` is a tensor of its own that looks into the weight's storage: compare "
        "storages, not tensors": _counter(leaves_out="tensors"),
        "a view keeps its whole storage alive: count `untyped_storage().nbytes()`": _counter(size="tensor"),
        "two views of one storage are in memory once: count storages, not tensors": _counter(key="tensor"),
        "storages, not tensors: `tensor.untyped_storage().data_ptr()` is the same for all views, "
        "`tensor.data_ptr()` is not": _counter(key="address"),
        "these are all tensors that `pack` gets: count storages, each once and in its full size, "
        "and no parameter's": _counter(key="none", size="tensor", leaves_out="nothing"),
        "the input counts too: the weight's gradient is computed from it": _counter(input_counts=False),
    },
    praise="storages are what memory holds, and tensors are views of them",
)


def _shape(seed):
    """(heads, key-value heads, width, hidden) of a small Llama block; several query heads share a key-value
    head, and there are several of these."""
    heads, kv_heads = ((4, 2), (6, 3), (6, 2))[seed % 3]
    return heads, kv_heads, heads * (4 + 2 * (seed % 2)), 10 + seed % 7


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
    try:
        after = function(parts, x)
    except RuntimeError as error:
        if "shapes cannot be multiplied" in str(
            error
        ):  # what follows from heads that are not beside each other
            words = (
                "a linear map reads (B, T, C): after attention, put the heads side by side with "
                ".transpose(1, 2).flatten(2)"
            )
            error.args = (f"{error}; {words}",)
        raise
    found = {"the block's output": after.detach().clone()}
    after.square().mean().backward()
    found |= {"the gradient of the input": x.grad, "the gradient of the keys' matrix": parts.k.weight.grad}
    return found | {"bytes kept for the backward pass": _counter()(_Calls(parts, function), x)}


def _block(
    positions="q and k",
    groups="kernel",
    causal=True,
    adds=True,
    second="sum",
    gated="gate",
    activation=F.silu,
    split="",
    joined="",
    norm="before",
):
    """A block that makes the mistake that is named; without one it is right."""

    def heads_of(rows, width):
        B, T, _ = rows.shape
        return (
            rows.view(B, -1, T, width)
            if split == "heads first"
            else rows.view(B, T, -1, width).transpose(1, 2)
        )

    def attention(parts, y):
        q, k, v = (heads_of(one(y), y.shape[-1] // parts.heads) for one in (parts.q, parts.k, parts.v))
        q = models.rotated(q) if positions else q
        k = models.rotated(k) if positions and positions != "q" else k
        v = models.rotated(v) if positions == "q, k and v" else v
        if groups != "kernel":
            times = parts.heads // parts.kv_heads
            k, v = (
                one.repeat(1, times, 1, 1) if groups == "tiled" else one.repeat_interleave(times, 1)
                for one in (k, v)
            )
        result = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=groups == "kernel")
        return parts.out(
            result.reshape(y.shape) if joined == "reshaped" else result.transpose(1, 2).flatten(2)
        )

    def feed_forward(parts, y):
        gate, up = (parts.gate(y), parts.up(y)) if gated == "gate" else (parts.up(y), parts.gate(y))
        return parts.down(activation(gate) * up)

    def llama_block(parts, x_BTC):
        if norm == "after":
            x_BTC = parts.attention_norm(x_BTC + attention(parts, x_BTC))
            return parts.feed_forward_norm(x_BTC + feed_forward(parts, x_BTC))
        attended = attention(parts, parts.attention_norm(x_BTC))
        between = x_BTC + attended if adds else attended
        read = {"input": x_BTC}.get(second, between)
        norms = {"first norm": parts.attention_norm, "no norm": nn.Identity()}
        normed = norms.get(second, parts.feed_forward_norm)(read)
        start = {"not added": 0, "added to the input": x_BTC, "added to the copy": normed}.get(
            second, between
        )
        return start + feed_forward(parts, normed)

    return llama_block


llama_block = Build(
    "llama_block",
    _llama_block,
    mistakes={
        "positions are missing: rotate queries and keys": _block(positions=""),
        "a score compares a query with a key: rotate the keys as well": _block(positions="q"),
        "values carry contents, not positions: rotate queries and keys only": _block(positions="q, k and v"),
        "neighbouring query heads share a key-value head, 0 and 1 the first: tiling the heads "
        "pairs others": _block(groups="tiled"),
        "a token sees the tokens after it: is_causal=True": _block(causal=False),
        "attention's result is added to its input: the residual connection is missing": _block(adds=False),
        "the second sub-layer reads the sum after attention, not the block's input": _block(second="input"),
        "the feed-forward layer's result is added too: its residual connection is missing": _block(
            second="not added"
        ),
        "the feed-forward layer's result is added to the sum after "
        "attention, not to the block's input": _block(second="added to the input"),
        "the feed-forward layer's result is added to the stream, not to the normalised copy": _block(
            second="added to the copy"
        ),
        "each sub-layer has a norm of its own: the second reads `parts.feed_forward_norm`": _block(
            second="first norm"
        ),
        "the feed-forward layer reads a normalised copy too: `parts.feed_forward_norm`": _block(
            second="no norm"
        ),
        "the result is (B, H, T, D): transpose to (B, T, H, D) before the heads are put side by side": _block(
            joined="reshaped"
        ),
        "`silu` is for the gate; `up` is multiplied as it is": _block(gated="up"),
        "the gate's function is SiLU, not GELU": _block(activation=F.gelu),
        "the channels of a linear map's result are (heads, head width): view as (B, T, heads, "
        "D), then transpose": _block(split="heads first"),
        "Llama normalises what a sub-layer reads, not the sum": _block(norm="after"),
        "repeated keys and values are copies, and are kept: give the kernel the few heads, with "
        "enable_gqa=True": _block(groups="repeated"),
    },
    praise="four changes to GPT-2's block, and none of them touches the residual stream",
)

crossover_length = Exercise(
    reference=lambda width, heads: 9 * width / heads,
    cases=({"width": 64, "heads": 4}, {"width": 768, "heads": 12}, {"width": 12288, "heads": 96}),
    mistakes={
        "both are kept in 2 bytes per element: the bytes cancel": lambda width, heads: 18 * width / heads,
        "that is what the whole block keeps: the "
        "feed-forward layer alone is asked for": lambda width, heads: 16 * width / heads,
        "every head keeps its own T x T matrix": lambda width, heads: 9 * width,
        "the feed-forward keeps its input as well as the two wide tensors": lambda width, heads: (
            8 * width / heads
        ),
        "the GELU's output is kept as well as its input": lambda width, heads: 5 * width / heads,
    },
    praise="the attention matrices grow with the square of the length and all the rest with the length, "
    "so they meet once",
)
affordable_parameters = Exercise(
    reference=lambda flops_per_second, seconds, tokens_per_parameter: math.sqrt(
        flops_per_second * seconds / (6 * tokens_per_parameter)
    ),
    cases=(
        {"flops_per_second": 3.2e15, "seconds": 864_000, "tokens_per_parameter": 20},
        {
            "flops_per_second": 4.5e14,
            "seconds": 86_400,
            "tokens_per_parameter": 200,
        },  # a whole number of parameters
    ),
    mistakes={
        "parameters and tokens both grow: 6 N D with D in "
        "proportion to N is a square": lambda flops_per_second, seconds, tokens_per_parameter: (
            flops_per_second * seconds / (6 * tokens_per_parameter)
        ),
        "2 N is the forward "
        "pass alone: a step takes 6": lambda flops_per_second, seconds, tokens_per_parameter: math.sqrt(
            flops_per_second * seconds / (2 * tokens_per_parameter)
        ),
        "the tokens are a multiple of the parameters: where are "
        "the tokens per parameter?": lambda flops_per_second, seconds, tokens_per_parameter: math.sqrt(
            flops_per_second * seconds / 6
        ),
        "that is the number of tokens": lambda flops_per_second, seconds, tokens_per_parameter: math.sqrt(
            flops_per_second * seconds * tokens_per_parameter / 6
        ),
    },
    praise="four times the budget pays for twice the parameters on twice the tokens",
)
