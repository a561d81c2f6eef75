"""Answers of lesson 16: experts for tokens, the way there and back, balance and messages; usual mistakes."""

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import randn_of_rank
from helpers.course.exercises.trials import summed as summed
from helpers.tools import theory
from helpers.tools.measure.traffic import Traffic

stubs = Stubs("experts")


def _pair(answer):
    """The two tensors of an answer as int64."""
    pair = answer if isinstance(answer, (tuple, list)) and len(answer) == 2 else [None]
    if not all(isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() for tensor in pair):
        due = "two tensors of whole numbers (int64), those of experts and of rows"
        raise TypeError(f"route must return {due}, not {answer!r}")
    return [tensor.long() for tensor in pair]


def _routed(function, seed):
    """The routes of random tokens, some of whose experts are asked for far more than they can take."""
    seen = {}
    cases = ((1, 2), (1, 40), (2, 3), (2, 40), (3, 4))  # choices of a token, rows of an expert
    for place, (k, capacity) in enumerate(cases):
        tokens, experts = 13 + (seed + place) % 5, 4 + (seed + place) % 3
        liked = torch.linspace(0, 3, experts)[torch.randperm(experts)]  # the router prefers some experts
        probabilities = (randn_of_rank(seed + place, tokens, experts) + liked).softmax(-1)
        before = probabilities.clone()
        expert, slot = _pair(function(probabilities, k, capacity))
        case = f"k = {k}, capacity {capacity}"
        seen |= {
            f"expert, {case}": expert,
            f"slot, {case}": slot,
            f"probabilities are as they were, {case}": before.equal(probabilities),
        }
    return seen


route = stubs.build("route", Returning(_routed), worlds=(1, 2))


SLIPS = {
    "must be contiguous": "rows, and a gradient, may be a transposed view: send `rows.contiguous()`, and "
    "receive in a contiguous tensor",
    "does not require grad": "no gradient comes back from the answers: send with `Exchange.apply`, which "
    "autograd knows, both ways",
}


def _exchanged(function, seed):
    """The operator in the middle of other work, in fp32 and float64; what comes in is not contiguous."""
    shape, seen = (3 + seed % 2, 2 * dist.get_world_size(), 4), {}
    due = "forward must return what was received: all_to_all_single fills its first tensor, and returns none"
    for dtype in (torch.float32, torch.float64):
        x = randn_of_rank(seed, *shape).to(dtype).requires_grad_()
        rows = (x * 1.0).transpose(0, 1)
        before = rows.detach().clone()
        with Traffic() as traffic, helped(SLIPS):
            result = returned(function.apply(rows), torch.Tensor, due)
            (result.transpose(0, 1) * randn_of_rank(seed + 1, *shape).to(dtype)).sum().backward()
        sent = sum(traffic.ideal.values())
        seen |= {
            f"what was received, {dtype}": result,
            f"its dtype, {dtype}": str(result.dtype),
            f"the gradient of rows, {dtype}": x.grad,
            f"what was given to forward is as it was, {dtype}": rows.detach().equal(before),
            f"there and back a rank sends less than twice its rows, {dtype}": sent < 2 * x.nbytes,
        }
    return seen


# Forward alone: a gradient, which `backward` hands to `forward`, asks for no gradient itself.
Exchange = stubs.build("Exchange", Returning(_exchanged))


def _through(function, seed):
    """Answers and gradients of experts that have, on every rank, weights of their own."""
    number, capacity, width = 2 + seed % 2, 3 + seed % 3, 4 + seed % 2
    torch.manual_seed(1000 * (seed % 10**6) + dist.get_rank())
    layers = [nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, width)) for _ in range(number)]
    experts = nn.ModuleList(layers)
    rows = randn_of_rank(seed, number * dist.get_world_size(), capacity, width).requires_grad_()
    due = "through_experts must return a tensor of the shape of rows"
    answers = returned(function(rows, experts), torch.Tensor, due)
    with helped(SLIPS):
        (answers * randn_of_rank(seed + 1, *answers.shape)).sum().backward()
    return {"the answers": answers, "the gradient of rows": rows.grad} | {
        f"the gradient of {name}, first the expert's number": parameter.grad
        for name, parameter in experts.named_parameters()
    }


through_experts = stubs.build(
    "through_experts",
    Returning(_through),
    together=True,
    rungs=[
        Exchange,
    ],
)


def _bytes(tokens, experts, k, factor, width, element_bytes):
    capacity = theory.expert_capacity(tokens, experts, k, factor)
    return theory.all_to_all_bytes(experts, capacity, width, element_bytes)


message_bytes = stubs.formula(
    "message_bytes",
    reference=_bytes,
    cases=[
        (128, 8, 1, 1.0, 64, 4),
        (4096, 8, 2, 1.25, 4096, 2),
        (100, 8, 2, 1.0, 16, 2),
        (100, 8, 1, 1.5, 16, 2),
    ],
)


def _balanced(function, seed):
    """The loss and its gradient, of routers that choose evenly and unevenly."""
    seen, due = {}, "balance_loss must return a tensor without dimensions"
    for k in (1, 2):
        tokens, experts = 24 + (seed + k) % 7, 3 + (seed + k) % 4
        scores = randn_of_rank(seed + k, tokens, experts) + torch.linspace(0, 2, experts)
        probabilities = scores.requires_grad_().softmax(-1)
        loss = returned(function(probabilities, probabilities.topk(k).indices), torch.Tensor, due)
        with helped({"does not require grad": "it comes from the probabilities: choices have none"}):
            loss.backward()
        seen |= {f"the loss, k = {k}": loss, f"the gradient of the scores, k = {k}": scores.grad}
    return seen


balance_loss = stubs.build("balance_loss", Returning(_balanced), worlds=(1, 2))


equal_tokens = stubs.formula(
    "equal_tokens",
    cases=[
        (96_000_000, 3, 1000, 1.0),
        (256 * 44_040_192, 8, 7168, 1.25),
    ],
)
