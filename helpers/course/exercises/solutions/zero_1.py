"""The course's own answers of lesson 07: the rungs of ZeRO-1's step, a bug in one of them, and formulas."""


def flatten_solution(parameters, ranks):
    import torch

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % ranks))  # collectives need shards of one size
    offset = 0
    for parameter in parameters:  # as views: an all-gather into flat then updates the model, with no copy
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat


def own_shard_solution(flat, rank, ranks):
    import torch

    shard = flat.chunk(ranks)[rank]
    return torch.nn.Parameter(shard.float().clone())  # in fp32 float() alone copies nothing


def reduce_to_owner_solution(parameters, flat):
    import deepspeed.comm as comm
    import torch

    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
    mine = torch.empty_like(gradients.chunk(comm.get_world_size())[0])
    comm.reduce_scatter_tensor(mine, gradients)  # the sum of this rank's shard
    return mine.float() / comm.get_world_size()


def clip_shard_solution(gradient, max_norm):
    import deepspeed.comm as comm

    total = gradient.square().sum()  # squares can be added over shards, norms cannot
    comm.all_reduce(total)  # 4 bytes: the sum over all shards
    norm = total.sqrt()
    if norm > max_norm:
        gradient *= max_norm / norm
    return norm


def step_and_gather_solution(flat, master, optimizer, gradient):
    import deepspeed.comm as comm

    master.grad = gradient
    optimizer.step()  # on this rank's shard only
    comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))  # all shards, on every rank
    master.grad = None


reduce_to_owner, clip_shard, step_and_gather = (
    reduce_to_owner_solution,
    clip_shard_solution,
    step_and_gather_solution,
)


def zero_1_step_solution(parameters, flat, master, optimizer, max_norm=float("inf")):
    gradient = reduce_to_owner(parameters, flat)
    norm = clip_shard(gradient, max_norm)
    step_and_gather(flat, master, optimizer, gradient)
    for parameter in parameters:
        parameter.grad = None
    return norm


def undivided_solution(parameters, flat):
    import deepspeed.comm as comm

    return reduce_to_owner(parameters, flat) * comm.get_world_size()


def zero_1_bytes_solution(psi, ranks, bucket, tokens):
    shard = 2 * -(-psi // (2 * ranks))  # elements, rounded up to even
    return {
        "parameters": 2 * ranks * shard,  # the flat tensor, with its padding
        "gradients": 2 * psi,  # one for each parameter, on every rank
        "master weights": 4 * shard,  # fp32
        "optimizer states": 8 * shard + 4,  # two means, a count
        "buffers": 2 * bucket,  # gradients on their way
        "inputs": 16 * tokens,  # ids and targets
        "other": 4,  # the norm
    }


def ranks_needed_solution(parameters, memory):
    return 12 * parameters / (memory - 4 * parameters)  # 4 bytes are replicated, 12 are sharded
