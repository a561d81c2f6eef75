"""The course's own answers of lesson 13."""

import torch


def tiled_loss_solution(head, x_bsh, targets_bs, tiles):
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    def summed(x, targets):  # a sum, since tiles differ in how many of their targets count
        return F.cross_entropy(head(x).float().flatten(0, 1), targets.flatten(), reduction="sum")

    total = 0.0
    for x, targets in zip(x_bsh.chunk(tiles, 1), targets_bs.chunk(tiles, 1)):
        total = total + checkpoint(summed, x, targets, use_reentrant=False, preserve_rng_state=False)
    return total / (targets_bs != -100).sum()  # once: a mean of means would favour tiles with few targets


def exchange_solution(x, split, collect):
    import deepspeed.comm as comm

    sent = torch.stack(x.chunk(comm.get_world_size(), split))  # part i is for rank i
    received = torch.empty_like(sent)
    comm.all_to_all_single(received, sent)
    return torch.cat(received.unbind(), collect)


def ring_forward_solution(q, k, v, turn):
    import deepspeed.comm as comm

    total, log_sum = torch.zeros_like(q), q.new_full(q.shape[:-1], float("-inf"))
    for step in range(comm.get_world_size()):
        if step <= comm.get_rank():  # else these keys are in the future
            logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            if step == 0:
                logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), float("-inf"))
            new = torch.logaddexp(log_sum, logits.logsumexp(-1))
            total = total * (log_sum - new).exp()[..., None] + (logits - new[..., None]).exp() @ v
            log_sum = new
        k, v = turn(k, v)  # after N turns they are home again
    return total, log_sum


def longest_sequence_solution(memory, states, layers, width, vocabulary):
    per_token = 2 * width * layers + max(32 * width, 12 * vocabulary)  # bytes
    return (memory - states) / per_token


def ring_over_ulysses_solution(ranks):
    return 6 * ranks / (8 * (ranks - 1) / ranks)  # of an all-to-all, a rank keeps its own part
