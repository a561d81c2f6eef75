"""Answers of lesson 12: long sequences, and the mistakes that people make there."""

from __future__ import annotations

import copy
import gc
import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.telling import tell
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import EllipsisType

__all__ = [
    "exchange",
    "guess",
    "longest_sequence",
    "ring_forward",
    "ring_over_ulysses",
    "score_plan",
    "tiled_loss",
]


# --- a loss in tiles

VOCABULARY, MASKED = 2000, -100


def _in_tiles(function, seed):
    """Loss and gradients, and what was held; the tokens cannot be cut into equal tiles, and some targets are
    masked."""
    tiles = 8 + seed % 3
    head, tokens = nn.Linear(8, VOCABULARY, bias=False), 6 * tiles - 3 - seed % 2
    targets = torch.randint(VOCABULARY, (2, tokens))
    masked = torch.rand(2, tokens) < 0.5
    masked[:, ::2], masked[:, 0] = False, True  # every tile has a target that counts
    targets[masked] = MASKED
    prompt = targets.clone()
    prompt[:, : 15 + seed % 7] = MASKED  # a prompt that fills two tiles or three
    x = torch.randn(2, tokens, 8, requires_grad=True)
    logits = 4 * VOCABULARY * targets.numel()  # bytes, of all tokens
    room = 12 * VOCABULARY * 2 * -(-tokens // tiles) + 4 * (
        3 * head.weight.numel() + 3 * x.numel()
    )  # of a tile; gradients
    with Ledger("cpu") as ledger:
        for tensor in (x, targets, head.weight):
            ledger.label("inputs", tensor)
        start = ledger.current
        loss = function(head, x, targets, tiles)
        gc.collect()
        kept = ledger.current - start
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"tiled_loss must return a tensor without dimensions, not {loss!r}")
        loss.backward()
        peak = ledger.peak - start
    return {
        "the loss": loss,
        "the loss of logits in bf16": function(
            copy.deepcopy(head).bfloat16(), x.detach().bfloat16(), targets, tiles
        ),
        "the loss after a prompt that fills whole tiles": function(head, x.detach(), prompt, tiles),
        "the gradient of x": x.grad,
        "the gradient of the head's weight": head.weight.grad,
        "after the forward pass less is kept than the logits of one tile": kept < logits / tiles,
        "at the peak there are the logits of one tile, three times in fp32, and the gradients": peak <= room,
    }


def _tiled(reduction="sum", divide="masked", again=True, cast=True, fewer=1):
    """A mistaken way to cut."""

    def loss_of(head, x, targets):
        logits = head(x).float() if cast else head(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)

    def tiled_loss(head, x_BTC, targets_BT, tiles):
        total, tiles = 0.0, tiles // fewer
        for x, targets in zip(x_BTC.chunk(tiles, 1), targets_BT.chunk(tiles, 1)):
            if again:
                total = total + checkpoint(
                    loss_of, head, x, targets, use_reentrant=False, preserve_rng_state=False
                )
            else:
                total = total + loss_of(head, x, targets)
        counted = {
            "masked": (targets_BT != MASKED).sum(),
            "all": targets_BT.numel(),
            "tiles": tiles,
            "nothing": 1,
        }
        return total / counted[divide]

    return tiled_loss


tiled_loss = Build(
    "tiled_loss",
    _in_tiles,
    worlds=(1, 2),
    mistakes={
        "the last tile may be shorter, so a mean of means is not the mean: sum, and divide once "
        "by the number of targets": _tiled("mean", "tiles"),
        "that is the sum over the tokens; the loss is their mean": _tiled(divide="nothing"),
        "the mean is over the targets that count: divide by the number of those that are not "
        "-100, not by all": _tiled(divide="all"),
        "what the loss makes of the logits is kept for every tile: run head and loss of a tile "
        "inside one `checkpoint`": _tiled(again=False),
        "in bf16 the sum of exponentials has three digits: make the logits fp32 with `.float()` "
        "before the loss": _tiled(cast=False),
        "cut into as many tiles as asked for: each that is larger needs more room": _tiled(fewer=2),
    },
    praise="the logits of one tile exist at a time, and are computed once more in the backward pass",
)


# --- tokens exchanged for heads


def _exchanged(function, seed):
    """There and back again, and what was sent."""
    import deepspeed.comm as comm

    ranks, rank = comm.get_world_size(), comm.get_rank()
    random = torch.Generator().manual_seed(1000 * (seed % 10**6) + rank)
    x = torch.randn(1 + seed % 2, 32, 2 * ranks, 64, generator=random)
    with Traffic() as traffic:
        by_heads = function(x, 2, 1)
    back = function(by_heads, 1, 2)
    size = 4 * x.numel()
    return {
        "heads of this rank, all tokens": by_heads,
        "back again: tokens of this rank, all heads": back,
        "a rank sends less than its tensor": traffic.sent is None or traffic.sent < size,
    }


def _alone(x, split, collect):
    import deepspeed.comm as comm

    return torch.cat(x.chunk(comm.get_world_size(), split), collect)


def _all_to_all(x, split):
    import deepspeed.comm as comm

    sent = torch.stack(x.chunk(comm.get_world_size(), split))
    received = torch.empty_like(sent)
    comm.all_to_all_single(received, sent)
    return received


def _same_dimension(x, split, collect):
    return torch.cat(_all_to_all(x, split).unbind(), split)


def _backwards(x, split, collect):
    return torch.cat(_all_to_all(x, split).unbind()[::-1], collect)


def _gather_all(x, split, collect):
    import deepspeed.comm as comm

    ranks = comm.get_world_size()
    everything = x.new_empty(ranks * x.shape[0], *x.shape[1:])
    comm.all_gather_into_tensor(everything, x.contiguous())
    return torch.cat([part.chunk(ranks, split)[comm.get_rank()] for part in everything.chunk(ranks)], collect)


exchange = Build(
    "exchange",
    _exchanged,
    mistakes={
        "these are this rank's own parts: nothing was sent": _alone,
        "what has come are other places along `collect`: join the "
        "parts there, not along `split`": _same_dimension,
        "the parts must be joined in the order of the ranks they came from": _backwards,
        "an all-gather sends everything to everybody; each rank needs only its part of it": _gather_all,
    },
    praise="each rank gave away all but its own share of heads, and got every token for those it kept",
)


# --- ring attention


def turn(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Pass tensors on to the next rank of the ring; returns those of the rank before."""
    import deepspeed.comm as comm

    rank, ranks = comm.get_rank(), comm.get_world_size()
    tensors = [tensor.contiguous() for tensor in tensors]
    received = [torch.empty_like(tensor) for tensor in tensors]
    sending = [comm.isend(tensor, (rank + 1) % ranks) for tensor in tensors]
    for tensor in received:
        comm.recv(tensor, (rank - 1) % ranks)
    for message in sending:
        message.wait()
    return received


def _ringed(function, seed):
    import deepspeed.comm as comm

    random = torch.Generator().manual_seed(1000 * (seed % 10**6) + comm.get_rank())
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=random)
    q, kept, turns = 200 * q, (k.clone(), v.clone()), []  # exp() of such scores is beyond fp32

    def counting(*tensors):
        turns.append(len(tensors))
        return turn(*tensors)

    answer = function(q, k, v, counting)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise TypeError(
            "ring_forward must return two tensors, the result and the log-sum-exp, not "
            f"{type(answer).__name__}"
        )
    same = k.equal(kept[0]) and v.equal(kept[1])
    answer = {"the result": answer[0], "the log-sum-exp": answer[1], "keys and values are as they were": same}
    return answer | {
        "turns of keys and values, so that they come home": len(turns)
        if set(turns) <= {2}
        else "of other tensors"
    }


def _gathered(q, k, v, turn):
    """Attention to the keys of all ranks at once."""
    import deepspeed.comm as comm

    ranks, rank, own = comm.get_world_size(), comm.get_rank(), q.shape[-2]
    parts = []
    for tensor in (k, v):
        received = tensor.new_empty(ranks * tensor.shape[0], *tensor.shape[1:])
        comm.all_gather_into_tensor(received, tensor.contiguous())
        parts.append(torch.cat(received.chunk(ranks), -2)[..., : (rank + 1) * own, :])
    scores = q @ parts[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
    seen = torch.ones(own, scores.shape[-1], dtype=torch.bool).tril(rank * own)
    scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ parts[1], scores.logsumexp(-1)


def _plain_sums(q, k, v, turn):
    """Sums of exponentials as they are, which are infinite where scores are large."""
    import deepspeed.comm as comm

    total, weight = torch.zeros_like(q), q.new_zeros(*q.shape[:-1], 1)
    for step in range(comm.get_world_size()):
        if step <= comm.get_rank():
            parts = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).exp()
            parts = parts.tril() if step == 0 else parts
            total, weight = total + parts @ v, weight + parts.sum(-1, keepdim=True)
        k, v = turn(k, v)
    return total / weight, weight.log().squeeze(-1)


def _ring(future="left out", mask=True, rescale=True, turns=True, last=True):
    """A mistaken ring."""

    def ring_forward(q, k, v, turn):
        import deepspeed.comm as comm

        total, log_sum = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
        for step in range(comm.get_world_size()):
            if step <= comm.get_rank() or future == "seen":
                scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
                if step == 0 and mask:
                    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
                new = torch.logaddexp(log_sum, scores.logsumexp(-1))
                total = (
                    total * ((log_sum - new).exp()[..., None] if rescale else 1)
                    + (scores - new[..., None]).exp() @ v
                )
                log_sum = new
            if turns and (last or step + 1 < comm.get_world_size()):
                k, v = turn(k, v)
        return total, log_sum

    return ring_forward


ring_forward = Build(
    "ring_forward",
    _ringed,
    mistakes={
        "keys of later ranks are in the future: after `step` turns they are those of rank - "
        "step, and negative means later": _ring(future="seen"),
        "within its own tokens a rank must not look ahead: mask the scores of the first step": _ring(
            mask=False
        ),
        "what was summed before belongs to a smaller sum of exponentials: scale it by exp(old - new)": _ring(
            rescale=False
        ),
        "keys and values never moved on": _ring(turns=False),
        "turn once more after the last step: keys and values come home then, and what follows "
        "counts N turns": _ring(last=False),
        "you hold the keys of all ranks at once; let `turn` bring those of one rank at a time": _gathered,
        "exp() of a large score is infinite: keep the logarithm of the sum, and scale by "
        "differences of logarithms": _plain_sums,
    },
    praise="parts of a softmax can be added up in any order, as long as each is scaled to the common sum",
)


# --- formulas


def _tokens(memory, states, per_token):
    return (memory - states) / per_token


longest_sequence = Exercise(
    reference=lambda memory, states, layers, width, vocabulary: _tokens(
        memory, states, 2 * width * layers + max(32 * width, 12 * vocabulary)
    ),
    cases=(
        {"memory": 24e9, "states": 12.5e9, "layers": 30, "width": 4096, "vocabulary": 65024},
        {"memory": 80e9, "states": 30e9, "layers": 96, "width": 12288, "vocabulary": 32000},
    ),
    mistakes={
        "take off what the states hold first": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, 0, 2 * width * layers + max(32 * width, 12 * vocabulary)
        ),
        "the loss is over before the first block is computed again: "
        "the larger of the two counts": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, states, 2 * width * layers + 32 * width + 12 * vocabulary
        ),
        "the loss has three fp32 numbers for each token and "
        "vocabulary entry at its peak": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, states, 2 * width * layers + max(32 * width, 4 * vocabulary)
        ),
        "the logits are missing": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, states, 2 * width * layers + 32 * width
        ),
        "here a block computed "
        "again holds more than the loss": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, states, 2 * width * layers + 12 * vocabulary
        ),
        "that is without checkpointing: a checkpointed "
        "block keeps its input alone": lambda memory, states, layers, width, vocabulary: _tokens(
            memory, states, 32 * width * layers + 12 * vocabulary
        ),
    },
    praise="everything that grows, grows with the tokens, so the length follows from bytes per token",
    whole=True,
)

ring_over_ulysses = Exercise(
    reference=lambda ranks: 3 * ranks**2 / (4 * (ranks - 1)),
    cases=({"ranks": 4}, {"ranks": 2}, {"ranks": 8}),
    mistakes={
        "that is the number of messages; Ulysses' tensor stays with (N - "
        "1)/N of itself on the way": lambda ranks: 3 * ranks / 4,
        "the other way round": lambda ranks: 4 * (ranks - 1) / (3 * ranks**2),
        "a rank's tensors are s / N tokens long in both": lambda ranks: 3 * ranks / (4 * (ranks - 1)),
    },
    praise="a ring sends every key to every rank, Ulysses sends each number to the one rank that needs it",
)


# --- a plan for a GPU

GPUS = (1, 2, 4, 8)


def score_plan(
    plan: dict[str, object] | EllipsisType | None, needed: Callable[..., float], room: float
) -> None:
    """Say whether a plan fits, with how many GPUs others fit, and what in it is not needed.

    Args:
        plan: the learner's: a dict of keyword arguments of `needed`; dots or None where there is none.
        needed: (ranks, **remedies) -> GB of a rank; ranks, and every remedy, have a default that means none.
        room: GB of a GPU.
    """
    fewest = next(
        f"{ranks} GPU{'s' * (ranks > 1)}"
        for ranks in GPUS
        if needed(ranks=ranks, again=True, tiles=64, host=True) < room
    )
    if plan is ... or plan is None:
        return tell(f"no plan; what fits with the fewest has {fewest}")
    if not isinstance(plan, dict):
        return tell(f"a plan is a dict, such as {{'ranks': 8, 'stage': 3}}, and {plan!r} is none")
    try:
        need = needed(**plan)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        return tell(f"this plan cannot be computed: {error}")
    gpus = plan.get("ranks", 1)
    bound = "at least " if plan.get("stage") == 3 else ""  # what stage 3 gathers is left out
    said = (
        f"your plan needs {bound}{need:.1f} of {room} GB on {gpus} GPU{'s' * (gpus != 1)}: it "
        f"{'fits' if need < room else 'does not fit'}"
    )
    if need < room:
        spare = [
            name
            for name in plan
            if name != "ranks" and needed(**{key: value for key, value in plan.items() if key != name}) < room
        ]
        said += (
            f". It would fit without {' or without '.join(f'`{name}`' for name in spare)}" if spare else ""
        )
    return tell(f"{said}. What fits with the fewest has {fewest}")
