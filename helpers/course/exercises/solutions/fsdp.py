"""The course's own answers of the appendix on FSDP."""


def gather_rows_solution(shards, shapes):
    import deepspeed.comm as comm
    import torch

    ranks = comm.get_world_size()
    mine = torch.cat([shard.flatten() for shard in shards])
    flat = mine.new_empty(ranks * len(mine))
    comm.all_gather_into_tensor(flat, mine)
    pieces = flat.view(ranks, -1).split([shard.numel() for shard in shards], dim=1)  # rank by rank
    return [piece.reshape(-1, *shape[1:])[: shape[0]] for piece, shape in zip(pieces, shapes)]


def reduce_rows_solution(gradients):
    import deepspeed.comm as comm
    import torch
    from torch.nn import functional as F

    ranks, pieces = comm.get_world_size(), []
    for gradient in gradients:
        missing = -len(gradient) % ranks * gradient[0].numel()  # each rank gets as many rows
        pieces.append(F.pad(gradient.flatten(), (0, missing)).view(ranks, -1))
    flat = torch.cat(pieces, dim=1).flatten()  # all that is for rank 0, then all for rank 1, ...
    mine = flat.new_empty(len(flat) // ranks)
    comm.reduce_scatter_tensor(mine, flat)
    parts = (mine / ranks).split([piece.shape[1] for piece in pieces])
    return [part.view(-1, *gradient.shape[1:]) for part, gradient in zip(parts, gradients)]


def wrap_solution(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:  # first, since a call takes all that none before has taken
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # takes what is left; it is the root


def rows_held_solution(rows, ranks, rank):
    most = -(-rows // ranks)  # rounded up, so the last ranks may have fewer, or none
    return max(0, min(most, rows - rank * most))


def least_sharing_solution(parameters, memory, per_host):
    hosts = -(-16 * parameters // (memory * per_host))  # rounded up, to whole hosts
    return int(hosts) * per_host
