"""Experts in the place of a feed-forward layer, all of them in one process: what a layer spread over ranks is
held against.

Shapes in names as in `gpt`; and S = b s tokens, C their channels (h), E experts, K choices of a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn
from helpers.course.models.gpt import GPT, FeedForward, GPTSize, Linear

# the number of an expert among those of a rank, in a parameter's name
LOCAL = re.compile(r"\.experts\.(?:deepspeed_experts\.)?(\d+)\.")


def expert(size: GPTSize, layer: int, number: int) -> FeedForward:
    """Expert `number` of a layer; seeded by both, so that every rank can build the same one."""
    torch.manual_seed(1000 * (layer + 1) + number)
    return FeedForward(size)


def router(size: GPTSize, experts: int, layer: int) -> Linear:
    """A layer's router: a score for each expert, without a bias; seeded by the layer."""
    torch.manual_seed(1000 * (layer + 1) + 999)
    return Linear(size.width, experts, bias=False)


def choices(router: nn.Linear, x_SC: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k experts that the router finds best for each token, of shape (S, K); the weights of their answers;
    and all probabilities, (S, E).

    With one choice the weight is its probability (Fedus et al., Switch Transformers, arXiv 2101.03961,
    section 2.1); with several, their probabilities divided by their sum (Lepikhin et al., GShard, arXiv
    2006.16668, section 2.2).  All in fp32.
    """
    probabilities_SE = nn.functional.linear(x_SC.float(), router.weight.float()).softmax(-1)
    weight_SK, expert_SK = probabilities_SE.topk(k)
    return expert_SK, weight_SK / weight_SK.sum(-1, keepdim=True) if k > 1 else weight_SK, probabilities_SE


class RoutedFeedForward(nn.Module):
    """A router and all E `experts` of a layer, whose number seeds them; each token goes to its k best ones,
    however many others go there too."""

    def __init__(self, size: GPTSize, experts: int, k: int = 1, layer: int = 0) -> None:
        super().__init__()
        self.router, self.k = router(size, experts, layer), k
        self.experts = nn.ModuleList(expert(size, layer, number) for number in range(experts))

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        x_SC = x_bsh.flatten(0, 1)
        expert_SK, weight_SK, _ = choices(self.router, x_SC, self.k)
        y_SC = torch.zeros_like(x_SC)
        for number, chosen in enumerate(self.experts):
            token, choice = (expert_SK == number).nonzero(as_tuple=True)
            answer = weight_SK[token, choice].unsqueeze(-1) * chosen(x_SC[token])
            y_SC = y_SC.index_add(0, token, answer.to(y_SC.dtype))
        return y_SC.view_as(x_bsh)


def with_experts(model: GPT, make: Callable[[int], nn.Module]) -> GPT:
    """A GPT whose feed-forward layers are replaced: block number i gets `make(i)`."""
    for number, block in enumerate(model.blocks):
        block.feed_forward = make(number)
    return model


def name_in_one_process(name: str, first: int) -> str:
    """A parameter's name in the model with all experts, from its name on a rank, by hand or in DeepSpeed's
    layer, whose first expert is `first`."""
    name = name.replace(".moe.deepspeed_moe.", ".").replace(".gate.wg.", ".router.")
    return LOCAL.sub(lambda found: f".experts.{first + int(found[1])}.", name)
