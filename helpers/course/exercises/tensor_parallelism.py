"""Answers of lesson 05: the two operators, the two layers and the loss of tensor parallelism, and the
mistakes that people make there."""

from __future__ import annotations

import torch
from torch import distributed as dist
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import tensor_parallelism as solutions
from helpers.course.exercises.tokens import gather as gather
from helpers.course.exercises.tokens import scatter as scatter
from helpers.course.exercises.trials import build, formula, randn_of_rank, returned
from helpers.course.exercises.trials import summed as summed
from helpers.tools import theory

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


COPY_TO_RANKS = """
correct: every rank uses x, so its gradient is the sum of all their gradients

each rank's layer contributes a part of this gradient: sum it over the ranks in `backward`
    comm.all_reduce(total) -> pass
in `forward` every rank has all of x already, and nothing is summed
    x.view_as(x) -> summed(x)
that is g; f passes x on as it is, and sums the gradient
    x.view_as(x) -> summed(x)
    comm.all_reduce(total) -> pass
the parts of a gradient add up; a mean of them is too small by the number of ranks
    return total -> return total / dist.get_world_size()
the gradient that comes in may be used elsewhere too, so it must not change: sum a copy of it
    .contiguous().clone() ->
"""
CopyToRanks = build(solutions.CopyToRanks_solution, _copied, COPY_TO_RANKS)

SUM_OVER_RANKS = """
correct: all ranks go on with the same sum, so the sum's gradient is the gradient of each part

the ranks' parts must be summed in `forward`
    comm.all_reduce(total) -> pass
every rank has the whole gradient already: summing it in `backward` counts it once for each rank
    return gradient -> return summed(gradient)
that is f; g sums forward, and passes the gradient on as it is
    comm.all_reduce(total) -> pass
    return gradient -> return summed(gradient)
the parts add up to the result; it is not their mean
    return total -> return total / dist.get_world_size()
what came in was changed in place, and autograd may need it: sum a copy
    .contiguous().clone() ->
"""
SumOverRanks = build(solutions.SumOverRanks_solution, _added, SUM_OVER_RANKS)


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


COLUMN_PARALLEL = """
correct: this layer sends nothing forward, and the gradient of x once backward

x is used by all ranks, so its gradient must be summed: send it through f before the product
    CopyToRanks.apply(x) -> x
the ranks' results are different channels, and are not summed
    return F.linear -> return SumOverRanks.apply(F.linear
    weight, bias)  # -> weight, bias))  #
every rank has all of x: g would sum equal copies
    CopyToRanks.apply(x) -> SumOverRanks.apply(x)
f belongs to what goes in: behind the product it sums gradients of different channels
    F.linear(CopyToRanks.apply(x) -> CopyToRanks.apply(F.linear(x
    weight, bias)  # -> weight, bias))  #
"""
column_parallel = build(
    solutions.column_parallel_solution, _column, COLUMN_PARALLEL, rungs=[CopyToRanks], together=True
)

ROW_PARALLEL = """
correct: the sum is sent once, forward; you add the bias after it, because all ranks hold the same one

the bias was summed too: add it once, after the sum
    weight)) + bias -> weight, bias))
that is this rank's part: the products of all ranks must be summed
    SumOverRanks.apply(F.linear(x, weight)) + bias -> F.linear(x, weight, bias)
the bias is missing
    + bias ->
the gradient comes back t times: use g, whose backward pass sums nothing
    F.linear(x, weight)) -> CopyToRanks.apply(F.linear(x, weight)))
every rank's part of the bias came back through the sum: add the bias once, after the sum
    weight)) + bias -> weight, bias / dist.get_world_size()))
g belongs behind the product: before it, different channels are added up
    SumOverRanks.apply(F.linear(x, weight)) -> F.linear(SumOverRanks.apply(x), weight)
each rank has channels of its own: f would mix up the gradients of different channels
    F.linear(x, -> F.linear(CopyToRanks.apply(x),
"""
row_parallel = build(solutions.row_parallel_solution, _row, ROW_PARALLEL, rungs=[SumOverRanks], together=True)


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


GATHERED_LINEAR = """
correct: you gather twice, and reduce-scatter once, to keep no more than your own tokens in between

keep this rank's own tokens, not those of all ranks: gather them again in `backward`
    save_for_backward(own_tokens, -> save_for_backward(gather(own_tokens),
    x, flat = exercises.gather(own_tokens) -> x, flat = own_tokens
every rank contributes to a token's gradient: `scatter` sums, and leaves each rank its own tokens
    exercises.scatter( -> _own_tokens(
this rank's weight multiplies all tokens: gather the input again for its gradient
    x, flat = exercises.gather(own_tokens) -> x, flat = own_tokens
    flat.T @ x -> _own_tokens(gradient).flatten(0, 1).T @ x
each rank has a weight of its own, and sees all tokens: its gradient is complete
    flat.T @ x -> summed(flat.T @ x)
each rank has a bias of its own, and sees all tokens: its gradient is complete
    flat.sum(0) -> summed(flat.sum(0))
the ranks' contributions are summed, not averaged
    @ weight) -> @ weight) / dist.get_world_size()
"""
GatheredLinear = build(solutions.GatheredLinear_solution, _of_own_tokens, GATHERED_LINEAR)


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


LARGEST = "comm.all_reduce(largest, op=comm.ReduceOp.MAX)"
VOCABULARY_PARALLEL_LOSS = """
correct: three numbers per token cross between the ranks, however large the vocabulary is

exp() of a large logit is infinite: subtract the largest logit of all ranks first
    comm.all_reduce(largest, op=comm.ReduceOp.MAX) -> largest.zero_()
each rank subtracted a maximum of its own, so its exponentials do not fit the others'
    comm.all_reduce(largest, op=comm.ReduceOp.MAX) -> pass
that subtracts the sum of the ranks' maxima: use `op=comm.ReduceOp.MAX`
    , op=comm.ReduceOp.MAX ->
a rank that does not have the target's logit must add zero to the sum
    columns.where(mine, 0) -> columns.clamp(0, logits.shape[-1] - 1)
    * mine ->
a rank's columns are numbered from 0: take `first` off the target
    - first ->
only one rank has the target's logit: sum it over the ranks
    SumOverRanks.apply(own_logit) -> own_logit
that is the sum over the tokens; the loss is their mean
    .mean() -> .sum()
the largest logit was subtracted, and must be added back to the logarithm
    + largest ->
the largest logit needs no gradient: take it from `logits.detach()`
    .detach() ->
the gradients come back t times: sum with g
    (logits - largest -> CopyToRanks.apply((logits - largest
    .sum(-1)) -> .sum(-1)))
    apply(own_logit) -> apply(CopyToRanks.apply(own_logit))
that sends all logits; three numbers for each token are enough
    comm.all_reduce(largest, -> dist.all_gather_object([None] * dist.get_world_size(), logits.detach())
        comm.all_reduce(largest,
"""
vocabulary_parallel_loss = build(
    solutions.vocabulary_parallel_loss_solution,
    _loss,
    VOCABULARY_PARALLEL_LOSS,
    rungs=[SumOverRanks],
    together=True,
)


BALANCE_BANDWIDTH = """
correct: tokens cancel: work and messages both grow with them, so only the width helps

an all-reduce sends 2 (t - 1) / t of its bytes
    2 * (ranks - 1) / ranks * 2 -> 2
the ranks share a block's work, so it takes less time
    / ranks / rate -> / rate
there are two all-reduces forward and two backward, of 2 bytes per element
    4 * 2 -> 2 * 2
that counts the forward pass of the work; backward it is twice as much
    6 * 12 -> 2 * 12
the other way round
    sent / work -> work / sent
"""
balance_bandwidth = formula(
    solutions.balance_bandwidth_solution,
    [(4096, 400e12, 4), (12288, 989e12, 2), (8192, 500e12, 8)],
    BALANCE_BANDWIDTH,
    reference=lambda width, rate, ranks: 2 * (ranks - 1) * rate / (9 * width),
)


LLAMA_BYTES = """
correct: each separate column-parallel matrix sends back a gradient; a fused one sends their sum, once

that is Megatron-LM's four: q, k, v, gate and up each sum a gradient of their own
    2 + 5 -> 4
that is the backward pass; two come forward
    2 + 5 -> 5
that is what is logged; an all-reduce sends 2 (t - 1) / t of it
    * 2 * (ranks - 1) / ranks ->
"""
llama_bytes = formula(
    solutions.llama_bytes_solution,
    [(4, 32, 64, 4, 4, 4), (1, 4096, 4096, 32, 2, 8)],
    LLAMA_BYTES,
    reference=lambda batch, sequence, width, layers, element, ranks: theory.tensor_parallel_wire_bytes(
        batch, sequence, width, layers, element, ranks, all_reduces=7
    ),
)
