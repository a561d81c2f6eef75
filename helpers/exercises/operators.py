"""Operators of autograd out of two functions of a tensor, and such functions: of them answers, right and mistaken, are made."""

import torch


def operator(forward, backward):
    """An operator of autograd that does one thing forward and another backward."""

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            changed = forward(x)
            return changed.view_as(changed) if changed is x else changed

        @staticmethod
        def backward(context, gradient):
            return backward(gradient)

    return Operator


def identity(tensor):
    return tensor


def summed(tensor):
    """A new tensor: the sum over the ranks."""
    import deepspeed.comm as comm

    total = tensor.contiguous().clone()
    comm.all_reduce(total)
    return total


def rank_count():
    import deepspeed.comm as comm

    return comm.get_world_size()
