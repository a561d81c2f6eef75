"""Answers of lesson 02: training memory, and the mistakes that people make there."""

import gc

import torch
from torch import nn
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import training_memory as solutions
from helpers.course.exercises.trials import build, formula, seed_of_rank
from helpers.tools.measure.ledger import Ledger

STEP_HINTS = {  # what torch raises for likely slips: what to do
    "a leaf Variable that requires grad": "copy the masters under `with torch.no_grad():`, "
    "since autograd must not see it",
    "attempting to assign a gradient": "the optimizer works in fp32: give each master the gradient of its "
    "weight as `weight.grad.float()`",
}


def _three_steps(function, seed):
    """Weights and masters after each of three steps that are too small for bf16; each rank has weights and
    gradients of its own."""
    torch.manual_seed(seed_of_rank(seed))
    weights = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((5, 3), (7,))]
    masters = [weight.detach().float() for weight in weights]
    adam, values, stepped = torch.optim.AdamW(masters, lr=1e-3), {}, []
    adam.register_step_post_hook(lambda *_: stepped.append(1))
    for step in (1, 2, 3):
        for weight in weights:  # the backward pass adds to a gradient that is left
            gradient = torch.randn(weight.shape).bfloat16().to(weight.dtype)
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        given = list(weights), list(masters)  # new tensors in these lists change no model
        with helped(STEP_HINTS):
            function(*given, adam)
        after, tensors = f"after step {step}", [*weights, *masters]
        changed = [old is not new for old, new in zip(tensors, [*given[0], *given[1]])]
        values[f"new tensors in the lists {after}"] = sum(changed)
        values[f"calls of optimizer.step() {after}"] = len(stepped)
        values[f"the dtypes of weights and masters {after}"] = [str(tensor.dtype) for tensor in tensors]
        for name, group in (("weight", weights), ("master", masters)):
            left = [tensor.grad for tensor in group if tensor.grad is not None]
            values[f"{name}s {after}"] = [tensor.detach().clone() for tensor in group]
            values[f"gradients of {name}s that are left {after}"] = len(left)
            zeros = sum(not gradient.any().item() for gradient in left)
            values[f"gradients of zeros of {name}s {after}"] = zeros
    return values


MIXED_STEP = """
correct: the masters keep what bf16 rounds away; the weights are rounded copies

the masters were updated and the weights were not: copy each master into its weight
    weight.copy_(master) -> pass
the weights were copied from the masters before these were updated
    optimizer.step() -> pass
    master.grad = None -> pass
        optimizer.step()
        optimizer.zero_grad()
the model's weights are fp32 now: `weight.copy_(master)` rounds to the weight's own dtype
    weight.copy_(master) -> weight.data = master.clone()
the masters were taken from the rounded weights again, and what the rounding cut off is lost at every step
    master.grad, weight -> master.copy_(weight.detach())
            master.grad, weight
the gradients of the weights are still there, and the next backward pass adds to them
    weight.grad.float(), None -> weight.grad.float(), weight.grad
the masters keep their fp32 gradients: 4 bytes per parameter until the next step
    master.grad = None -> pass
nothing was freed: set the gradients of weights and of masters to None
    weight.grad.float(), None -> weight.grad.float(), weight.grad
    master.grad = None -> pass
the optimizer never made its step
    optimizer.step() -> pass
`weights[i] = ...` puts a new tensor into the list, and the model still has the old one: copy into it
    weight.copy_(master) -> weights.append(master.bfloat16())
                del weights[0]
the masters had no gradients when the optimizer stepped, so it left them as they were
    master.grad, weight.grad = weight.grad.float(), None -> weight.grad = None
gradients of zeros take as much memory as any others: set those of the weights to None
    master.grad = None -> master.grad = None
                weight.grad = torch.zeros_like(weight)
gradients of zeros take as much memory as any others: set those of the masters to None
    master.grad = None -> master.grad = torch.zeros_like(master)
gradients of zeros take as much memory as any others: set them to None
    master.grad = None -> weight.grad = torch.zeros_like(weight)
                master.grad = torch.zeros_like(master)
"""
mixed_step = build(solutions.mixed_step_solution, _three_steps, MIXED_STEP, worlds=(1, 2))


class _Counted(nn.Sequential):
    """Two linear layers with a GELU, and with dropout, that note each of their forward passes."""

    def __init__(self, width, dropout):
        more = nn.Linear(4 * width, width), nn.Dropout(dropout)
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), *more)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def _checkpointed(function, seed, dropout=0.0):
    """Two backward passes through a checkpointed layer that is neither the first nor the last: gradients add
    up, and little is kept."""
    torch.manual_seed(seed_of_rank(seed))
    width, values = 5 + seed % 4, {}
    layer = _Counted(width, dropout)
    for turn in ("pass 1", "pass 2"):
        leaf = torch.randn(3, width, requires_grad=True)
        x = 2 * leaf
        with Ledger("cpu") as ledger:
            for tensor in (x, *layer.parameters()):
                ledger.label("inputs", tensor)
            before, layer.calls = ledger.current, 0
            y = function(layer, x)
            gc.collect()
            kept = ledger.current - before - 4 * y.numel()
        values[f"the result, {turn}"] = y.detach().clone()
        values[f"bytes that are kept beside x and the result, {turn}"] = kept
        raised = values[f"what the backward pass raises, {turn}"] = _raised((y * torch.randn(3, width)).sum())
        if raised != "nothing":
            return values
        values[f"the layer's forward passes, {turn}"] = layer.calls
        for name, tensor in (("x", leaf), *layer.named_parameters(prefix="parameter")):
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()
            values[f"the gradient of {name}, {turn}"] = gradient
    return values


def _raised(loss):
    """What one of the two mistakes with the second graph raises, in torch's words; any other error is not
    caught, and keeps its place."""
    try:
        loss.backward()
    except RuntimeError as error:
        for words in ("does not require grad", "backward through the graph a second time"):
            if words in str(error):
                return f"torch's error: {words}"
        raise
    return "nothing"


CHECKPOINT = """
correct: you keep x alone, and compute the rest again when the backward pass needs it

that keeps what every pass keeps: nothing was computed again
    return Again.apply(x) -> return function(x)
the output of the forward pass was kept with all that belongs to it: keep x alone, and call the function again
    return function(x) -> with torch.enable_grad():
                    context.y = function(x.detach())
                return context.y.detach()
x is there already, and a copy of it costs its bytes once more
    save_for_backward(x) -> save_for_backward(x.clone())
the parameters inside the function got no gradient: `torch.autograd.backward` adds to every `.grad`, `grad`
does not
    torch.autograd.backward(y, -> (x.grad,) = torch.autograd.grad(y, x,
the layers before got no gradient: `backward` returns one for each argument of `forward`
    return x.grad -> return torch.zeros_like(x)
the backward pass does not start from ones but from the gradient that it is given
    backward(y, gradient) -> backward(y, torch.ones_like(gradient))
autograd is off in `backward` too, so the second forward pass made no graph: run it under `with
torch.enable_grad():`
    torch.enable_grad() -> torch.no_grad()
the second graph goes on into the model behind x: let it end there, with `x.detach().requires_grad_()`
    x.detach().requires_grad_() -> x
"""
checkpoint = build(solutions.checkpoint_solution, _checkpointed, CHECKPOINT, worlds=(1, 2))


def _with_dropout(function, seed):
    return _checkpointed(function, seed, dropout=0.5)


SEEDED_CHECKPOINT = """
correct: both passes draw the same random numbers, and nobody else notices

the second pass dropped other elements than the first: give it the random state that the first one began with
    torch.set_rng_state(context.random) -> pass
    torch.set_rng_state(present) -> pass
the random state was set back and left there, so that what is drawn next was drawn before
    torch.set_rng_state(present) -> pass
"""
seeded_checkpoint = build(
    solutions.seeded_checkpoint_solution, _with_dropout, SEEDED_CHECKPOINT, worlds=(1, 2)
)


LARGEST_BATCH = """
correct: subtract the states, then divide by what one sequence needs at the loss's peak

a part of a sequence is no sequence: round down
    // -> /
with one micro-batch there are no gradients yet before the backward pass: 14 bytes per parameter
    else 14 -> else 16
with accumulation the gradients of the micro-batch before are there: 16 bytes per parameter
    16 if -> 14 if
24 bytes per parameter is the step, another moment: at the loss there are 14, or 16 with accumulation
    (16 if accumulates else 14) -> 24
the logits' peak is missing: 8 bytes each beside the log-softmax that is kept
    + 8 * logits ->
the log-softmax, 4 bytes, is among the kept activations already
    8 * logits -> 12 * logits
the states are missing, 14 or 16 bytes per parameter
    - states ->
"""
_small, _large = (24e9, 0.35e9, 0.2e9, 103e6), (80e9, 1.5e9, 2.7e9, 51e6)
_batches = (*_large, False), (*_small, True), (*_small, False)
largest_batch = formula(solutions.largest_batch_solution, _batches, LARGEST_BATCH)
