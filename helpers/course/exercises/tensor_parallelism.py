"""Answers of lesson 05: the two operators, the two layers and the loss of tensor parallelism, and the
mistakes that people make there."""

from __future__ import annotations

import torch
from torch import distributed as dist
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.tokens import gather as gather
from helpers.course.exercises.tokens import scatter as scatter
from helpers.course.exercises.trials import randn_of_rank
from helpers.course.exercises.trials import summed as summed
from helpers.tools import theory

stubs = Stubs("tensor_parallelism")

IN_PLACE = " (comm.all_reduce works in place and returns nothing: return the tensor that you gave it)"


def _applied(function, tensor, weights):
    """The operator in the middle of other work, with a second use of the gradient that comes back to it."""
    beside = torch.ones_like(tensor, requires_grad=True)
    x = tensor.clone().requires_grad_()
    inside, shared = x * 1.0, beside * 1.0
    result = function.apply(inside)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"forward must return a tensor, not {result!r}{IN_PLACE}")
    ((result + shared) * weights).sum().backward()
    if x.grad is None:
        raise TypeError(f"backward must return the gradient of x, not None{IN_PLACE}")
    return {
        "the result": result,
        "what was given to forward is as it was": bool(inside.detach().equal(tensor)),
        "the gradient of what was given": x.grad,
        "the gradient that came to backward is as it was": bool(beside.grad.equal(weights)),
    }


def _copied(function, seed):
    """x is the same on all ranks, and each goes on with a part of its own."""
    return _applied(function, torch.randn(2 + seed % 2, 3), randn_of_rank(seed, 2 + seed % 2, 3))


def _added(function, seed):
    """Each rank has a part of its own, and all go on with the same."""
    return _applied(function, randn_of_rank(seed, 2 + seed % 2, 3), torch.randn(2 + seed % 2, 3))


CopyToRanks = stubs.build("CopyToRanks", Returning(_copied))

SumOverRanks = stubs.build("SumOverRanks", Returning(_added))


def _layer(function, x, weight, bias, weights):
    """A layer's result and its gradients."""
    x, weight, bias = (tensor.clone().requires_grad_() for tensor in (x, weight, bias))
    result = returned(function(x, weight, bias), torch.Tensor, "a layer must return a tensor")
    if result.shape != weights.shape:
        return {"the result": result}
    (result * weights).sum().backward()
    return {
        "the result": result,
        "the gradient of x": x.grad,
        "the gradient of weight": weight.grad,
        "the gradient of bias": bias.grad,
    }


def _sizes(seed):
    """Tokens, inputs and outputs, all different."""
    return 3 + seed % 2, 5 + seed % 3, 8 + seed % 4


def _column(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    x, weight = torch.randn(2, tokens, inputs), randn_of_rank(seed, outputs, inputs)
    weights = randn_of_rank(seed + 2, 2, tokens, outputs)
    values = _layer(function, x, weight, randn_of_rank(seed + 1, outputs), weights)
    try:
        without_bias = function(x, weight, None)
    except TypeError as error:
        raise TypeError(f"{error}: bias may be None, which F.linear takes") from error
    return values | {"the result without a bias": without_bias}


def _row(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    x, weight = randn_of_rank(seed, 2, tokens, inputs), randn_of_rank(seed + 1, outputs, inputs)
    return _layer(function, x, weight, torch.randn(outputs), torch.randn(2, tokens, outputs))


column_parallel = stubs.build("column_parallel", Returning(_column), rungs=[CopyToRanks], together=True)

row_parallel = stubs.build("row_parallel", Returning(_row), rungs=[SumOverRanks], together=True)


def _own_tokens(x):
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


def _kept(context):
    """Elements that an operator keeps for its backward pass, saved for it or as attributes of its context."""
    tensors = [*context.saved_tensors, *vars(context).values()]
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))


def _of_own_tokens(function, seed):
    tokens, inputs, outputs = _sizes(seed)
    shapes = {"own_tokens": (2, tokens, inputs), "weight": (outputs, inputs), "bias": (outputs,)}
    tensors = {name: randn_of_rank(seed + len(shape), *shape) for name, shape in shapes.items()}
    result = function.apply(*(tensor.requires_grad_() for tensor in tensors.values()))
    values = {"elements kept for the backward pass": _kept(result.grad_fn), "the result": result}
    (result * randn_of_rank(seed + 3, 2, tokens * dist.get_world_size(), outputs)).sum().backward()
    return values | {f"the gradient of {name}": tensor.grad for name, tensor in tensors.items()}


GatheredLinear = stubs.build("GatheredLinear", Returning(_of_own_tokens))


def _loss(function, seed):
    """Logits of ordinary size and large ones.  The ranks' parts of the vocabulary are of different sizes, and
    the first and the last id of each are among the targets."""
    ends = torch.tensor([3 + (rank + seed) % 3 for rank in range(dist.get_world_size())]).cumsum(0)
    first, end = [0, *ends.tolist()][dist.get_rank() :][:2]
    targets = torch.randint(int(ends[-1]), (2, 4 + seed % 3))
    targets.view(-1)[: 2 * len(ends)] = torch.cat([ends - 1, ends % ends[-1]])
    values = {}
    for size, scale in (("", 1.0), (", where logits are large", 300.0)):
        logits = (scale * randn_of_rank(seed, *targets.shape, end - first)).requires_grad_()
        with Calls() as calls:
            loss = function(logits, targets, first)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                raise TypeError(f"{function.__name__} must return a tensor without dimensions, not {loss!r}")
            loss.backward()
        values[f"the loss{size}"], values[f"the gradient of logits{size}"] = loss, logits.grad
        largest = max((call.elements for call in calls.made), default=0)
        values[f"no message has more elements than there are tokens{size}"] = largest <= targets.numel()
    return values


vocabulary_parallel_loss = stubs.build(
    "vocabulary_parallel_loss", Returning(_loss), rungs=[SumOverRanks], together=True
)


balance_bandwidth = stubs.formula(
    "balance_bandwidth",
    [(4096, 400e12, 4), (12288, 989e12, 2), (8192, 500e12, 8)],
    reference=lambda width, rate, ranks: 2 * (ranks - 1) * rate / (9 * width),
)


llama_bytes = stubs.formula(
    "llama_bytes",
    [(4, 32, 64, 4, 4, 4), (1, 4096, 4096, 32, 2, 8)],
    reference=lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
        batch, sequence, width, layers, element, ranks, all_reduces=7
    ),
)
