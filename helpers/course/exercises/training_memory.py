"""Answers of lesson 02: training memory, and the mistakes that people make there."""

import gc
import warnings

import torch
from torch import nn
from helpers.course.exercises import planner
from helpers.course.exercises.faults import fault
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions import training_memory as solutions
from helpers.course.exercises.trials import build, formula, seed_of_rank
from helpers.course.models import GPTSize
from helpers.tools import theory
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
        with warnings.catch_warnings(action="ignore"):  # of x's gradient, where the graph goes on behind x
            loss.backward()
    except RuntimeError as error:
        for words in ("does not require grad", "backward through the graph a second time"):
            if words in str(error):
                return f"torch's error: {words}"
        raise
    return "nothing"


def _dropped(function, seed):
    """Which of twelve elements dropout keeps in each pass."""
    torch.manual_seed(1)
    dropout, passes = nn.Dropout(0.5), []

    def layer(x):
        y = dropout(x)
        passes.append(["kept" if value else None for value in y.detach().tolist()])
        return y

    function(layer, torch.ones(12, requires_grad=True)).sum().backward()
    return {"forward pass": passes[0], "backward pass": passes[-1]}


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
checkpoint = build(solutions.checkpoint_solution, _checkpointed, CHECKPOINT, worlds=(1, 2), example=_dropped)


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
    solutions.seeded_checkpoint_solution,
    _with_dropout,
    SEEDED_CHECKPOINT,
    worlds=(1, 2),
    example=_dropped,
)


forgetful_step = fault(solutions.forgetful_step_solution, mixed_step, mistakes={
    "that rounds the masters after the step": (
        "    for weight, master in zip(weights, masters):\n        master.copy_(weight.detach())\n", "",
        "mixed_step(weights, masters, optimizer)",
        "mixed_step(weights, masters, optimizer)\n"
        "    for weight, master in zip(weights, masters):\n        master.copy_(weight.detach())",
    ),
})  # fmt: skip


# --- the planner: bytes on a GPU without ZeRO


def _plan(micro_batches=1, micro=1, **ways):
    size = GPTSize(vocabulary=50304, context=1024, width=1600, layers=48, heads=25)
    return theory.Plan(size=size, gpus=1, batch=micro_batches * micro, micro=micro, sequence=1024, **ways)


def _without_zero(plan):
    return plan.is_data_parallel and plan.stage == 0


def unseen() -> dict[str, planner.Training]:
    """Trainings without ZeRO whose peak was recorded, or rehearsed at the loss, one of those whose peaks are
    the same GB, by names that say which plan it is."""
    found, peaks = {}, set()
    for one in planner.trainings("peak", _without_zero):
        plan, gigabytes = one.plan, round(one.right["peak"] / 1e9)
        name = f"{plan.parameters / 1e9:.2f} billion, {plan.micro_batches} micro-batches of {plan.micro}"
        name += ", checkpointed" * plan.checkpointed
        is_shown = one.how == "rehearsed" and plan.checkpointed  # before, in the lesson: the step's bytes
        if gigabytes not in peaks and not is_shown:
            found[f"{name} ({one.how})"] = one
        peaks.add(gigabytes)
    return found


_PLANS = [(_plan(),), (_plan(4, 16),), (_plan(1, 16, lean=False),), (_plan(4, 64, checkpointed=True),)]

AT_THE_LOSS = """
correct: what lasts, what the blocks keep, and three tensors of logits in fp32

with one micro-batch there are no gradients yet at the loss
    2 if plan.micro_batches > 1 else 0 -> 2
with several micro-batches the gradients of the one before are there
    2 if plan.micro_batches > 1 else 0 -> 0
every block keeps its part: times `plan.layers`
    plan.layers * plan.kept -> plan.kept
the blocks' activations are missing: `plan.kept` for each block
    plan.layers * plan.kept + -> 0 +
the logits are missing
    + (4 + 4 + 4) * logits ->
that is the log-softmax alone: its gradient and the logits' gradient are there at that moment
    (4 + 4 + 4) * -> 4 *
two tensors of logits; three are there: the log-softmax and both gradients
    (4 + 4 + 4) * -> 8 *
`plan.activations` also counts the embedding and the last norm: here add up the blocks and the logits alone
    plan.layers * plan.kept + (4 + 4 + 4) * logits -> plan.activations
a micro-batch has `plan.micro` sequences
    plan.micro * plan.sequence -> plan.sequence
the step's sequences come one micro-batch at a time: `plan.micro`, not `plan.batch`
    plan.micro * plan.sequence -> plan.batch * plan.sequence
"""
at_the_loss = formula(solutions.at_the_loss_solution, _PLANS, AT_THE_LOSS)

IN_THE_STEP = """
correct: sixteen bytes stay, and more come: four, or twice four where Adam is not lean

the gradients' copies in fp32 are missing, 4 bytes
    4 if plan.lean else 4 + 4 -> 0 if plan.lean else 4
a lean Adam makes no second temporary: ask `plan.lean`
    4 if plan.lean else 4 + 4 -> 8
that is your step, which frees each bf16 gradient: DeepSpeed keeps them to its end, 16 bytes of states
    16 + copies -> 14 + copies
"""
in_the_step = formula(solutions.in_the_step_solution, _PLANS, IN_THE_STEP)

PEAK = """
correct: the larger of two moments; they never come together

the two moments do not come together: the larger one counts, not the sum
    max(at_the_loss(plan), in_the_step(plan)) -> at_the_loss(plan) + in_the_step(plan)
with many tokens the loss needs more than the step
    max(at_the_loss(plan), in_the_step(plan)) -> in_the_step(plan)
with few tokens the step needs more than the loss
    max(at_the_loss(plan), in_the_step(plan)) -> at_the_loss(plan)
"""
peak = formula(
    solutions.peak_solution,
    _PLANS,
    PEAK,
    term="peak",
    scope=_without_zero,
    rungs=(at_the_loss, in_the_step),
)
