"""Answers of lesson 13: long sequences, and the mistakes that people make there."""

import copy
import gc
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.comparing import counted
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.telling import tell
from helpers.course.exercises.trials import randn_of_rank
from helpers.tools.measure.ledger import Ledger
from helpers.tools.measure.traffic import Traffic

stubs = Stubs("long_sequences")


def _in_tiles(function, seed):
    """Loss and gradients, and what was held; tiles differ in size, and some targets are masked."""
    tiles, vocabulary, masked_out = 8 + seed % 3, 2000, -100
    head, tokens = nn.Linear(8, vocabulary, bias=False), 6 * tiles - 3 - seed % 2
    targets = torch.randint(vocabulary, (2, tokens))
    masked = torch.rand(2, tokens) < 0.5
    masked[:, ::2], masked[:, 0] = False, True  # every tile has a target that counts
    targets[masked] = masked_out
    prompt = targets.clone()
    prompt[:, : 15 + seed % 7] = masked_out  # a prompt that fills two tiles or three
    x = torch.randn(2, tokens, 8, requires_grad=True)
    logits = 4 * vocabulary * targets.numel()  # bytes, of all tokens
    gradients = 4 * (3 * head.weight.numel() + 3 * x.numel())
    room = 12 * vocabulary * 2 * -(-tokens // tiles) + gradients  # the logits of a tile, three times
    with Ledger("cpu") as ledger:
        for tensor in (x, targets, head.weight):
            ledger.label("inputs", tensor)
        start, due = ledger.current, "tiled_loss must return a tensor without dimensions"
        loss = returned(function(head, x, targets, tiles), torch.Tensor, due)
        gc.collect()
        kept = ledger.current - start
        (loss / (3 + seed % 4)).backward()  # as a micro-batch's loss is divided
        peak = ledger.peak - start
    half = copy.deepcopy(head).bfloat16()
    return {
        "the loss": loss,
        "the loss of logits in bf16": function(half, x.detach().bfloat16(), targets, tiles),
        "the loss after a prompt that fills whole tiles": function(head, x.detach(), prompt, tiles),
        "the gradient of x": x.grad,
        "the gradient of the head's weight": head.weight.grad,
        "after the forward pass less is kept than the logits of one tile": kept < logits / tiles,
        "at the peak there are the logits of one tile, three times in fp32, and the gradients": peak <= room,
    }


tiled_loss = stubs.build("tiled_loss", Returning(_in_tiles), worlds=(1, 2))


def _exchanged(function, seed):
    """There and back again, and what was sent; then other dimensions and another dtype."""
    x = randn_of_rank(seed, 1 + seed % 2, 32, 2 * dist.get_world_size(), 64)
    before = x.clone()
    with Traffic() as traffic:
        by_heads = function(x, 2, 1)
    others = function(x.double(), 3, 0)
    return {
        "heads of this rank, all tokens": by_heads,
        "back again: tokens of this rank, all heads": function(by_heads, 1, 2),
        "a rank sends less than its tensor": traffic.sent is None or traffic.sent < 4 * x.numel(),
        "parts of dimension 3, joined along dimension 0": others,
        "the dtype of what comes from float64": str(others.dtype),
        "what was given is as it was": x.equal(before),
    }


exchange = stubs.build("exchange", Returning(_exchanged), together=True)


def _turned(*tensors):
    """Pass tensors on to the next rank of the ring; returns those of the rank before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    sending = [dist.isend(tensor.contiguous(), (rank + 1) % ranks) for tensor in tensors]
    for tensor in received:
        dist.recv(tensor, (rank - 1) % ranks)
    for message in sending:
        message.wait()
    return received


def _ringed(function, seed):
    """Attention with moderate scores, where every key counts, and with scores whose exp() is beyond fp32."""
    seen = {}
    for case, scale in (("", 1), (", large scores", 200)):
        q, k, v = randn_of_rank(seed, 3, 1, 2, 6, 4)
        q, turns = scale * q, []
        before = torch.stack([q, k, v])

        def turn(*tensors, turns=turns):
            turns.append(len(tensors))
            return _turned(*tensors)

        answer = function(q, k, v, turn)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            due = "two tensors, the result and the log-sum-exp"
            raise TypeError(f"ring_forward must return {due}, not {type(answer).__name__}")
        times = len(turns) if set(turns) <= {2} else "of other tensors"
        seen |= {
            f"the result{case}": answer[0],
            f"the log-sum-exp{case}": answer[1],
            f"queries, keys and values are as they were{case}": torch.stack([q, k, v]).equal(before),
            f"turns of keys and values, so that they come home{case}": times,
        }
    return seen


ring_forward = stubs.build("ring_forward", Returning(_ringed), together=True)


longest_sequence = stubs.formula(
    "longest_sequence",
    whole=True,
    cases=[
        (24e9, 12.5e9, 30, 4096, 65024),
        (80e9, 30e9, 96, 12288, 32000),
    ],
)


ring_over_ulysses = stubs.formula("ring_over_ulysses", [(4,), (2,), (8,)])


def score_plan(plan: object, needed: Callable[..., float], room: float) -> None:
    """Say whether a plan fits, with how many GPUs others fit, and what in it is not needed.

    Args:
        plan: the learner's: keyword arguments of `needed`; dots or None where there is none.
        needed: (ranks, **remedies) -> GB of a rank, with defaults that mean none.
        room: GB of a GPU.
    """
    remedies = {"again": True, "tiles": 64, "host": True}
    fewest = next(ranks for ranks in (1, 2, 4, 8) if needed(ranks=ranks, **remedies) < room)
    cheapest = f"fits with the fewest has {counted(fewest, 'GPU')}"
    if plan is ... or plan is None:
        return tell(f"no plan; what {cheapest}")
    if not isinstance(plan, dict):
        return tell(f"a plan is a dict, such as {{'ranks': 8, 'stage': 3}}, and {plan!r} is none")
    try:
        need = needed(**plan)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        return tell(f"this plan cannot be computed: {error}")
    bound = "at least " if plan.get("stage") == 3 else ""  # what stage 3 gathers is left out
    said = f"your plan needs {bound}{need:.1f} of {room} GB on {counted(plan.get('ranks', 1), 'GPU')}: it "
    if need >= room:
        return tell(f"{said}does not fit. What {cheapest}")
    others = {name: {key: plan[key] for key in plan if key != name} for name in plan if name != "ranks"}
    spare = [f"without `{name}`" for name, other in others.items() if needed(**other) < room]
    unneeded = f" It would fit {' or '.join(spare)}." if spare else ""
    return tell(f"{said}fits.{unneeded} What {cheapest}")
