"""What is built in lesson 02: training memory, and the planner of a GPU without ZeRO."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from helpers.course.exercises import planner
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.planner import room as room
from helpers.course.exercises.seeing import seed_of_rank
from helpers.course.exercises.stubs import Stubs
from helpers.course.models import GPTSize
from helpers.tools import theory
from helpers.tools.measure.ledger import Ledger

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

stubs = Stubs("training_memory")


def three_steps(see: See, answer: Callable, inside: bool = False) -> None:
    """Weights and masters after each of three steps that are too small for bf16, and with `inside`
    what gradients take at the most meanwhile; each rank has weights and gradients of its own."""
    torch.manual_seed(seed_of_rank(see.seed))
    shapes = (5, 3), (16,), (4, 4), (2, 8), (17,), (3, 5), (16,), (8, 2)  # alike: one of them is little
    weights = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in shapes]
    masters = [weight.detach().float() for weight in weights]
    adam, stepped = torch.optim.AdamW(masters, lr=1e-3, fused=True), []  # fused: without temporaries
    adam.register_step_post_hook(lambda *_: stepped.append(1))
    elements = sum(weight.numel() for weight in weights)
    for number in see.each({f" after step {number}": number for number in (1, 2, 3)}):
        for weight in weights:  # the backward pass adds to a gradient that is left
            gradient = torch.randn(weight.shape).bfloat16().to(weight.dtype)
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        given = list(weights), list(masters)  # new tensors in these lists change no model
        with Ledger("cpu") as ledger:
            for tensor in (
                *weights,
                *masters,
                *(held for state in adam.state.values() for held in state.values()),
            ):
                ledger.label("parameters", tensor)
            lasting = ledger.current
            for weight in weights:
                ledger.label("gradients", weight.grad)
            see.call(answer, *given, adam)
        tensors = [*weights, *masters]
        changed = [old is not new for old, new in zip(tensors, [*given[0], *given[1]])]
        see("new tensors in the lists", sum(changed))
        see("whether the optimizer stepped", len(stepped) >= number)  # once, or once for each tensor
        see("the dtypes of weights and masters", [str(tensor.dtype) for tensor in tensors])
        for name, group in (("weights", weights), ("masters", masters)):
            left = [tensor.grad for tensor in group if tensor.grad is not None]
            see(name, [tensor.detach().clone() for tensor in group])
            see(f"gradients of {name} that are left", len(left))
            see(f"gradients of zeros of {name}", sum(not gradient.any().item() for gradient in left))
        if inside and number > 1:  # the first step makes Adam's states
            most = round((ledger.peak - lasting) / elements)
            see("bytes of gradients per parameter, at the most", 4 if most <= 5 else most)  # a tensor more


@stubs.in_ranks(worlds=(1, 2))
def mixed_step(see: See, answer: Callable) -> None:
    step_of_sgd(see, answer)
    three_steps(see, answer, inside=True)


def step_of_sgd(see: See, answer: Callable) -> None:
    """SGD feels how long a gradient is; Adam does not."""
    torch.manual_seed(seed_of_rank(see.seed))
    weights = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((5, 3), (7,))]
    masters = [weight.detach().float() for weight in weights]
    for weight in weights:
        weight.grad = torch.randn(weight.shape).bfloat16()
    see.call(answer, list(weights), list(masters), torch.optim.SGD(masters, lr=0.1))
    see("masters after a step of SGD", [master.detach().clone() for master in masters])


@stubs.in_ranks(worlds=(1, 2))
def split_batch(see: See, answer: Callable) -> None:
    """The gradient of a batch from three micro-batches, and how many of them are alive at once."""
    torch.manual_seed(seed_of_rank(see.seed))
    width, alive = 5 + see.seed % 4, [0, 0, 0]  # alive now, at the most, and how many began
    layer = nn.Linear(width, 3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            if y.requires_grad:
                y.register_hook(done)
            alive[0], alive[2] = alive[0] + 1, alive[2] + 1
            alive[1] = max(alive[1], alive[0])
            return nn.functional.cross_entropy(y, targets)

    def done(gradient: torch.Tensor) -> None:
        alive[0] -= 1

    parts = [(torch.randn(4, width), torch.randint(3, (4,))) for _ in range(3)]
    due = "return the batch's loss, a number"
    loss = see.call(answer, Model(), parts, returns=(float, torch.Tensor), due=due)
    for name, weight in layer.named_parameters():
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        see(f"the gradient of {name}", gradient)
    see("the batch's loss", float(loss))
    see("forward passes", alive[2])
    see("micro-batches whose activations are there at once", alive[1])


forgetful_step = stubs.fault("forgetful_step", mixed_step, trial=three_steps)


def both_passes(see: See, answer: Callable, dropout: float) -> None:
    """Two forward and backward passes through a checkpointed layer that is neither the first nor the last:
    gradients add up, and little is kept."""
    torch.manual_seed(seed_of_rank(see.seed))
    width, calls = 5 + see.seed % 4, []
    inner, outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    layer = nn.Sequential(inner, nn.GELU(), outer, nn.Dropout(dropout))
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    for _ in see.each({f", pass {number}": number for number in (1, 2)}):
        calls.clear()
        leaf = torch.randn(3, width, requires_grad=True)
        x = 2 * leaf
        with Ledger("cpu") as ledger:
            for tensor in (x, *layer.parameters()):
                ledger.label("inputs", tensor)
            before = ledger.current
            y = see.call(answer, layer, x, returns=torch.Tensor, due="return one tensor, function(x)")
            gc.collect()
            kept = ledger.current - before - 4 * y.numel()
        see("the result", y.detach().clone())
        see("bytes that are kept beside x and the result", kept)
        raised = raised_by((y * torch.randn(3, width)).sum())
        see("what the backward pass raises", raised)
        if raised != "nothing":
            return
        see("the layer's forward passes", len(calls))
        for name, tensor in (("x", leaf), *layer.named_parameters(prefix="parameter")):
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()
            see(f"the gradient of {name}", gradient)
    both_in_turn(see, answer, nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout)), width)


def both_in_turn(see: See, answer: Callable, layer: nn.Module, width: int) -> None:
    """Two calls before one backward pass, and what a call in bf16 keeps."""
    leaf = torch.randn(3, width, requires_grad=True)
    answer(layer, answer(layer, 2 * leaf)).sum().backward()
    see("the gradient of x, through two calls", leaf.grad.clone())
    low, x = layer.bfloat16(), torch.randn(3, width, dtype=torch.bfloat16, requires_grad=True)
    x = 2 * x
    with Ledger("cpu") as ledger:
        for tensor in (x, *low.parameters()):
            ledger.label("inputs", tensor)
        before = ledger.current
        y = answer(low, x)
        gc.collect()
        kept = ledger.current - before - y.nbytes
    see("bytes that are kept beside x and the result, in bf16", kept)


def raised_by(loss: torch.Tensor) -> str:
    """What one of the two mistakes with the second graph raises in the backward pass, in torch's words; any
    other error is not caught, and keeps its place."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of x's gradient, where the graph goes on behind x
            loss.backward()
    except RuntimeError as error:
        for words in ("does not require grad", "backward through the graph a second time"):
            if words in str(error):
                return f"torch's error: {words}"
        raise
    return "nothing"


def dropped(see: See, answer: Callable) -> None:
    """Which of twelve elements dropout keeps in each pass."""
    torch.manual_seed(1)
    dropout, passes = nn.Dropout(0.5), []

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = dropout(x)
        passes.append(["kept" if value else None for value in y.detach().tolist()])
        return y

    answer(layer, torch.ones(12, requires_grad=True)).sum().backward()
    see("forward pass", passes[0])
    see("backward pass", passes[-1])


@stubs.in_ranks(worlds=(1, 2), example=dropped)
def checkpoint(see: See, answer: Callable) -> None:
    both_passes(see, answer, dropout=0.0)


@stubs.in_ranks(worlds=(1, 2), example=dropped)
def seeded_checkpoint(see: See, answer: Callable) -> None:
    both_passes(see, answer, dropout=0.5)


# --- the planner: bytes on a GPU without ZeRO


def xl(micro_batches: int = 1, micro: int = 1, **ways: bool) -> theory.Plan:
    size = GPTSize(vocabulary=50304, context=1024, width=1600, layers=48, heads=25)
    return theory.Plan(size=size, gpus=1, batch=micro_batches * micro, micro=micro, sequence=1024, **ways)


def without_zero(plan: theory.Plan) -> bool:
    return plan.is_data_parallel and plan.stage == 0


def unseen() -> dict[str, planner.Training]:
    """Trainings without ZeRO whose peak was recorded, or rehearsed at the loss, one of those whose peaks are
    the same GB, by names that say which plan it is."""
    found, peaks = {}, set()
    for one in planner.trainings("peak", without_zero):
        plan, gigabytes = one.plan, round(one.right["peak"] / 1e9)
        name = f"{plan.parameters / 1e9:.2f} billion, {plan.micro_batches} micro-batches of {plan.micro}"
        name += ", checkpointed" * plan.checkpointed
        is_shown = one.how == "rehearsed" and plan.checkpointed  # before, in the lesson: the step's bytes
        if gigabytes not in peaks and not is_shown:
            found[f"{name} ({one.how})"] = one
        peaks.add(gigabytes)
    return found


PLANS = [(xl(),), (xl(4, 16),), (xl(1, 16, lean=False),), (xl(4, 64, checkpointed=True),)]


class OfPlan(Exercise):
    """Says which plan it was."""

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        plan = case["plan"]
        return super().wrong(case, outcome).replace("plan=a Plan", f"{plan} of {plan.sequence:,} tokens,")


class AtTheLoss(OfPlan):
    """Also right is an answer that counts what the embedding and the last norm keep, or one of them."""

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        got, plan = outcome[0], case["plan"]
        least = self.reference(**case)
        logits = 12 * plan.micro * plan.sequence * plan.size.vocabulary
        most = least + plan.activations - plan.layers * plan.kept - logits
        if isinstance(got, int | float) and least <= got <= most + 1:
            return ""
        return super().wrong(case, outcome)


at_the_loss = stubs.formula("at_the_loss", PLANS, AtTheLoss, then=planner.keep)


class InTheBackward(OfPlan):
    """Also right for one micro-batch: the gradient of the head is there when the last block runs again, and
    that of the first block not yet when this one does."""

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        got, plan = outcome[0], case["plan"]
        right = self.reference(**case)
        more = 2 * plan.size.vocabulary * plan.size.width
        less = 2 * (plan.parameters - plan.size.vocabulary * plan.size.width) / plan.layers + 1
        is_one = plan.checkpointed and plan.micro_batches == 1
        if is_one and isinstance(got, int | float) and right - less <= got <= right + more:
            return ""
        return super().wrong(case, outcome)


CHECKPOINTED = [
    (xl(4, 64, checkpointed=True),),
    (xl(1, 1, checkpointed=True),),  # where gradients are more than inputs
    (xl(1, 64, checkpointed=True),),  # and less
    (xl(1, 16),),
]
in_the_backward = stubs.formula("in_the_backward", CHECKPOINTED, InTheBackward, then=planner.keep)

in_the_step = stubs.formula("in_the_step", PLANS, OfPlan, then=planner.keep)
