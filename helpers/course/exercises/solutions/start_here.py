"""The course's own answers of lesson 00."""


def mean_over_ranks_solution(value):
    import deepspeed.comm as comm
    import torch
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator().current_device_name()
    total = torch.tensor([float(value)], device=device)
    comm.all_reduce(total)  # every rank gets the sum, so each can divide for itself
    return total.item() / comm.get_world_size()


def sum_of_ranks_solution(ranks):
    return ranks * (ranks - 1) // 2  # 0 + 1 + ... + (ranks - 1), since ranks count from 0


def tokens_per_step_solution(micro_batch, length, accumulation, ranks):
    return micro_batch * length * accumulation * ranks  # every rank reads micro-batches of its own


def mean_of_squares_solution(value):
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from deepspeed.accelerator import get_accelerator

    deepspeed.init_distributed()
    square = torch.tensor([value**2.0], device=get_accelerator().current_device_name())
    comm.all_reduce(square)  # of squares: the square of a sum would be another number
    return (square / comm.get_world_size()).item()
