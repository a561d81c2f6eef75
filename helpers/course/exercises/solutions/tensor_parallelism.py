"""The course's own answers of lesson 05."""

import torch
from helpers.course.exercises import tokens as exercises


class CopyToRanks_solution(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)  # every rank has x already: nothing is sent or copied

    @staticmethod
    def backward(context, gradient):
        import deepspeed.comm as comm

        total = gradient.contiguous().clone()  # a copy, since autograd may use the gradient elsewhere, too
        comm.all_reduce(total)  # one x was used on all ranks, so its gradient is the sum of theirs
        return total


class SumOverRanks_solution(torch.autograd.Function):
    @staticmethod
    def forward(context, part):
        import deepspeed.comm as comm

        total = part.contiguous().clone()  # a copy, since an all-reduce would overwrite the part
        comm.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient  # each part enters the sum once, and every rank has the sum's gradient already


CopyToRanks, SumOverRanks = CopyToRanks_solution, SumOverRanks_solution


def column_parallel_solution(x, weight, bias):
    from torch.nn import functional as F

    return F.linear(CopyToRanks.apply(x), weight, bias)  # outputs are sharded: no sum


def row_parallel_solution(x, weight, bias):
    from torch.nn import functional as F

    return SumOverRanks.apply(F.linear(x, weight)) + bias  # after the sum: else t times too much


def balance_bandwidth_solution(width, rate, ranks):
    work = 6 * 12 * width**2 / ranks / rate  # seconds per token
    sent = 4 * 2 * (ranks - 1) / ranks * 2 * width  # bytes per token
    return sent / work


class GatheredLinear_solution(torch.autograd.Function):
    @staticmethod
    def forward(context, own_tokens, weight, bias):
        context.save_for_backward(own_tokens, weight)  # not the gathered tokens, which are t times as large
        return torch.nn.functional.linear(exercises.gather(own_tokens), weight, bias)

    @staticmethod
    def backward(context, gradient):
        own_tokens, weight = context.saved_tensors  # its gradient needs all tokens, so gather again
        x, flat = exercises.gather(own_tokens).flatten(0, 1), gradient.flatten(0, 1)
        own_gradient = exercises.scatter(gradient @ weight)  # a sum over the ranks for x alone
        return own_gradient, flat.T @ x, flat.sum(0)


def llama_bytes_solution(batch, sequence, width, layers, element, ranks):
    # Forward, out and down have a g each; backward, q, k, v, gate and up have an f each.
    return layers * (2 + 5) * 2 * (ranks - 1) / ranks * element * batch * sequence * width


def vocabulary_parallel_loss_solution(logits, targets, first):
    import deepspeed.comm as comm

    largest = logits.detach().amax(-1)  # keeps exp() from overflowing, and cancels: it needs no gradient
    comm.all_reduce(largest, op=comm.ReduceOp.MAX)
    total = SumOverRanks.apply((logits - largest.unsqueeze(-1)).exp().sum(-1))
    columns = targets - first
    mine = (columns >= 0) & (columns < logits.shape[-1])  # targets of other ranks will add 0 to the sum
    own_logit = logits.gather(-1, columns.where(mine, 0).unsqueeze(-1)).squeeze(-1) * mine
    return (total.log() + largest - SumOverRanks.apply(own_logit)).mean()
