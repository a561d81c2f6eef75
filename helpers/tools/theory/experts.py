"""Mixture of experts: how many tokens an expert takes, what a rank holds and what it sends.

Symbols: E experts of a layer, choices of a token, C capacity (tokens that an expert takes from a rank), h
width, e bytes per element, N ranks, ep ranks that share a layer's experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..whole import positive
from .communication import wire_bytes
from .model_states import deepspeed_bytes
from .zero_config import ZeroConfig

# elements: DeepSpeed's default, above which it begins another group of experts' parameters
LARGEST_GROUP = 178_956_971


def expert_capacity(tokens: int, experts: int, choices: int = 1, factor: float = 1.0, least: int = 0) -> int:
    """C = ceil(tokens factor choices / E), `least` (DeepSpeed's `min_capacity`) or more: of a rank's tokens
    those that an expert takes (GShard, arXiv 2006.16668, section 2.2; Switch, 2101.03961, equation 3).  The
    capacity factor 1 leaves room for every choice if experts are chosen equally often."""
    if not 1 <= choices <= experts:
        raise ValueError(f"a token chooses from 1 to {experts} of {experts} experts, not {choices!r}")
    positive(tokens=tokens, factor=factor)
    return max(math.ceil(tokens * factor * choices / experts), least)


def all_to_all_bytes(experts: int, capacity: int, width: int, element_bytes: int = 2) -> int:
    """E C h e: the tensor of one all-to-all of a layer, empty places included."""
    return experts * capacity * width * element_bytes


def expert_parallel_wire_bytes(layers: int, message_bytes: float, ep: int) -> float:
    """Bytes that a rank sends for its experts in a forward and a backward pass: four all-to-alls of
    `message_bytes` (`all_to_all_bytes`) in each of `layers` that have experts, among ep ranks."""
    return 4 * layers * wire_bytes("all_to_all", message_bytes, ep)


def expert_parallel_bytes(
    shared: Sequence[int],
    experts: Sequence[int],
    config: ZeroConfig | dict,
    *,
    ranks: int,
    ep: int,
    rank: int = 0,
    moment: str = "between micro-batches",
    device: str = "cpu",
) -> dict[str, int]:
    """What a rank holds under `deepspeed.moe` at stages 0 to 2, to the byte: `deepspeed_bytes` of two groups
    of parameters, of so many elements each.

    ZeRO divides the shared ones among all N ranks, and a rank's experts among the N / ep ranks that hold the
    same ones (DeepSpeed 0.19's source; Rajbhandari et al., DeepSpeed-MoE, arXiv 2201.05596).
    """
    if ep < 1 or ranks % ep:
        raise ValueError(f"ep must divide the {ranks} ranks, which {ep!r} does not")
    config = ZeroConfig.of(config)
    if config.stage == 3:
        raise ValueError("deepspeed.moe refuses ZeRO-3: use stage 0, 1 or 2")
    held = deepspeed_bytes(shared, config, ranks=ranks, rank=rank, moment=moment, device=device)
    alone = {"config": config, "ranks": ranks // ep, "rank": rank // ep, "moment": moment, "device": device}
    for group in [experts] if config.stage == 0 else _groups(experts):
        for category, count in deepspeed_bytes(group, **alone).items():
            if category not in ("buffers", "other"):  # one bucket and one norm, whatever the number of groups
                held[category] += count
    return held


def _groups(elements):
    """Elements of each parameter of each of DeepSpeed's groups of experts."""
    groups = [[]]
    for count in elements:
        if groups[-1] and sum(groups[-1]) + count > LARGEST_GROUP:
            groups.append([])
        groups[-1].append(count)
    return groups
