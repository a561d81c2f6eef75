"""The course's own answers of lesson 08."""


def reduce_bucket_solution(bucket, own):
    import deepspeed.comm as comm
    import torch

    rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
    for owner in range(ranks):
        pieces = {}  # {where a piece begins in the flat tensor: the piece}
        for start, gradient in bucket.items():
            begin, end = max(start, owner * shard), min(start + len(gradient), (owner + 1) * shard)
            if begin < end:
                pieces[begin] = gradient[begin - start : end - start]
        if pieces:
            message = torch.cat(list(pieces.values()))  # one message: each has a latency
            comm.reduce(message, dst=owner)  # the sum, on the owner
            if owner == rank:
                sizes = [len(piece) for piece in pieces.values()]
                for begin, piece in zip(pieces, (message / ranks).split(sizes)):
                    own[begin - rank * shard :][: len(piece)] += piece  # earlier micro-batches are in it


def release_by_bucket_solution(parameters, bucket_size, reduce):
    bucket, starts, offset = {}, {}, 0
    for parameter in parameters:
        starts[parameter] = offset
        offset += parameter.numel()

    def flush():
        if bucket:
            reduce(bucket)
            bucket.clear()

    def ready(parameter):
        bucket[starts[parameter]] = parameter.grad.flatten()
        parameter.grad = None  # the bucket is now the only one that has it
        if sum(len(gradient) for gradient in bucket.values()) >= bucket_size:
            flush()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(ready)
    return flush  # for the end of the backward pass: the last bucket is rarely full


def micro_batch_size_solution(train_batch, accumulation, ranks):
    return train_batch / (accumulation * ranks)  # a step's batch is counted over ranks and micro-batches
