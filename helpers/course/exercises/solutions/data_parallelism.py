"""The course's own answers of lesson 04."""

import torch


def average_gradients_solution(model):
    import deepspeed.comm as comm

    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)  # in place: the sum over the ranks
        parameter.grad /= comm.get_world_size()


def average_in_buckets_solution(model, bucket_elements):
    import deepspeed.comm as comm

    ready, under_way = [], []  # parameters to be sent; (request, bucket, parameters) that were

    def send():
        bucket = torch.cat([parameter.grad.flatten() for parameter in ready])
        under_way.append((comm.all_reduce(bucket, async_op=True), bucket, list(ready)))
        ready.clear()

    def add(parameter):  # autograd calls this when the gradient is complete
        ready.append(parameter)
        if sum(one.numel() for one in ready) >= bucket_elements:
            send()

    def finish():
        if ready:
            send()  # the last bucket is rarely full
        while under_way:
            request, bucket, parameters = under_way.pop(0)  # and no longer held than it is needed
            request.wait()
            bucket /= comm.get_world_size()
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, bucket.split(sizes)):
                parameter.grad.copy_(part.view_as(parameter))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(add)
    return finish


def exposed_seconds_solution(compute, accumulation, message):
    return max(0.0, message - 2 / 3 * compute / accumulation)  # only the last backward pass can hide anything


def accumulation_steps_solution(train_batch, micro_batch, ranks):
    return train_batch / (micro_batch * ranks)  # every rank runs its share in micro-batches of its own


def weighted_gradients_solution(model, micro_batches):
    import deepspeed.comm as comm
    import torch.nn.functional as F

    tokens = sum((targets != -100).sum() for _, targets in micro_batches)
    comm.all_reduce(tokens)  # of all ranks, before the first backward pass
    for inputs, targets in micro_batches:
        (F.cross_entropy(model(inputs), targets, reduction="sum") / tokens).backward()
    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)  # a sum of parts that are divided already
