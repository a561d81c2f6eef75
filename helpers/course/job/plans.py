"""Ways to train the job, by name: for each the configuration of DeepSpeed that a lesson prints, and that is
rehearsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from helpers.course.job.reference import CARD, MODELS, SEQUENCE, SEQUENCES, cut
from helpers.tools.theory.hardware import HOST

if TYPE_CHECKING:
    from helpers.tools.rehearsal.question import Question

BUCKET = 50_000_000  # elements: a tenth of DeepSpeed's own, small beside all else
CPU = {"device": "cpu"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A way to train one of `MODELS`.

    Attributes:
        config: DeepSpeed's.
        gpus: of hosts with 8 each.
        card: of which kind they are.
        model: a name in `MODELS`.
        checkpointing: whether every block is; a number for so many, the first.
        lora, qlora: the rank of adapters, which alone are trained; None where all is.
        stages: blocks of each stage of a pipeline, which GPUs have one each; none where there is none.
    """

    config: dict
    gpus: int = HOST
    card: str = CARD
    model: str = "8 B"
    checkpointing: bool | int = True
    lora: str | None = None
    qlora: str | None = None
    stages: tuple[int, ...] = ()

    @property
    def sequences(self) -> int:
        """Of a step, on all GPUs; those that share their matrices read the same ones."""
        each = self.config["train_micro_batch_size_per_gpu"] * self.config["gradient_accumulation_steps"]
        return each * self.readers

    @property
    def readers(self) -> int:
        """GPUs, or groups of them, that read sequences of their own."""
        return self.gpus // self.config.get("tensor_parallel", {}).get("autotp_size", len(self.stages) or 1)

    def question(self) -> Question:
        """For `rehearse`; of a pipeline as if one GPU had all stages."""
        from helpers.tools.rehearsal import adaptations, question

        adapted = adaptations.read(self.lora, self.qlora, None)
        model = MODELS[self.model]
        gpus = self.readers if self.stages else self.gpus
        return question.ask(model, self.config, gpus, SEQUENCE, None, self.checkpointing, adapted)


def configuration(gpus: int, micro_batch: int = 1, fp32_sums: bool = False, **zero: object) -> dict:
    """DeepSpeed's, in bf16 and with its own AdamW, which a GPU computes in one kernel.  Three sequences in a
    micro-batch of each of 8 GPUs are no part of 64: then a step has 72."""
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": -(-SEQUENCES // (gpus * micro_batch)),
        "bf16": {"enabled": True},
    }
    if fp32_sums:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4}}
    return config | {"optimizer": optimizer, "zero_optimization": zero}


def way(
    stage: int,
    micro_batch: int = 1,
    fp32_sums: bool = False,
    own_bucket: bool = True,
    keys: Mapping = {},
    **more: object,
) -> Plan:
    """A plan at one of ZeRO's stages, with more `keys` of its section; `more` as `Plan` has it."""
    zero = {"stage": stage} | ({"reduce_bucket_size": BUCKET} if stage and own_bucket else {}) | keys
    config = configuration(more.get("gpus", HOST), micro_batch, fp32_sums, **zero)
    return Plan(config=config, **more)


def to_owner(stage: int, micro_batch: int = 1, overlap: bool = False, **more: object) -> Plan:
    """A plan on two hosts, where each gradient travels to its owner alone, behind the backward pass if
    `overlap`; `more` as `Plan` has it."""
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "use_multi_rank_bucket_allreduce": False}
    zero |= {"overlap_comm": True} if overlap else {}
    return Plan(config=configuration(2 * HOST, micro_batch, **zero), gpus=2 * HOST, **more)


def at_once(plan: Plan) -> Plan:
    """A plan with fp32 sums, whose bf16 gradients go as soon as they are added."""
    return replace(plan, config=plan.config | {"bf16": {"enabled": True, "immediate_grad_update": True}})


def fp32_messages(plan: Plan) -> Plan:
    """A plan whose gradients are added in fp32 over ranks, too."""
    return replace(plan, config=plan.config | {"communication_data_type": "fp32"})


def shared(tensor: int, whole_logits: bool = True, checkpointing: bool = True) -> Plan:
    """A plan on one host without ZeRO, where so many GPUs share every matrix, by DeepSpeed's AutoTP; the head
    too if not `whole_logits`."""
    section = {"autotp_size": tensor} | ({} if whole_logits else {"vocab_parallel_lm_head": True})
    config = configuration(HOST // tensor, stage=0) | {"tensor_parallel": section}
    return Plan(config=config, checkpointing=checkpointing)


def in_stages(*blocks: int) -> Plan:
    """A plan on one host, each of whose GPUs has so many blocks, and nothing checkpointed."""
    config = configuration(1, stage=1, reduce_bucket_size=BUCKET)
    return Plan(config=config, gpus=len(blocks), checkpointing=False, stages=blocks)


def alone(card: str = CARD, lora: str | None = None, qlora: str | None = None, **zero: object) -> Plan:
    """A plan on one GPU, `zero` its section of the configuration."""
    return Plan(config=configuration(1, **zero), gpus=1, card=card, lora=lora, qlora=qlora)


def without_zero(card: str = CARD, fused: bool = True, checkpointing: bool | int = True) -> Plan:
    """A plan on one GPU without ZeRO, with torch's AdamW in one kernel if `fused`, else with DeepSpeed's."""
    config = configuration(1, stage=0)
    config["optimizer"]["params"] |= {"torch_adam": True, "fused": True} if fused else {}
    return Plan(config=config, gpus=1, card=card, checkpointing=checkpointing)


def on_two(stage: int, blocks: int, of: str = "8 B", **more: object) -> Plan:
    """A plan on two GPUs, of one of `MODELS` with so many of its blocks and with 4 sequences of each GPU in a
    step, which is short enough to record; `more` as `Plan` and `way` have it."""
    made = way(stage, gpus=2, model=cut(blocks, of), **more)
    each = made.config["train_micro_batch_size_per_gpu"]
    return replace(made, config=made.config | {"gradient_accumulation_steps": 4 // each})


SOME = 20  # of 32 blocks: stage 1 fits, with little to spare
SMALL, LARGE = "RTX 4090 24GB", "B200 180GB"
ON_TWO = {  # of each stage the deepest that fits, one that nearly does, and one that does not
    "stage 1": on_two(1, 19),
    "stage 2": on_two(2, 19),
    "stage 3": on_two(3, 19),
    "stage 1, 24 blocks": on_two(1, 24),
    "stage 1, 28 blocks": on_two(1, 28),
    "stage 1, 16 blocks, fp32 sums": on_two(1, 16, fp32_sums=True),
    "stage 1, 18 blocks, fp32 sums": on_two(1, 18, fp32_sums=True),
    "stage 2, 16 blocks, fp32 sums": on_two(2, 16, fp32_sums=True),
    "stage 3, 2 sequences": on_two(3, 19, micro_batch=2),
    "stage 3, 10 of 19 blocks checkpointed": on_two(3, 19, checkpointing=10),
    "stage 3, not checkpointed": on_two(3, 19, checkpointing=False),
    "stage 3, 29 blocks": on_two(3, 29),
    "stage 3, 32 blocks": on_two(3, 32),
}
_AT_THE_END, _OWNER = {"overlap_comm": False}, {"use_multi_rank_bucket_allreduce": False}
_BY_THE_CLOCK = {  # what a step's seconds depend on
    "stage 1, overlap": on_two(1, 19, keys={"overlap_comm": True}),
    "stage 2, to the owner": on_two(2, 19, keys=_OWNER),
    "stage 2, 16 blocks, fp32 sums, 2 sequences": on_two(2, 16, micro_batch=2, fp32_sums=True),
    "stage 2, 16 blocks, fp32 sums, to the owner": on_two(2, 16, fp32_sums=True, keys=_OWNER),
    "stage 3, no prefetch": on_two(3, 19, keys={"stage3_prefetch_bucket_size": 0}),
    "stage 3, no overlap": on_two(3, 19, keys=_AT_THE_END),
    "stage 3, 2 blocks of the 70 B": on_two(3, 2, "70 B"),
    "stage 3, 2 blocks of the 70 B, no overlap": on_two(3, 2, "70 B", keys=_AT_THE_END),
    "stage 3, 4 blocks of the 70 B": on_two(3, 4, "70 B"),
    "stage 3, 4 blocks of the 70 B, no overlap": on_two(3, 4, "70 B", keys=_AT_THE_END),
}
_WITH_SUMS = "stage 2, fp32 sums, 2 sequences, to the owner"
PLANS = {
    "1 GPU": without_zero(fused=False),
    "1 GPU, fused by torch": without_zero(),
    "1 B200": without_zero(LARGE, fused=False),
    "1 B200, fused by torch": without_zero(LARGE),
    "1 B200, fused by torch, 8 of 32 blocks checkpointed": without_zero(LARGE, checkpointing=8),
    "1 B200, fused by torch, not checkpointed": without_zero(LARGE, checkpointing=False),
    "stage 0": way(0),
    "stage 0, not checkpointed": way(0, checkpointing=False),
    **{f"t = {tensor}": shared(tensor) for tensor in (2, 4, 8)},
    "t = 8, own logits": shared(8, whole_logits=False),
    "t = 8, own logits, not checkpointed": shared(8, whole_logits=False, checkpointing=False),
    "t = 4, own logits": shared(4, whole_logits=False),
    "t = 4, own logits, not checkpointed": shared(4, whole_logits=False, checkpointing=False),
    "8 stages": in_stages(*[4] * 8),
    "8 stages, short ones at the ends": in_stages(2, 4, 4, 5, 5, 5, 5, 2),
    "stage 1": way(1),
    "stage 1, fp32 sums": way(1, fp32_sums=True),
    "stage 1, fp32 sums, added at once": at_once(way(1, fp32_sums=True)),
    "stage 1, not checkpointed": way(1, checkpointing=False),
    f"stage 1, {SOME} of 32 blocks checkpointed": way(1, checkpointing=SOME),
    "stage 1, 2 sequences": way(1, micro_batch=2),
    "stage 1, 3 sequences": way(1, micro_batch=3),
    "stage 1, default buckets": way(1, own_bucket=False),
    "stage 1, 2 GPUs": way(1, gpus=2),
    "stage 1, 4 GPUs": way(1, gpus=4),
    "stage 1, fp32 sums, 4 GPUs": way(1, gpus=4, fp32_sums=True),
    "stage 1, 16 GPUs": way(1, gpus=16),
    "stage 1, 16 GPUs, to the owner": to_owner(1),
    "stage 1, 16 GPUs, to the owner, overlap": to_owner(1, overlap=True),
    f"stage 1, 16 GPUs, to the owner, {SOME} of 32 blocks checkpointed": to_owner(1, checkpointing=SOME),
    "stage 2": way(2),
    "stage 2, fp32 sums": way(2, fp32_sums=True),
    "stage 2, fp32 sums, 2 sequences": way(2, micro_batch=2, fp32_sums=True),
    _WITH_SUMS: way(2, micro_batch=2, fp32_sums=True, keys=_OWNER),
    f"{_WITH_SUMS}, fp32 messages": fp32_messages(way(2, micro_batch=2, fp32_sums=True, keys=_OWNER)),
    "stage 2, 4 GPUs": way(2, gpus=4),
    "stage 2, fp32 sums, 4 GPUs": way(2, gpus=4, fp32_sums=True),
    "stage 2, 16 GPUs": way(2, gpus=16),
    "stage 2, 16 GPUs, 2 sequences": way(2, micro_batch=2, gpus=16),
    "stage 2, 16 GPUs, to the owner": to_owner(2),
    "stage 2, 16 GPUs, to the owner, overlap": to_owner(2, overlap=True),
    "stage 2, 16 GPUs, to the owner, 2 sequences": to_owner(2, micro_batch=2),
    "stage 2, 16 GPUs, to the owner, overlap, 2 sequences": to_owner(2, micro_batch=2, overlap=True),
    "stage 3": way(3),
    "stage 3, fp32 sums": way(3, fp32_sums=True),
    "stage 3, 4 GPUs": way(3, gpus=4),
    "stage 3, 4 GPUs, 2 sequences": way(3, gpus=4, micro_batch=2),
    "stage 3, 4 GPUs, not checkpointed": way(3, gpus=4, checkpointing=False),
    "stage 3, 16 GPUs": way(3, gpus=16),
    "stage 3, A100 40GB": way(3, card="A100 40GB"),
    "offload, 1 GPU of 24 GB": alone(SMALL, stage=3, offload_optimizer=CPU, offload_param=CPU),
    "LoRA, 1 GPU of 24 GB": alone(SMALL, lora="16", stage=0),
    "QLoRA, 1 GPU of 24 GB": alone(SMALL, qlora="16", stage=0),
    "70 B, stage 1, 64 GPUs": way(1, gpus=64, model="70 B"),
    "70 B, stage 3, 64 GPUs": way(3, gpus=64, model="70 B"),
    **{f"2 GPUs, {name}": made for name, made in (ON_TWO | _BY_THE_CLOCK).items()},
}
_AS_RECORDED = ("stage 1", "stage 2", "stage 3", "stage 2, 16 blocks, fp32 sums")
TIMED = [f"2 GPUs, {name}" for name in (*_AS_RECORDED, *_BY_THE_CLOCK)]  # recorded step by step


def plan(name: str) -> Plan:
    """The plan of this name; a LookupError says which there are."""
    if name in PLANS:
        return PLANS[name]
    near = get_close_matches(name, PLANS, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise LookupError(f"no plan is called {name!r}: {meant}there are {'; '.join(PLANS)}")
