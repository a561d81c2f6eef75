"""Answers of lesson 02: training memory, and the mistakes that people make there."""

import gc
import warnings

import torch
from torch import nn
from helpers.course.exercises import planner
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import helped
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import seed_of_rank
from helpers.course.models import GPTSize
from helpers.tools import theory
from helpers.tools.measure.ledger import Ledger

stubs = Stubs("training_memory")

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


mixed_step = stubs.build("mixed_step", Returning(_three_steps), worlds=(1, 2))


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


checkpoint = stubs.build("checkpoint", Returning(_checkpointed), worlds=(1, 2), example=Returning(_dropped))


def _with_dropout(function, seed):
    return _checkpointed(function, seed, dropout=0.5)


seeded_checkpoint = stubs.build(
    "seeded_checkpoint", Returning(_with_dropout), worlds=(1, 2), example=Returning(_dropped)
)


forgetful_step = stubs.fault("forgetful_step", mixed_step)


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


def _kept_and_scored(answer):
    return f"{planner.keep(answer)} {planner.score('peak', answer, _without_zero)}".strip()


at_the_loss = stubs.formula("at_the_loss", _PLANS)

in_the_step = stubs.formula("in_the_step", _PLANS)

peak = stubs.formula("peak", _PLANS, then=_kept_and_scored, rungs=(at_the_loss, in_the_step))
