"""The course's job: an 8-billion-parameter model on a host of 8 cards "H100 80GB", and its 70-billion sister
on 8 such hosts.

    from helpers import job, job_bars

    job.plan("stage 1").config                  # of DeepSpeed, as it was rehearsed
    job.peak("stage 1"), job.states("stage 1")  # bytes on the fullest GPU
    job.moments("stage 1")["backward"]          # the same by name, at a phase's highest moment
    job.step_times("stage 1")                   # for step_timeline: at the fastest, at the slowest
    job_bars(["stage 0", "stage 1"], "The same job, twice")
    plots.table(job.judged(2))                  # what was foretold, and what two GPUs did

`reference` is the job, `plans` the ways to train it, `more_gpus`, `shared_block` and `stages` what
follows from them, `pipeline` its layers, `rehearsals` makes recorded/job, `stored` reads it,
`picture` draws it, `accumulating` its gradients over a step, `judged` has the recorded runs beside it.
"""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.job.accumulating import (
    costs_of_stage_2,
    gradients_in_a_step,
    room,
    seconds_of,
    two_hosts,
)
from helpers.course.job.judged import judged
from helpers.course.job.more_gpus import last_pass, replicated_step, step_parts
from helpers.course.job.plans import PLANS, plan
from helpers.course.job.reference import CARD, MEMORY, MODELS, SEQUENCE, SEQUENCES
from helpers.course.job.shared_block import (
    bars_of_blocks,
    beside_recorded,
    block_bytes,
    block_parts,
    from_blocks_to_step,
    recorded_block,
    recorded_blocks,
    recorded_label,
    seconds_of_plans,
)
from helpers.course.job.stages import (
    SOME_CUTS,
    balanced,
    drawn_stages,
    layer_costs,
    layer_seconds,
    lines,
    over_blocks,
    recorded_pipelines,
    second_forward,
    stage_seconds,
)
from helpers.course.job.stored import moments, peak, states, step_times, stored
