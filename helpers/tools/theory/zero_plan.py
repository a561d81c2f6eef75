"""Plans of data-parallel training with ZeRO on a cluster: what fits, and how long a step takes, of the few
terms that decide at size.  Deliberately coarse: activations at most, work at one rate, messages by bandwidth
alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..whole import not_negative, positive, whole
from .communication import Pass, wire_bytes, zero_wire_bytes
from .gpt_size import GPTSize
from .hardware import Cluster
from .layers import (
    BF16,
    checkpointed_activation_bytes,
    gpt_activation_bytes,
    gpt_parameters,
)
from .llama import LlamaSize
from .long_sequences import loss_peak_bytes
from .model_states import MOMENTS, ideal_bytes
from .peak import peak_moments


@dataclass(frozen=True, kw_only=True)
class ZeroPlan:
    """A GPT or a Llama on a cluster in bf16 with ZeRO's stage 0, 1 or 2; sequences as long as its context."""

    size: GPTSize | LlamaSize
    cluster: Cluster
    stage: int
    checkpointed: float = (
        0  # the share of blocks that keep their input alone; True and False are all and none
    )
    buckets: float = 0  # bytes of gradients on their way; twice the bucket with `overlap_comm`
    reserve: float = 3e9  # bytes of a GPU for the CUDA context and the network

    def __post_init__(self):
        if self.stage not in (0, 1, 2):
            reason = "stage 3 sends parameters in each pass, which this plan does not count"
            raise ValueError(f"stage must be 0, 1 or 2, not {self.stage!r}: {reason}")
        if not 0 <= self.checkpointed <= 1:
            words = f"checkpointed is a share of the blocks, 0 to 1, not {self.checkpointed!r}"
            raise ValueError(f"{words}: divide a number of blocks by all blocks")
        not_negative(buckets=self.buckets, reserve=self.reserve)

    @property
    def states(self) -> float:
        """Bytes of the model states between micro-batches, by the paper: `ideal_bytes`."""
        return sum(ideal_bytes(gpt_parameters(self.size), self.cluster.gpus, self.stage).values())

    @property
    def room(self) -> float:
        """Bytes that are left for activations at the loss; negative where the states do not fit."""
        held = dict.fromkeys(MOMENTS, {"states": self.states, "buffers": self.buckets})
        loss = peak_moments(held, activations=0, again=None, step={}, accumulates=True)["loss"]
        return self.cluster.memory - self.reserve - sum(loss.values())

    @property
    def each(self) -> float:
        """Bytes that one sequence needs at most: kept activations and the loss at its peak, which has the
        log-softmax a second time."""
        shape = self.size, 1, self.size.context, BF16
        every, least = gpt_activation_bytes(*shape), checkpointed_activation_bytes(*shape)
        kept = every - self.checkpointed * (every - least)
        return kept + loss_peak_bytes(1, self.size.context, self.size.vocabulary)

    @property
    def at_once(self) -> int:
        """Sequences of a micro-batch that fit."""
        return max(0, int(self.room // self.each))

    def step(self, tokens: int, to_owner: bool = False) -> dict[str, float]:
        """One optimizer step on `tokens` tokens of all GPUs together, whole sequences on each.

        {"micro-batches": as few as fit and divide a GPU's sequences} and in seconds {"work": 6 Psi FLOPs per
        token, 8 with all blocks checkpointed, "messages": `zero_wire_bytes` over the link, "nothing hidden":
        their sum, "hidden at best": the same where each reduction goes on behind the backward pass of its own
        micro-batch, 2/3 of its work, 3/4 with all blocks checkpointed}.  Above stage 0 each part of a
        gradient may be reduced `to_owner` only, Psi elements (`"use_multi_rank_bucket_allreduce": false`),
        instead of all-reduced, 2 Psi.
        """
        parameters, gpus, at_once = gpt_parameters(self.size), self.cluster.gpus, self.at_once
        if not at_once:
            need = f"{self.each / 1e9:.1f} GB and finds {self.room / 1e9:.1f}"
            raise ValueError(f"not one sequence fits: it needs {need}")
        sequences, rest = divmod(tokens, self.size.context * gpus)
        if rest or sequences < 1:
            amount = f"whole number of sequences of {self.size.context:,} on each of {gpus} GPUs"
            raise ValueError(f"{tokens:,} tokens are no {amount}")
        times = -(-sequences // at_once)
        while sequences % times:
            times += 1
        # passes of 2 Psi FLOPs per token: forward, again where checkpointed, and backward, which is two
        passes = 3 + self.checkpointed
        work = 2 * passes * parameters * tokens / (gpus * self.cluster.rate)
        collective = "reduce_scatter" if to_owner and self.stage else "all_reduce"
        reduction = wire_bytes(collective, BF16 * parameters, gpus) / self.cluster.link
        backward = Pass(work / times * (passes - 1) / passes, reduction, hides=True)
        sent = zero_wire_bytes(parameters, gpus, self.stage, BF16, times, whole_buckets=not to_owner)
        messages = sent / self.cluster.link
        reductions = times if self.stage == 2 else 1
        step = {"micro-batches": times, "work": work, "messages": messages, "nothing hidden": work + messages}
        return step | {"hidden at best": work + messages - reductions * backward.hidden}


def zero_3_passes(
    parameters: float,
    gpus: int,
    rate: float,
    tokens: float,
    micro_batches: int,
    checkpointed: bool = False,
    regathered: bool = False,
    hpz: bool = False,
) -> list[tuple[float, float]]:
    """The passes of a step of ZeRO-3 in bf16 on one GPU of `rate` FLOPs per second with `tokens` tokens, in
    order: [(seconds of work, bytes that it sends over the slowest link), ...].

    A forward pass gathers Psi elements during 2 Psi FLOPs per token, a backward pass gathers Psi and reduces
    Psi (the ZeRO paper, section 7.2.2) during 4 Psi, with checkpointing 6 Psi.  Gathering ahead goes on
    within a micro-batch and not into the next, so a step takes at best the sum of max(work, bytes / link)
    over its passes.

    With checkpointing a block may be `regathered` for its backward pass.  With `hpz` each host keeps a second
    copy of the parameters until the step (ZeRO++, arXiv 2306.10209, section 3): then only the first forward
    pass gathers over the link.
    """
    if regathered and (hpz or not checkpointed):
        raise ValueError("a block is gathered a third time only with checkpointing, and without hpz's copy")
    whole(micro_batches, "micro_batches")
    positive(parameters=parameters, rate=rate, tokens=tokens)
    forward = 2 * parameters * tokens / micro_batches / rate
    unit = wire_bytes("all_gather", BF16 * parameters, gpus)
    passes = []
    for micro_batch in range(micro_batches):
        passes.append((forward, 0 if hpz and micro_batch else unit))
        passes.append(((3 if checkpointed else 2) * forward, (1 if hpz else 3 if regathered else 2) * unit))
    return passes
