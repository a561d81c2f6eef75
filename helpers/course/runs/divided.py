"""What lesson 05 runs beside the learner's functions: a small Llama of transformers, of which ranks share
every matrix; faults; and DeepSpeed's AutoTP on the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course import corpus
from helpers.course.exercises.ladders import rebound
from helpers.course.exercises.trials import summed
from helpers.course.models.llama import attend
from helpers.course.training.comparable import WITHIN, join, words
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    Rows = tuple[torch.Tensor, torch.Tensor]
    Cut = Callable[[torch.Tensor, int, int, int, int], torch.Tensor]  # as a learner writes `own_rows`
    Parts = Callable[[Mapping, int, int, int, int], dict[str, torch.Tensor]]  # and `own_parts`

HEADS, KV_HEADS, WIDTH, ROWS, LENGTH = 8, 4, 64, 4, 32
FALLEN = 3.5  # a loss that has clearly fallen in 60 steps, from 5.6
CLOSE = 1e-5  # what counts as equal, in lengths of the right answer


def llama() -> LlamaForCausalLM:
    """Two blocks of transformers' Llama, drawn at random, the same in every process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "intermediate_size": 176, "num_hidden_layers": 2, "vocab_size": 256}
    shape |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=64, **shape))


def same_rows(step: int) -> Rows:
    """Four sequences of a step and their targets, the same on all ranks."""
    return corpus.batch(step, ROWS, LENGTH)


def own_rows_read(step: int) -> Rows:
    """A mistake: each rank reads sequences of its own, as in data parallelism."""
    return corpus.batch(step, ROWS * dist.get_world_size(), LENGTH, dist.get_rank(), dist.get_world_size())


# --- the cut


def in_the_middle(stacked: torch.Tensor, rank: int, ranks: int, heads: int, kv_heads: int) -> torch.Tensor:
    """A mistake: the stack in equal pieces, wherever q ends and k begins."""
    return stacked.chunk(ranks)[rank]


def cut_in_the_middle(own_parts: Parts) -> Parts:
    """`own_parts` with that mistake."""

    def parts(whole: Mapping, rank: int, ranks: int, *heads: int) -> dict[str, torch.Tensor]:
        stacked = torch.cat([whole[name] for name in "qkv"])
        return own_parts(whole, rank, ranks, *heads) | {"qkv": in_the_middle(stacked, rank, ranks, *heads)}

    return parts


def owners(cut: Cut, ranks: int = 2, heads: int = 8, kv_heads: int = 4) -> list[int]:
    """Which rank takes each head of [q; k; v], by a cut of rows that carry their numbers."""
    numbers = torch.arange(float(heads + 2 * kv_heads))[:, None]
    found = [-1] * len(numbers)
    for rank in range(ranks):
        for number in cut(numbers, rank, ranks, heads, kv_heads).flatten().tolist():
            found[int(number)] = rank
    return found


# --- a block


def far(found: torch.Tensor, right: torch.Tensor) -> float:
    """How far it is from the right one, in lengths of that."""
    return ((found - right).norm() / right.norm()).item()


class Block(nn.Module):
    """This rank's parts of transformers' block as parameters, with the learner's functions."""

    def __init__(self, whole: nn.Module, rank: int, ranks: int, block: Callable, parts: Callable) -> None:
        super().__init__()
        layers = {"q": whole.self_attn.q_proj, "k": whole.self_attn.k_proj, "v": whole.self_attn.v_proj}
        layers |= {"out": whole.self_attn.o_proj, "gate": whole.mlp.gate_proj, "up": whole.mlp.up_proj}
        layers |= {"down": whole.mlp.down_proj}
        matrices = {name: layer.weight for name, layer in layers.items()}
        own = parts(matrices, rank, ranks, HEADS, KV_HEADS)
        self.parts = nn.ParameterDict({name: one.detach().clone() for name, one in own.items()})
        self.norms = nn.ModuleList([whole.input_layernorm, whole.post_attention_layernorm])
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x, self.parts, self.norms, lambda qkv: attend(qkv, HEADS // KV_HEADS))


def whole_block(x: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """Transformers' first block, and what it makes of x."""
    model = llama().model
    places = model.rotary_emb(x, torch.arange(x.shape[1])[None])
    result = model.layers[0](x, position_embeddings=places)
    return model.layers[0], result[0] if isinstance(result, tuple) else result


def block_in_ranks(parts: Parts, block: Callable) -> dict[str, object]:
    """A block that ranks share beside a whole one on the same rank: distances, shapes, messages."""
    rank, ranks, _ = join()
    x, weights = torch.randn(2, ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    right_x, own_x = (x.clone().requires_grad_() for _ in range(2))
    whole, right = whole_block(right_x)
    shared = Block(copy.deepcopy(whole), rank, ranks, block, parts)
    (right * weights).sum().backward()
    with Traffic() as forward:
        result = shared(own_x)
    with Traffic() as backward:
        (result * weights).sum().backward()
    due = copy.deepcopy(whole)
    for slot, parameter in zip(due.parameters(), whole.parameters()):  # a block whose weights are gradients
        slot.data = parameter.grad
    cut = dict(Block(due, rank, ranks, block, parts).named_parameters())
    off = {name: far(one.grad, cut[name]) for name, one in shared.named_parameters()}
    off |= {"x": far(own_x.grad, right_x.grad)}
    sizes = {name: tuple(one.shape) for name, one in shared.named_parameters()}
    both = {"forward": forward, "backward": backward}
    return {"result": far(result, right), "gradients": max(off.values()), "sizes": sizes} | {
        name: [(one.count, one.operation, one.bytes) for one in traffic.messages if one.ranks > 1]
        for name, traffic in both.items()
    }


def of_a_block(parts: Parts, block: Callable, worlds: Sequence[int] = (2, 4)) -> list[dict[str, object]]:
    """Rows for a table: whether a shared block computes what transformers' does, and what it sends."""
    rows = []
    for ranks in worlds:
        found = launch(block_in_ranks, ranks=ranks, arguments={"parts": parts, "block": block}, device="cpu")
        row = {"t": ranks, "rows of qkv": found[0]["sizes"]["parts.qkv"][0]}
        for what in ("result", "gradients"):
            off = max(one[what] for one in found)
            row[what] = "the same" if off < CLOSE else f"{off:.2g} off"
        rows.append(row | {name: told(found[0][name]) for name in ("forward", "backward")})
    return rows


def told(messages: Sequence[tuple[int, str, int]]) -> str:
    return ", ".join(f"{count} {operation} of {size:,} bytes" for count, operation, size in messages) or "-"


# --- a training


class Report:
    """What tests look at in a rank after a training.

    Attributes:
        losses: of every step.
        first: {"tokens", "head"}: gradients of the first step, all rows of the head.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.losses, self.first = model, [], {}

    def note(self, loss: torch.Tensor) -> None:
        """After a backward pass, before the update."""
        self.losses.append(loss.item())
        if not self.first:
            head = gathered(self.model.head.grad)
            self.first = {"head": torch.cat(head), "tokens": self.model.tokens.weight.grad.clone()}

    @property
    def apart(self) -> float:
        """How far the ranks' copies of all norms' weights are from each other."""
        norms = [one.detach() for name, one in self.model.named_parameters() if "norm" in name]
        mine = torch.cat(norms)
        return max(far(other, mine) for other in gathered(mine))


@dataclass(frozen=True)
class Losses:
    """What a training by DeepSpeed reports."""

    losses: list[float]


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor.contiguous())
    return found


def losses_of(train: Callable, ranks: int = 2, **options: object) -> list[float]:
    """What a training with some options reports in its first rank."""
    arguments = {"train": partial(train, **options)}
    return launch(watched, ranks=ranks, arguments=arguments, device="cpu")[0][0]


def beside_each_other(
    ways: Mapping[str, tuple[int, Callable]], messages: bool = True
) -> list[dict[str, object]]:
    """Rows for a table, of {name: (ranks, training)}: losses, whether they are the first training's, and
    messages between ranks in a step.  A training returns something with `losses`."""
    rows, right = [], None
    for name, (ranks, train) in ways.items():
        losses, sent = launch(watched, ranks=ranks, arguments={"train": train}, device="cpu")[0]
        right = right or losses
        same = all(abs(one - other) < WITHIN for one, other in zip(losses, right))
        row = {"": name, "ranks": ranks, "losses": words(losses)}
        row["within 0.0001 of the first"] = "yes" if same else "NO"
        rows.append(row | ({"messages in a step": sent} if messages else {}))
    return rows


def watched(train: Callable) -> tuple[list[float], str]:
    """A training's losses, and the messages of one of its steps in words, without those of its beginning."""
    from deepspeed.utils import logger

    logger.setLevel("ERROR")  # it says which key takes precedence
    join()
    with Traffic() as traffic:
        losses = train().losses
    sent = [
        (one.count // len(losses), one.operation, one.bytes)
        for one in traffic.messages
        if one.ranks > 1 and one.count >= len(losses) and one.operation != "broadcast"
    ]
    return losses, told(sent)


# --- faults


def planted(block: Callable, **others: Callable) -> Callable:
    """A block that calls other functions under some names."""
    return rebound(block, others)


class SumBothWays(torch.autograd.Function):
    """g with a mistake: it sums the gradient, too."""

    @staticmethod
    def forward(context: object, part: torch.Tensor) -> torch.Tensor:
        return summed(part)

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient)


def row_that_sums_twice(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A row-parallel layer whose g sums backward, too."""
    return SumBothWays.apply(F.linear(x, weight))


def tests() -> dict[str, Callable]:
    """Tests for `caught`, of `train(steps=..., optimizer=..., lr=...)`, which returns a `Report`."""
    adam = {"optimizer": torch.optim.AdamW, "lr": 1e-3}
    return {
        "the first loss": lambda train: train(steps=1).losses,
        "the loss falls": lambda train: float(train(steps=60, **adam).losses[-1] < FALLEN),
        "the head's gradient": lambda train: train(steps=1).first["head"],
        "the embedding's gradient": lambda train: train(steps=1).first["tokens"],
        "ranks' norms are equal": lambda train: train(steps=3).apart,
    }
