"""Answers of lesson 02: training memory, and the mistakes that people make there."""

import gc
from functools import partial

import torch
from torch import nn
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.in_ranks import helped
from helpers.tools.measure.ledger import Ledger

__all__ = ["checkpoint", "guess", "largest_batch", "mixed_step", "seeded_checkpoint"]


# --- a step in mixed precision


STEP_HINTS = {  # what torch raises for likely slips: what to do
    "a leaf Variable that requires grad": "copy the masters under `with torch.no_grad():`, "
    "since autograd must not see it",
    "attempting to assign a gradient": "the optimizer works in fp32: give each master the "
    "gradient of its weight as "
    "`weight.grad.float()`",
}


def _three_steps(function, seed):
    """Weights and masters after each of three steps that are too small for bf16; each rank has weights and
    gradients of its own."""
    import deepspeed.comm as comm

    torch.manual_seed(1000 * (seed % 10**6) + comm.get_rank())
    weights = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((5, 3), (7,))]
    masters = [weight.detach().float() for weight in weights]
    adam, found, stepped = torch.optim.AdamW(masters, lr=1e-3), {}, []
    adam.register_step_post_hook(lambda *_: stepped.append(1))
    for step in (1, 2, 3):
        for weight in weights:
            own = torch.randn(weight.shape).bfloat16().to(weight.dtype)
            weight.grad = own if weight.grad is None else weight.grad + own  # as a backward pass does
        given, kept = (
            list(weights),
            list(masters),
        )  # a function that puts new tensors into a list changes no model
        with helped(STEP_HINTS):
            function(given, kept, adam)
        found[f"new tensors in the lists after step {step}"] = sum(
            a is not b for a, b in zip((*weights, *masters), (*given, *kept))
        )
        found[f"calls of optimizer.step() until step {step}"] = len(stepped)
        found[f"the dtypes of weights and masters after step {step}"] = [
            str(one.dtype) for one in (*weights, *masters)
        ]
        for index, (weight, master) in enumerate(zip(weights, masters)):
            found |= {
                f"master {index} after step {step}": master.clone(),
                f"weight {index} after step {step}": weight.detach().clone(),
            }
        for name, ones in {"weights": weights, "masters": masters}.items():
            found[f"gradients of {name} that are left after step {step}"] = sum(
                one.grad is not None for one in ones
            )
            found[f"gradients of zeros of {name} after step {step}"] = sum(
                one.grad is not None and not one.grad.any().item() for one in ones
            )
    return found


def _mixed(copies_back="rounded", frees="both", steps=True, masters_from="themselves", gives=True, zeroes=()):
    """A step that makes the mistake that is named; without one it is right."""

    def mixed_step(weights, masters, optimizer):
        for weight, master in zip(weights, masters):
            master.grad = weight.grad.float() if gives else None
            if masters_from == "weights":
                master.copy_(weight.detach())
        if copies_back == "before the step":
            with torch.no_grad():
                for weight, master in zip(weights, masters):
                    weight.copy_(master)
        if steps:
            optimizer.step()
        with torch.no_grad():
            for index, (weight, master) in enumerate(zip(weights, masters)):
                if copies_back == "rounded":
                    weight.copy_(master)
                elif copies_back == "into the list":
                    weights[index] = master.bfloat16()
                elif copies_back == "as it is":
                    weight.grad, weight.data = None, master.clone()
                master.grad = None if frees in ("both", "masters") else master.grad
                weight.grad = None if frees in ("both", "weights") else weight.grad
                for one in (weight,) * ("weights" in zeroes) + (master,) * ("masters" in zeroes):
                    one.grad = torch.zeros_like(one)

    return mixed_step


mixed_step = Build(
    "mixed_step",
    _three_steps,
    worlds=(1, 2),
    mistakes={
        "the masters were updated and the weights were not: copy each master into its weight": _mixed(
            copies_back="never"
        ),
        "the weights were copied from the masters before these were updated": _mixed(
            copies_back="before the step"
        ),
        "the model's weights are fp32 now: `weight.copy_(master)` rounds to the weight's own dtype": _mixed(
            copies_back="as it is"
        ),
        "the masters were taken from the rounded weights again, and what the rounding cut off is "
        "lost at every step": _mixed(masters_from="weights"),
        "the gradients of the weights are still there, and the next backward pass adds to them": _mixed(
            frees="masters"
        ),
        "the masters keep their fp32 gradients: 4 bytes per parameter until the next step": _mixed(
            frees="weights"
        ),
        "nothing was freed: set the gradients of weights and of masters to None": _mixed(frees="neither"),
        "the optimizer never made its step": _mixed(steps=False),
        "`weights[i] = ...` puts a new tensor into the list, and the model still has the old "
        "one: copy into it": _mixed(copies_back="into the list"),
        "the masters had no gradients when the optimizer stepped, so it left them as they were": _mixed(
            gives=False
        ),
        "gradients of zeros take as much memory as any others: set those of the weights to None": _mixed(
            zeroes=("weights",)
        ),
        "gradients of zeros take as much memory as any others: set those of the masters to None": _mixed(
            zeroes=("masters",)
        ),
        "gradients of zeros take as much memory as any others: set them to None": _mixed(
            zeroes=("weights", "masters")
        ),
    },
    praise="the masters keep what bf16 would round away, and the weights are their rounded image",
)


# --- activation checkpointing


RAISED = (
    "does not require grad",
    "backward through the graph a second time",
)  # what torch says of the two mistakes with the second graph


class _Counted(nn.Module):
    """Two linear layers with a GELU, and with dropout if asked for, that note each of their forward
    passes."""

    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layers(x)


def _checkpointed(function, seed, dropout=0.0):
    """Two backward passes through a checkpointed layer that is neither the first nor the last: gradients add
    up, and little is kept."""
    import deepspeed.comm as comm

    torch.manual_seed(1000 * (seed % 10**6) + comm.get_rank())
    width, found = 5 + seed % 4, {}
    layer = _Counted(width, dropout)
    for turn in (1, 2):
        leaf = torch.randn(3, width, requires_grad=True)
        x = 2 * leaf
        with Ledger("cpu") as ledger:
            for tensor in (x, *layer.parameters()):
                ledger.label("inputs", tensor)
            before, layer.calls = ledger.current, 0
            y = function(layer, x)
            gc.collect()
            kept = ledger.current - before - 4 * y.numel()
        found[f"the result, pass {turn}"] = y.detach().clone()
        found[f"bytes that are kept beside x and the result, pass {turn}"] = kept
        if raised := _raised(lambda y=y: (y * torch.randn(3, width)).sum().backward()):
            return found | {f"what the backward pass raises, pass {turn}": raised}
        found[f"what the backward pass raises, pass {turn}"] = "nothing"
        found[f"the layer's forward passes, pass {turn}"] = layer.calls
        found[f"the gradient of x, pass {turn}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, parameter in layer.layers.named_parameters():
            gradient = parameter.grad
            found[f"the gradient of parameter {name}, pass {turn}"] = (
                torch.zeros_like(parameter) if gradient is None else gradient.clone()
            )
    return found


def _raised(work):
    """What one of the two mistakes with the second graph raises, in torch's words; any other error is not
    caught, and keeps its place."""
    try:
        work()
    except RuntimeError as error:
        for words in RAISED:
            if words in str(error):
                return f"torch's error: {words}"
        raise
    return ""


def _with_dropout(function, seed):
    return _checkpointed(function, seed, dropout=0.5)


def _function(keeps="x", gradients="all", start="gradient", random=None, graph="its own"):
    """A checkpoint that makes the mistake that is named."""

    class Mistaken(torch.autograd.Function):
        @staticmethod
        def forward(context, function, x):
            context.function, context.random = function, torch.get_rng_state()
            context.save_for_backward(x.clone() if keeps == "a copy" else x)
            if keeps != "everything":
                return function(x)
            with torch.enable_grad():
                context.y = function(x.detach())
            return context.y.detach()

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            x = x if graph == "the old one" else x.detach().requires_grad_()
            now = torch.get_rng_state()
            if random:
                torch.set_rng_state(context.random)
            with torch.set_grad_enabled(graph != "none"):
                y = context.function(x)
            if random == "restored":
                torch.set_rng_state(now)
            gradient = gradient if start == "gradient" else torch.ones_like(gradient)
            if gradients == "of x":
                return None, *torch.autograd.grad(y, x, gradient)
            torch.autograd.backward(y, gradient)
            return None, x.grad if gradients == "all" and x.is_leaf else torch.zeros_like(x)

    return lambda function, x: Mistaken.apply(function, x)


checkpoint = Build(
    "checkpoint",
    _checkpointed,
    worlds=(1, 2),
    mistakes={
        "that keeps what every pass keeps: nothing was computed again": lambda function, x: function(x),
        "the output of the forward pass was kept with all that belongs to it: keep x alone, and "
        "call the function again": _function(keeps="everything"),
        "x is there already, and a copy of it costs its bytes once more": _function(keeps="a copy"),
        "the parameters inside the function got no gradient: `torch.autograd.backward` adds to "
        "every `.grad`, `grad` does not": _function(gradients="of x"),
        "the layers before got no gradient: `backward` returns one for each argument of `forward`": _function(
            gradients="of parameters"
        ),
        "the backward pass does not start from ones but from the gradient that it is given": _function(
            start="ones"
        ),
        "autograd is off in `backward` too, so the second forward pass made no graph: run it "
        "under `with torch.enable_grad():`": _function(graph="none"),
        "the second graph goes on into the model behind x: let it end there, with "
        "`x.detach().requires_grad_()`": _function(graph="the old one"),
    },
    praise="x alone is kept, and everything else is computed once more when its gradient is asked for",
)
seeded_checkpoint = Build(
    "seeded_checkpoint",
    _with_dropout,
    worlds=(1, 2),
    mistakes={
        "the second pass dropped other elements than the first: give it the random state that "
        "the first one began with": _function(),
        "the random state was set back and left there, so that what is "
        "drawn next was drawn before": _function(random="left"),
    },
    praise="both passes draw the same random numbers, and nobody else notices",
)


# --- the largest micro-batch


def _largest(capacity, parameters, per_sequence, logits, accumulates, first=14, following=16, each=8):
    states = (following if accumulates else first) * parameters
    return (capacity - states) // (per_sequence + each * logits)


def _unrounded(capacity, parameters, per_sequence, logits, accumulates):
    return (capacity - (16 if accumulates else 14) * parameters) / (per_sequence + 8 * logits)


largest_batch = Exercise(
    reference=_largest,
    cases=(
        {"capacity": 80e9, "parameters": 1.5e9, "per_sequence": 2.7e9, "logits": 51e6, "accumulates": False},
        {"capacity": 24e9, "parameters": 0.35e9, "per_sequence": 0.2e9, "logits": 103e6, "accumulates": True},
        {
            "capacity": 24e9,
            "parameters": 0.35e9,
            "per_sequence": 0.2e9,
            "logits": 103e6,
            "accumulates": False,
        },
    ),
    mistakes={
        "a part of a sequence is no sequence: round down": _unrounded,
        "with one micro-batch there are no gradients yet before the backward "
        "pass: 14 bytes per parameter": partial(_largest, first=16),
        "with accumulation the gradients of the micro-batch before are "
        "there: 16 bytes per parameter": partial(_largest, following=14),
        "24 bytes per parameter is the step, another moment: at the loss there are 14, or 16 "
        "with accumulation": partial(_largest, first=24, following=24),
        "the logits' peak is missing: 8 bytes each beside the log-softmax that is kept": partial(
            _largest, each=0
        ),
        "the log-softmax, 4 bytes, is among the kept activations already": partial(_largest, each=12),
        "the states are missing, 14 or 16 bytes per parameter": partial(_largest, first=0, following=0),
    },
    praise="what is left beside the states, divided by what a sequence needs at the loss's peak",
)
