"""The course's own answers of lesson 03."""


def exchange_solution(outgoing, incoming):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
    for request in dist.batch_isend_irecv([send, receive]):  # both are under way before a rank waits: no hang
        request.wait()


def ring_all_reduce_solution(tensor, exchange):
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)  # views: what is added to a part is added to the tensor
    for step in range(ranks - 1):  # reduce-scatter: the sums grow while they travel
        arriving = parts[(rank - step - 1) % ranks]
        incoming = torch.empty_like(arriving)
        exchange(parts[(rank - step) % ranks], incoming)
        arriving += incoming
    for step in range(ranks - 1):  # all-gather: finished sums are passed on
        exchange(parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks])


def bus_bandwidth_solution(size, ranks, seconds):
    return 2 * (ranks - 1) / ranks * size / seconds  # what a rank must send: comparable with a link's speed


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
