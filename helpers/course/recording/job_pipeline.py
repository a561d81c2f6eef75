"""A pipeline of 20 of the job's blocks on two GPUs, cut where both stages have as many layers, and where they
take as long."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import deepspeed
import torch
from torch.utils.checkpoint import checkpoint
from helpers.course import job
from helpers.course.job.pipeline import Block, engine_of
from helpers.course.job.stages import CUTS, MICRO_BATCHES
from helpers.course.job.stages import RECORDED as BLOCKS
from helpers.course.recording.experiment import deepspeed_configuration
from helpers.course.recording.experiments import schedule_of


class Checkpointed(Block):
    """A block of the job that computes its forward pass twice."""

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x_bsh, use_reentrant=False)


def configuration(ranks: int, cut: str) -> dict:
    """In bf16 and with torch's fused AdamW."""
    config = deepspeed_configuration(micro_batches=MICRO_BATCHES)
    config["optimizer"]["params"]["fused"] = True
    return config


BLOCK, HEAD = 0.033, 0.060  # assumed: seconds of a checkpointed block's passes, and of the head's


def predicted(ranks: int, cut: str) -> dict[str, float]:
    """{"seconds": of a step's passes: the slower stage for each micro-batch, and the other one once}."""
    first = BLOCK * (CUTS[cut] - 1)
    last = BLOCK * (BLOCKS - CUTS[cut] + 1) + HEAD
    return {"seconds": round(MICRO_BATCHES * max(first, last) + min(first, last), 4)}


def job_pipeline(cut: str, config: dict) -> dict:
    """Steps of `MICRO_BATCHES` sequences of 8,192 tokens, every block checkpointed.

    Args:
        cut: one of `CUTS`.

    Returns:
        {"elements": parameters of this stage, "peak": {"allocated", "reserved": bytes at most}, and what
        `schedule_of` returns}.
    """
    deepspeed.init_distributed()
    first = CUTS[cut] - 1
    engine = engine_of((first, BLOCKS - first), config, Checkpointed)
    ids = torch.randint(3, 1000, (1, job.SEQUENCE), device=engine.device)
    with redirect_stdout(io.StringIO()):
        clocked = schedule_of(engine, lambda step: engine.train_batch(iter([(ids, ids)] * MICRO_BATCHES)))
    found = torch.cuda.memory_stats()
    return {
        "elements": sum(parameter.numel() for parameter in engine.module.parameters()),
        "peak": {of: found[f"{of}_bytes.all.peak"] for of in ("allocated", "reserved")},
        **clocked,
    }
