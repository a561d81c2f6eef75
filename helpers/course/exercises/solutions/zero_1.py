"""The course's own answers of lesson 07."""


def flatten_solution(parameters, ranks):
    import torch

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % ranks))  # collectives need shards of one size
    offset = 0
    for parameter in parameters:  # as views: an all-gather into flat then updates the model, with no copy
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat


def zero_1_step_solution(parameters, flat, master, optimizer):
    import deepspeed.comm as comm
    import torch

    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
    mine = torch.empty_like(gradients.chunk(comm.get_world_size())[0])
    comm.reduce_scatter_tensor(mine, gradients)  # the sum of this rank's shard
    master.grad = mine.float() / comm.get_world_size()
    optimizer.step()  # on this rank's shard only
    comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))  # all shards, on every rank
    master.grad = None
    for parameter in parameters:
        parameter.grad = None


def ranks_needed_solution(parameters, memory):
    return 12 * parameters / (memory - 4 * parameters)  # 4 bytes are replicated, 12 are sharded


def clip_shard_solution(gradient, max_norm):
    import deepspeed.comm as comm

    total = gradient.square().sum()  # squares can be added over shards, norms cannot
    comm.all_reduce(total)  # 4 bytes: the sum over all shards
    norm = total.sqrt()
    if norm > max_norm:
        gradient *= max_norm / norm
    return norm
