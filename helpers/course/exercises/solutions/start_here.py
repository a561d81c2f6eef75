"""The course's own answers of lesson 00."""


def who_am_i_solution():
    import os

    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    return rank, ranks


def deal_solution(rows, rank, ranks):
    even = len(rows) // ranks * ranks  # as many as can be dealt without a rest
    return rows[:even][rank::ranks]


def mean_over_ranks_solution(value):
    import deepspeed.comm as comm
    import torch

    total = torch.tensor([float(value)])
    comm.all_reduce(total)  # every rank gets the sum, so each can divide for itself
    return total.item() / comm.get_world_size()


who_am_i, deal, mean_over_ranks = who_am_i_solution, deal_solution, mean_over_ranks_solution


def log_alone_solution(value):
    import deepspeed.comm as comm

    if comm.get_rank() == 0:
        return mean_over_ranks(value)  # the others never enter the all-reduce in it


def log_mean_solution(value):
    import deepspeed.comm as comm

    mean = mean_over_ranks(value)  # every rank takes part
    if comm.get_rank() == 0:
        return mean


def guilty_solution():
    return {"rows": 1, "nan": 2, "pairs": 3}


def differing_solution(model):
    import deepspeed.comm as comm
    import torch

    count = 0
    for weight in model.parameters():
        bits = weight.detach().view(torch.int32)
        theirs = bits.clone()
        comm.broadcast(theirs, 0)  # on every rank these are now rank 0's
        count += (theirs != bits).sum().item()
    return count


def train_solution(engine, batches):
    rank, ranks = who_am_i()
    losses = []
    for ids, targets in batches:
        mine, due = deal(ids, rank, ranks), deal(targets, rank, ranks)
        loss = engine(mine, due)
        engine.backward(loss)
        engine.step()
        losses.append((loss.item(), mean_over_ranks(loss.item())))
    return losses


def sum_of_ranks_solution(ranks):
    return ranks * (ranks - 1) // 2  # 0 + 1 + ... + (ranks - 1), since ranks count from 0


def mean_of_squares_solution(value):
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    square = torch.tensor([value**2.0], device=get_accelerator().current_device_name())
    comm.all_reduce(square)  # of squares: the square of a sum would be another number
    return (square / comm.get_world_size()).item()
