"""The course's own answers of lesson 03: a ring's rungs, a bug in one of them, what messages cost."""


def must_send_solution(collective, tensor_bytes, ranks):
    if collective == "send":
        return tensor_bytes
    others = tensor_bytes * (ranks - 1) / ranks  # all parts but one
    return 2 * others if collective == "all_reduce" else others


def exchange_solution(outgoing, incoming):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
    for request in dist.batch_isend_irecv([send, receive]):  # both are under way before a rank waits
        request.wait()


def ring_reduce_scatter_solution(tensor, exchange):
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)  # views: what is added to a part is added to the tensor
    for step in range(ranks - 1):
        arriving = parts[(rank - step - 2) % ranks]
        incoming = torch.empty_like(arriving)
        exchange(parts[(rank - step - 1) % ranks], incoming)
        arriving += incoming


def ring_all_gather_solution(tensor, exchange):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)
    for step in range(ranks - 1):  # first the own part, then each time what has just arrived
        exchange(parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks])


must_send, exchange = must_send_solution, exchange_solution
ring_reduce_scatter, ring_all_gather = ring_reduce_scatter_solution, ring_all_gather_solution


def passes_raw_solution(tensor, exchange):
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)
    passing = parts[(rank - 1) % ranks]
    for step in range(ranks - 1):
        mine = parts[(rank - step - 2) % ranks]
        incoming = torch.empty_like(mine)
        exchange(passing, incoming)
        mine += incoming
        passing = incoming  # not `mine`, the sum


def all_reduce_seconds_solution(way, tensor_bytes, ranks, latency, bandwidth, kept=0.92):
    import math

    levels = math.log2(ranks)
    rounds, sent = {
        "naive": (ranks - 1, (ranks - 1) * tensor_bytes),
        "tree": (levels, levels * tensor_bytes),
        "pipelined tree": (levels, tensor_bytes / kept),
        "ring": (ranks - 1, (ranks - 1) / ranks * tensor_bytes),
    }[way]
    return 2 * (rounds * latency + sent / bandwidth)  # and the same on the way back


def exposed_solution(buckets, ways, backward):
    seconds = min(ways)  # as NCCL chooses
    hidden = backward * (buckets - 1) / buckets  # before the first is ready, nothing is sent
    return max(seconds, buckets * seconds - hidden)  # nothing hides the last


def two_level_seconds_solution(size, hosts, gpus, inside, across):
    from helpers import theory

    within = theory.wire_bytes("reduce_scatter", size, gpus) / inside  # and the all-gather takes as long
    return 2 * within + theory.wire_bytes("all_reduce", size / gpus, hosts) / across  # of a GPU's part


def gather_by_broadcast_solution(number):
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    numbers = []
    for source in range(comm.get_world_size()):
        sent = torch.tensor([number])  # a new one each time: on all ranks but the source it is overwritten
        comm.broadcast(sent, src=source)
        numbers.append(sent.item())
    return numbers


def halve_and_double_solution(tensor, swap):
    import torch
    import torch.distributed as dist

    rank, gap, mine, way = dist.get_rank(), dist.get_world_size() // 2, tensor, []
    while gap:  # reduce-scatter: keep one half, give the other
        low, high = mine.chunk(2)
        mine, given = (high, low) if rank & gap else (low, high)
        incoming = torch.empty_like(mine)
        swap(rank ^ gap, given, incoming)
        mine += incoming
        way.append((gap, mine, given))
        gap //= 2
    for gap, mine, given in reversed(way):  # all-gather: the same way back
        swap(rank ^ gap, mine, given)
