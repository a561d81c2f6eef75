"""Bytes that a collective must move: what a bandwidth-optimal algorithm sends per rank, the *ideal* wire
bytes; the seconds it takes; and what of them work can hide.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), for all-reduce and its two halves; the
ZeRO paper uses the same counts (arXiv 1910.02054, section 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..whole import check_choice, not_negative, positive, whole

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send")


def wire_bytes(collective: str, tensor_bytes: float, ranks: int) -> float:
    """Bytes that each of N ranks sends, on average, for one of `COLLECTIVES` on a tensor of S bytes.

    all-reduce 2 (N-1)/N S; reduce-scatter, all-gather, all-to-all (N-1)/N S; broadcast and reduce (N-1)/N S
    (a tree or chain sends the tensor N-1 times in all); send: S.  The tensor is the full one: what all-gather
    produces, what reduce-scatter starts from.
    """
    check_choice("collective", collective, COLLECTIVES)
    whole(ranks, "ranks")
    if collective == "send":
        return tensor_bytes
    return (2 if collective == "all_reduce" else 1) * tensor_bytes * (ranks - 1) / ranks


def collective_seconds(
    collective: str, tensor_bytes: float, ranks: int, latency: float, bandwidth: float
) -> float:
    """Seconds of a collective (as in `wire_bytes`) by the alpha-beta model: alpha, the `latency` in seconds,
    for each message, and bytes over 1 / beta, the `bandwidth` in bytes per second (Hockney, "The
    communication challenge for MPP", 1994).  Additions take no time.

    Messages are those of Thakur et al., "Optimization of collective communication operations in MPICH"
    (2005), section 4.  With N ranks and S bytes: all-gather, reduce-scatter (ring) and all-to-all (pairs) are
    N - 1 messages of S / N, one after another; an all-reduce (ring) 2 (N - 1) of them; broadcast and reduce
    (binomial tree) ceil(log2 N) messages of S; a send one of S.
    """
    positive(bandwidth=bandwidth)
    not_negative(latency=latency)
    sent = wire_bytes(collective, tensor_bytes, ranks)
    if collective in ("broadcast", "reduce"):
        return math.ceil(math.log2(ranks)) * (latency + tensor_bytes / bandwidth)
    messages = {"all_reduce": 2 * (ranks - 1), "send": 1}.get(collective, ranks - 1)
    return sent / bandwidth + messages * latency


@dataclass(frozen=True)
class Pass:
    """A part of a step, in seconds: a rank's work, and messages that belong to it.  Every account of time in
    this package is made of these."""

    work: float  # of the computation that the messages need not wait for
    messages: float = 0.0  # by themselves
    hides: bool = False  # whether messages go on behind the work, and neither slows the other

    @property
    def hidden(self) -> float:
        """Of the messages, what goes on behind the work."""
        return min(self.work, self.messages) if self.hides else 0.0

    @property
    def exposed(self) -> float:
        """Of the messages, what has no work beside it."""
        return self.messages - self.hidden

    @property
    def total(self) -> float:
        """How long the pass takes."""
        return self.work + self.exposed


def hidden_fraction(work_seconds: float, message_seconds: float) -> float:
    """The part of the messages that work can hide: min(1, work / messages), 1 without messages."""
    hidden = Pass(work_seconds, message_seconds, hides=True).hidden
    return hidden / message_seconds if message_seconds else 1.0


def hiding_bandwidth(flops: float, message_bytes: float, rate: float) -> float:
    """message bytes x rate / FLOPs: bytes per second at which messages take as long as a rank's work.

    ZeRO-3 in bf16 sends 6 Psi bytes (at most, times (N - 1) / N) for 6 Psi T FLOPs of a micro-batch of T
    tokens: F / T at F FLOPs per second (arXiv 1910.02054, section 7, for the bytes).
    """
    positive(flops=flops)
    return message_bytes * rate / flops


def zero_wire_bytes(
    parameters: float,
    ranks: int,
    stage: int = 0,
    element_bytes: int = 2,
    accumulation: int = 1,
    whole_buckets: bool = False,
) -> float:
    """Bytes that a rank ideally sends per step of data parallelism: some times e Psi (N - 1) / N, Psi the
    model's `parameters`.

    The paper (arXiv 1910.02054, section 7): 2 times at stages 0, 1 and 2 (gradients, and at stages 1 and 2
    the updated parameters); 3 at stage 3 (parameters gathered for the forward and for the backward pass, and
    gradients).  Stages 2 and 3 send gradients, and stage 3 gathers parameters, in each of `accumulation`
    micro-batches.

    With `whole_buckets`, DeepSpeed's default at stages 1 and 2 (`use_multi_rank_bucket_allreduce`), whole
    buckets are all-reduced, which sends gradients twice.
    """
    whole(stage, "stage", 0, 3)
    whole(accumulation, "accumulation")
    unit = wire_bytes("all_gather", element_bytes * parameters, ranks)
    if stage == 0:
        return 2 * unit
    if stage == 3:
        return 3 * accumulation * unit
    gradients = (2 if whole_buckets else 1) * (accumulation if stage == 2 else 1)
    return (gradients + 1) * unit
