"""The course's job on GPUs, by phase: what its budget bars foretell."""

from __future__ import annotations

from functools import partial

from helpers.course.job import SEQUENCE
from helpers.course.job.plans import PLANS, Plan
from helpers.course.recording.rehearsed_models import Training, phases, train

STEPS = 2  # the first makes Adam's states
RECORDED = [  # plans that fit a machine of 4 GPUs, and one that should not
    "stage 1, 4 GPUs",
    "stage 2, 4 GPUs",
    "stage 3, 4 GPUs",
    "stage 1, fp32 sums, 4 GPUs",
    "stage 3, 4 GPUs, not checkpointed",
    "stage 3, 4 GPUs, 2 sequences",
    "stage 2, fp32 sums, 4 GPUs",
]


def runs() -> list[tuple[int, dict]]:
    """Each plan on its GPUs."""
    return [(PLANS[name].gpus, {"plan": name}) for name in RECORDED]


def job_steps(plan: Plan, config: dict) -> list[dict]:
    """`STEPS` steps of the job, as `phases` has them."""
    training = Training(
        model=plan.model,
        ranks=plan.gpus,
        zero=config["zero_optimization"],
        sequence=SEQUENCE,
        micro_batch=config["train_micro_batch_size_per_gpu"],
        accumulation=config["gradient_accumulation_steps"],
        checkpointing=plan.checkpointing,
        steps=STEPS,
    )
    return phases(partial(train, training, config))
