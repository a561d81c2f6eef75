"""Answers of lesson 02: training memory, and the mistakes that people make there."""

import gc

import torch
from torch import nn
from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.tools.measure.ledger import Ledger

# --- a step in mixed precision


STEP_HINTS = {  # what torch raises for likely slips: what to do
    "a leaf Variable that requires grad": "copy the masters under `with torch.no_grad():`, "
    "since autograd must not see it",
    "attempting to assign a gradient": "the optimizer works in fp32: give each master the gradient of its "
    "weight as `weight.grad.float()`",
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
            gradient = torch.randn(weight.shape).bfloat16().to(weight.dtype)
            # The backward pass adds to a gradient that is left:
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        given = list(weights), list(masters)  # new tensors in these lists change no model
        with helped(STEP_HINTS):
            function(*given, adam)
        tensors = [*weights, *masters]
        found[f"new tensors in the lists after step {step}"] = sum(
            old is not new for old, new in zip(tensors, [*given[0], *given[1]])
        )
        found[f"calls of optimizer.step() until step {step}"] = len(stepped)
        found[f"the dtypes of weights and masters after step {step}"] = [
            str(tensor.dtype) for tensor in tensors
        ]
        for index, (weight, master) in enumerate(zip(weights, masters)):
            found[f"master {index} after step {step}"] = master.clone()
            found[f"weight {index} after step {step}"] = weight.detach().clone()
        for name, group in {"weights": weights, "masters": masters}.items():
            left = [tensor.grad for tensor in group if tensor.grad is not None]
            found[f"gradients of {name} that are left after step {step}"] = len(left)
            found[f"gradients of zeros of {name} after step {step}"] = sum(
                not gradient.any().item() for gradient in left
            )
    return found


def mixed_step_solution(weights, masters, optimizer):
    import torch

    for weight, master in zip(weights, masters):
        master.grad, weight.grad = weight.grad.float(), None  # the optimizer needs fp32; bf16 is freed
    optimizer.step()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)  # rounds to bf16
            master.grad = None


_KEEPS_WEIGHTS = "weight.grad.float(), None", "weight.grad.float(), weight.grad"
_FREES_MASTERS = "master.grad = None"
_ZEROS_OF_WEIGHTS = "weight.grad = torch.zeros_like(weight)"
_ZEROS_OF_MASTERS = "master.grad = torch.zeros_like(master)"

_MIXED_STEP_MISTAKES = {
    ("weight.copy_(master)", "pass"): "the masters were updated and the weights were not: copy each master "
    "into its weight",
    (
        *("    optimizer.step()\n", ""),
        *("            master.grad = None", "    optimizer.step()\n    optimizer.zero_grad()"),
    ): "the weights were copied from the masters before these were updated",
    ("weight.copy_(master)", "weight.data = master.clone()"): "the model's weights are fp32 now: "
    "`weight.copy_(master)` rounds to the weight's own dtype",
    (
        "master.grad, weight",
        "master.copy_(weight.detach())\n        master.grad, weight",
    ): "the masters were taken from the rounded weights again, and what the rounding cut off is lost at "
    "every step",
    _KEEPS_WEIGHTS: "the gradients of the weights are still there, and the next backward pass adds to them",
    (_FREES_MASTERS, "pass"): "the masters keep their fp32 gradients: 4 bytes per parameter until the next "
    "step",
    (*_KEEPS_WEIGHTS, _FREES_MASTERS, "pass"): "nothing was freed: set the gradients of weights and of "
    "masters to None",
    ("optimizer.step()", "pass"): "the optimizer never made its step",
    (
        "            weight.copy_(master)",
        "            weights.append(master.bfloat16())\n            del weights[0]",
    ): "`weights[i] = ...` puts a new tensor into the list, and the model still has the old "
    "one: copy into it",
    ("master.grad, weight.grad = weight.grad.float(), None", "weight.grad = None"): "the masters had no "
    "gradients when the optimizer stepped, so it left them as they were",
    (_FREES_MASTERS, f"{_FREES_MASTERS}; {_ZEROS_OF_WEIGHTS}"): "gradients of zeros take as much memory as "
    "any others: set those of the weights to None",
    (_FREES_MASTERS, _ZEROS_OF_MASTERS): "gradients of zeros take as much memory as any others: set those of "
    "the masters to None",
    (_FREES_MASTERS, f"{_ZEROS_OF_WEIGHTS}; {_ZEROS_OF_MASTERS}"): "gradients of zeros take as much memory "
    "as any others: set them to None",
}
mixed_step = Build(
    "mixed_step",
    _three_steps,
    worlds=(1, 2),
    mistakes=edits(mixed_step_solution, _MIXED_STEP_MISTAKES),
    praise="the masters keep what bf16 would round away, and the weights are their rounded image",
)


# --- activation checkpointing


# What torch says of the two mistakes with the second graph:
RAISED = ("does not require grad", "backward through the graph a second time")


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
        parameters = [(f"parameter {name}", tensor) for name, tensor in layer.layers.named_parameters()]
        for name, tensor in [("x", leaf), *parameters]:
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()
            found[f"the gradient of {name}, pass {turn}"] = gradient
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


def checkpoint_solution(function, x):
    import torch

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return function(x)  # autograd is off: nothing inside is kept

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            x = x.detach().requires_grad_()  # the new graph ends here
            with torch.enable_grad():
                y = function(x)
            torch.autograd.backward(y, gradient)
            return x.grad

    return Again.apply(x)


_KEEPS_GRAPH = """with torch.enable_grad():
                context.y = function(x.detach())
            return context.y.detach()"""

_CHECKPOINT_MISTAKES = {
    (lambda function, x: function(x)): "that keeps what every pass keeps: nothing was computed again",
    ("return function(x)", _KEEPS_GRAPH): "the output of the forward pass was kept with all that belongs to "
    "it: keep x alone, and call the function again",
    ("save_for_backward(x)", "save_for_backward(x.clone())"): "x is there already, and a copy of it costs "
    "its bytes once more",
    ("torch.autograd.backward(y,", "(x.grad,) = torch.autograd.grad(y, x,"): "the parameters inside the "
    "function got no gradient: `torch.autograd.backward` adds to every `.grad`, `grad` does not",
    ("return x.grad", "return torch.zeros_like(x)"): "the layers before got no gradient: `backward` returns "
    "one for each argument of `forward`",
    ("backward(y, gradient)", "backward(y, torch.ones_like(gradient))"): "the backward pass does not start "
    "from ones but from the gradient that it is given",
    ("torch.enable_grad()", "torch.no_grad()"): "autograd is off in `backward` too, so the second forward "
    "pass made no graph: run it under `with torch.enable_grad():`",
    ("x.detach().requires_grad_()", "x"): "the second graph goes on into the model behind x: let it end "
    "there, with `x.detach().requires_grad_()`",
}
checkpoint = Build(
    "checkpoint",
    _checkpointed,
    worlds=(1, 2),
    mistakes=edits(checkpoint_solution, _CHECKPOINT_MISTAKES),
    praise="x alone is kept, and everything else is computed once more when its gradient is asked for",
)


def seeded_checkpoint_solution(function, x):
    import torch

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            context.random = torch.get_rng_state()  # before anything is drawn
            return function(x)

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            x = x.detach().requires_grad_()  # a leaf, where the new graph ends: x.grad is its gradient
            present = torch.get_rng_state()  # what would have been drawn next, without checkpointing
            torch.set_rng_state(context.random)  # so that dropout drops the same elements again
            with torch.enable_grad():
                y = function(x)
            torch.set_rng_state(present)  # so that nobody notices that numbers were drawn twice
            torch.autograd.backward(y, gradient)
            return x.grad

    return Again.apply(x)


_SEEDED_CHECKPOINT_MISTAKES = {
    checkpoint_solution: "the second pass dropped other elements than the first: give it the random state "
    "that the first one began with",
    ("torch.set_rng_state(present)", "pass"): "the random state was set back and left there, so that what is "
    "drawn next was drawn before",
}
seeded_checkpoint = Build(
    "seeded_checkpoint",
    _with_dropout,
    worlds=(1, 2),
    mistakes=edits(seeded_checkpoint_solution, _SEEDED_CHECKPOINT_MISTAKES),
    praise="both passes draw the same random numbers, and nobody else notices",
)


# --- the largest micro-batch


def largest_batch_solution(capacity, parameters, per_sequence, logits, accumulates):
    states = (16 if accumulates else 14) * parameters  # 2 more: gradients of earlier micro-batches
    return (capacity - states) // (per_sequence + 8 * logits)  # fp32 gradients of log-softmax, logits


_SMALL = {"capacity": 24e9, "parameters": 0.35e9, "per_sequence": 0.2e9, "logits": 103e6}
_LARGE = {"capacity": 80e9, "parameters": 1.5e9, "per_sequence": 2.7e9, "logits": 51e6}

_LARGEST_BATCH_MISTAKES = {
    ("//", "/"): "a part of a sequence is no sequence: round down",
    ("else 14", "else 16"): "with one micro-batch there are no gradients yet before the backward pass: 14 "
    "bytes per parameter",
    ("16 if", "14 if"): "with accumulation the gradients of the micro-batch before are there: 16 bytes per "
    "parameter",
    ("(16 if accumulates else 14)", "24"): "24 bytes per parameter is the step, another moment: at the loss "
    "there are 14, or 16 with accumulation",
    (" + 8 * logits", ""): "the logits' peak is missing: 8 bytes each beside the log-softmax that is kept",
    ("8 * logits", "12 * logits"): "the log-softmax, 4 bytes, is among the kept activations already",
    (" - states", ""): "the states are missing, 14 or 16 bytes per parameter",
}
largest_batch = Exercise(
    reference=largest_batch_solution,
    cases=(_LARGE | {"accumulates": False}, _SMALL | {"accumulates": True}, _SMALL | {"accumulates": False}),
    mistakes=edits(largest_batch_solution, _LARGEST_BATCH_MISTAKES),
    praise="what is left beside the states, divided by what a sequence needs at the loss's peak",
)
