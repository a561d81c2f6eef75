"""The course's job on GPUs, by phase: what its budget bars foretell."""

from __future__ import annotations

from functools import partial

from helpers.course.job import SEQUENCE, plans
from helpers.course.job.plans import PLANS, Plan
from helpers.course.recording.rehearsed_models import Training, phases, train
from helpers.tools.measure import internals

STEPS = 2  # the first makes Adam's states
ON_TWO = [f"2 GPUs, {name}" for name in plans.ON_TWO]
ON_FOUR = [  # plans that fit, and one that should not
    "stage 1, 4 GPUs",
    "stage 2, 4 GPUs",
    "stage 3, 4 GPUs",
    "stage 1, fp32 sums, 4 GPUs",
    "stage 3, 4 GPUs, not checkpointed",
    "stage 3, 4 GPUs, 2 sequences",
    "stage 2, fp32 sums, 4 GPUs",
]


def runs() -> list[tuple[int, dict]]:
    """Each plan on its GPUs; the whole job on two of them with expandable segments, too."""
    each = [(PLANS[name].gpus, {"plan": name}) for name in ON_TWO + ON_FOUR]
    return [*each, (2, {"plan": "2 GPUs, stage 3, 32 blocks", "expandable": True})]


def job_steps(plan: Plan, config: dict, expandable: bool = False) -> list[dict]:
    """`STEPS` steps of the job, as `phases` has them; with torch's expandable segments if asked."""
    if expandable:
        internals.grow_segments()
    training = Training(
        model=plan.model,
        ranks=plan.gpus,
        zero=config["zero_optimization"],
        sequence=SEQUENCE,
        micro_batch=config["train_micro_batch_size_per_gpu"],
        accumulation=config["gradient_accumulation_steps"],
        checkpointing=plan.checkpointing,
        steps=STEPS,
        on_gpu=True,
    )
    return phases(partial(train, training, config))
