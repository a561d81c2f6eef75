"""Which experiments there are."""

from __future__ import annotations

from helpers.course import models
from helpers.course.job.plans import PLANS
from helpers.course.recording import (
    attention,
    autotuning,
    block,
    block_experts,
    building,
    collectives,
    experiments,
    finetune,
    fsdp_models,
    job_pipeline,
    job_seconds,
    job_steps,
    links,
    longest,
    nvme,
    overlap,
    qlora,
    rehearsed_models,
    saving,
    small_card,
    speed,
    waterfall,
)
from helpers.course.recording.experiment import (
    BUCKET,
    GLM,
    MODELS,
    RANKS,
    SHAPES,
    SIZES,
    STAGES,
    TEXTS,
    Experiment,
    deepspeed_configuration,
    grid,
)

SEVERAL = RANKS[1:]
NCCL_BUFFERS = [2**22, 2**24]  # bytes; the first is NCCL's own choice
MESSAGES = [4 * 2**power for power in range(8, 29, 2)]  # bytes
# ways to build a model, and its dtype by each
CONSTRUCTIONS = {"partitioned": "bf16", "whole, device": "bf16", "whole, host": "fp32"}
OFFLOADED = {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": True},
    "reduce_bucket_size": BUCKET,
}


def _tensor_configuration(ranks, size):
    rules = {"autotp_size": ranks, "partition_config": models.AUTOTP_RULES}
    return deepspeed_configuration(tensor_parallel=rules)


EXPERIMENTS = {
    "zero": Experiment(
        function=experiments.zero,
        runs=grid(RANKS, size=MODELS, stage=STAGES),
        configuration=lambda ranks, size, stage: deepspeed_configuration(stage),
        may_share=True,
    ),
    "activations": Experiment(
        function=experiments.activations, runs=grid([1], size=MODELS, checkpointing=(False, True))
    ),
    "outside_allocator": Experiment(
        function=experiments.outside_allocator, runs=grid(RANKS, buffer=NCCL_BUFFERS), needs_gpu=True
    ),
    "bandwidth": Experiment(function=experiments.bandwidth, runs=grid(SEVERAL, message_bytes=[MESSAGES])),
    "tensor": Experiment(
        function=experiments.tensor,
        runs=[run for run in grid(SEVERAL, size=MODELS) if SIZES[run[1]["size"]].heads % run[0] == 0],
        configuration=_tensor_configuration,
        may_share=True,
    ),
    "pipeline": Experiment(
        function=experiments.pipeline,
        runs=[(ranks, run | {"micro_batches": 4 * ranks}) for ranks, run in grid(SEVERAL, size=MODELS)],
        configuration=lambda ranks, size, micro_batches: deepspeed_configuration(micro_batches=micro_batches),
    ),
    "construction": Experiment(
        function=experiments.construction,
        runs=grid(SEVERAL, size=MODELS, how=CONSTRUCTIONS),
        configuration=lambda ranks, size, how: deepspeed_configuration(stage=3),
    ),
    "finetune": Experiment(
        function=finetune.finetune,
        runs=finetune.runs(),
        configuration=finetune.configuration,
        libraries=GLM,
    ),
    "longest_sequence": Experiment(
        function=longest.longest_sequence,
        runs=longest.runs(),
        configuration=longest.configuration,
        libraries=GLM,
    ),
    **{
        function.__name__: Experiment(
            function=function,
            runs=rehearsed_models.runs(),
            configuration=rehearsed_models.configuration_of,
            needs_gpu=True,
            libraries=("transformers", "transformers.integrations"),
        )
        for function in (rehearsed_models.rehearsed_models, rehearsed_models.expandable_models)
    },
    "fsdp_models": Experiment(
        function=fsdp_models.fsdp_models,
        runs=grid((2, 4), through=fsdp_models.WAYS),
        needs_gpu=True,
        libraries=("transformers", "accelerate"),
    ),
    "job": Experiment(
        function=job_steps.job_steps,
        runs=job_steps.runs(),
        configuration=lambda ranks, plan, expandable=False: PLANS[plan].config,
        needs_gpu=True,
        libraries=("transformers", "transformers.integrations"),
    ),
    "job_seconds": Experiment(
        function=job_seconds.job_seconds,
        runs=job_seconds.runs(),
        configuration=lambda ranks, plan, through: PLANS[plan].config,
        prediction=job_seconds.predicted,
        needs_gpu=True,
        libraries=("transformers", "transformers.integrations"),
    ),
    "job_pipeline": Experiment(
        function=job_pipeline.job_pipeline,
        runs=grid([2], cut=job_pipeline.CUTS),
        configuration=job_pipeline.configuration,
        prediction=job_pipeline.predicted,
        needs_gpu=True,
        libraries=("transformers",),
    ),
    "small_card": Experiment(
        function=small_card.small_card,
        runs=grid([1], how=small_card.WAYS),
        configuration=small_card.configuration,
        prediction=small_card.predicted,
        needs_gpu=True,
        libraries=("transformers", "peft"),
    ),
    "attention": Experiment(
        function=attention.attention,
        runs=grid([1], tokens=attention.TOKENS),
        prediction=attention.predicted,
        needs_gpu=True,
    ),
    "building": Experiment(
        function=building.building,
        runs=grid(SEVERAL[:3], how=building.WAYS),
        configuration=building.configuration,
        prediction=building.predicted,
        needs_gpu=True,
        libraries=("transformers",),
    ),
    "experts": Experiment(
        function=block_experts.experts,
        runs=grid(SEVERAL[:3], experts=block_experts.EXPERTS),
        prediction=block_experts.predicted,
        needs_gpu=True,
    ),
    "saving": Experiment(
        function=saving.saving,
        runs=grid(SEVERAL[:3]),
        configuration=saving.configuration,
        prediction=saving.predicted,
        needs_gpu=True,
        libraries=("transformers",),
    ),
    "speed": Experiment(function=speed.speed, runs=speed.runs(), configuration=speed.configuration),
    "offload": Experiment(
        function=speed.offload,
        runs=grid([2, 4], size=["1.5B, padded"], micro_batches=(1, 2, 4, 8), change=("offload", "")),
        configuration=lambda ranks, size, micro_batches, change: speed.configuration(
            ranks, 2, speed.SEQUENCES, micro_batches, change
        ),
        needs_gpu=True,
    ),
    "links": Experiment(
        function=links.links, runs=links.runs(), configuration=links.configuration, needs_gpu=True
    ),
    "block": Experiment(
        function=block.block,
        runs=grid(RANKS[:4], of=block.BLOCKS, sequence_parallel=(False, True)),
        needs_gpu=True,
        libraries=("transformers",),
    ),
    "collectives": Experiment(
        function=collectives.collectives,
        runs=grid(SEVERAL[:3], link=links.LINKS),
        prediction=collectives.predicted,
        needs_gpu=True,
    ),
    "overlap": Experiment(
        function=overlap.overlap, runs=overlap.runs(), prediction=overlap.predicted, needs_gpu=True
    ),
    "zero_overlap": Experiment(
        function=overlap.zero_overlap,
        runs=overlap.zero_runs(),
        configuration=overlap.zero_configuration,
        needs_gpu=True,
    ),
    "waterfall": Experiment(
        function=waterfall.waterfall,
        runs=grid([1], blocks=waterfall.BLOCKS, checkpointing=(False, True)),
        needs_gpu=True,
        libraries=("transformers",),
    ),
    "constants": Experiment(function=speed.constants, runs=grid(RANKS)),
    "nvme": Experiment(
        function=nvme.nvme,
        runs=grid([2], size=["3.2M"], place=nvme.PLACES),
        configuration=nvme.configuration,
        needs_cpu=True,
        missing=nvme.missing,
    ),
    "qlora": Experiment(
        function=qlora.qlora,
        runs=qlora.runs(),
        configuration=qlora.configuration,
        needs_cpu=True,
        libraries=GLM,
        missing=qlora.missing,
    ),
    "autotuning": Experiment(
        function=autotuning.autotuning,
        runs=grid([1], attempt=(1, 2, 3)),  # the rank starts the autotuner
        configuration=autotuning.configuration,
        needs_cpu=True,
        missing=autotuning.missing,
    ),
    "offload_error": Experiment(
        function=experiments.offload_error,
        runs=grid([1], mended=(True, False)),
        configuration=lambda ranks, mended: deepspeed_configuration(
            gradient_clipping=1.0, zero_optimization=OFFLOADED
        ),
    ),
}
# arguments that a recording gives by name
NAMED = {"size": SIZES, "shape": SHAPES, "text": TEXTS}
NAMED |= {"of": block.BLOCKS, "plan": PLANS}
NAMED |= {"case": finetune.FINE_TUNING, "way": longest.LONG_TEXT, "training": rehearsed_models.TRAININGS}
