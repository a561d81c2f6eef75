"""The course's own answers of lesson 01, what the layers of a Llama cost, and of its companion."""

import torch
from helpers.course import models


def attention_solution(b, s, h, a, k, d):
    parameters = 2 * h * a * d + 2 * h * k * d  # q and the output; k and v, which have fewer heads
    scores = 2 * (2 * b * s * s * a * d)  # q times k, and weights times v, for every query head
    heads = 2 * b * s * (2 * a * d + 2 * k * d)  # q, result; k, v
    return {
        "parameters": parameters,
        "FLOPs": 2 * b * s * parameters + scores,
        "kept": 2 * b * s * h + heads + 4 * a * b * s,
    }


def feed_forward_solution(b, s, h, f):
    parameters = 3 * h * f
    return {
        "parameters": parameters,
        "FLOPs": 2 * b * s * parameters,
        "kept": 2 * b * s * (h + 4 * f),  # input; gate, its SiLU, up, their product
    }


attention, feed_forward = attention_solution, feed_forward_solution


def block_solution(b, s, h, a, k, d, f):
    parts = [attention(b, s, h, a, k, d), feed_forward(b, s, h, f)]
    norm = {"parameters": h, "FLOPs": 0, "kept": 6 * b * s * h + 4 * b * s}
    parts += [norm, norm]
    return {name: sum(part[name] for part in parts) for name in norm}


block = block_solution


def llama_solution(b, s, h, a, k, d, f, L, V, tied):
    one, norm = block(b, s, h, a, k, d, f), 6 * b * s * h + 4 * b * s
    inputs = 2 * b * s * h  # of the head's matrix, in bf16
    loss = 4 * b * s * V + 8 * b * s + 4  # log-probabilities in fp32, labels, their number
    rotations = 2 * 2 * s * d  # cosines and sines of one sequence, for all blocks
    return {
        "parameters": L * one["parameters"] + h + V * h * (1 if tied else 2),  # tied: head and table are one
        "FLOPs": L * one["FLOPs"] + 2 * b * s * h * V,
        "kept": L * one["kept"] + norm + inputs + loss + rotations,
    }


llama = llama_solution


def days_solution(tokens, forward, gpus, peak, mfu):
    flops = 3 * forward * tokens  # the backward pass does two products for each of the forward pass
    seconds = flops / (gpus * peak * mfu)
    return seconds / 86_400


def checkpointed_solution(b, s, h, a, k, d, f, L, V, tied):
    outside = llama(b, s, h, a, k, d, f, 0, V, tied)["kept"]  # of a model without blocks
    return outside + L * 2 * b * s * h + 8 * s  # each block's input, and the positions once


def odd_model_solution():
    return {"h": 96, "a": 6, "k": 2, "d": 8, "f": 160, "L": 3, "V": 256, "tied": True}


def kept_bytes_solution(module, *inputs):
    parameters = {one.untyped_storage().data_ptr() for one in module.parameters()}  # in memory anyway
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()  # several views may share one, which takes memory once
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()  # in full, since any view keeps all of it alive
        return tensor  # autograd keeps what is returned here, as it would have without us

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    return sum(kept.values())


def llama_block_solution(parts, x_bsh):
    from torch.nn import functional as F

    b, s, h = x_bsh.shape
    y_bsh = parts.attention_norm(x_bsh)
    q, k, v = (m(y_bsh).view(b, s, -1, h // parts.heads).transpose(1, 2) for m in (parts.q, parts.k, parts.v))
    q, k = models.rotated(q), models.rotated(k)
    # enable_gqa lets query heads share a key and a value: repeated heads would be copies, which are kept.
    y_basd = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x_bsh = x_bsh + parts.out(y_basd.transpose(1, 2).flatten(2))
    y_bsh = parts.feed_forward_norm(x_bsh)
    return x_bsh + parts.down(F.silu(parts.gate(y_bsh)) * parts.up(y_bsh))


def crossover_length_solution(width, heads):
    return 9 * width / heads  # a s² elements = 9 h s: the input, h, and 4 h on both sides of GELU
