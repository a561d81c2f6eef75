"""The course's own answers of lesson 01."""

import math

import torch
from helpers.course import models


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


def llama_block_solution(parts, x_BTC):
    from torch.nn import functional as F

    B, T, C = x_BTC.shape
    y_BTC = parts.attention_norm(x_BTC)
    q, k, v = (m(y_BTC).view(B, T, -1, C // parts.heads).transpose(1, 2) for m in (parts.q, parts.k, parts.v))
    q, k = models.rotated(q), models.rotated(k)
    # enable_gqa lets query heads share a key and a value: repeated heads would be copies, which are kept.
    y_BHTD = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x_BTC = x_BTC + parts.out(y_BHTD.transpose(1, 2).flatten(2))
    y_BTC = parts.feed_forward_norm(x_BTC)
    return x_BTC + parts.down(F.silu(parts.gate(y_BTC)) * parts.up(y_BTC))


def affordable_parameters_solution(flops_per_second, seconds, tokens_per_parameter):
    return math.sqrt(flops_per_second * seconds / (6 * tokens_per_parameter))  # 6 N D, and D grows with N


def crossover_length_solution(width, heads):
    return 9 * width / heads  # a s² elements = 9 h s: the input, h, and 4 h on both sides of GELU
