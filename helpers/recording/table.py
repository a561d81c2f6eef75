"""Which experiments there are: for each the function that ranks run, its runs, DeepSpeed's configuration for it, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers import models
from helpers.recording import experiments
from helpers.recording.experiments import MICRO_BATCHES

SIZES = {
    "tiny": models.TINY,
    "124M": models.GPT2,
    "1.5B": models.GPT2_XL,
    "7.5B": models.GPTSize(vocabulary=50257, context=1024, width=4096, layers=36, heads=32),
}
NCCL_BUFFERS = [2**22, 2**24]  # bytes; the first is NCCL's own choice
MESSAGES = [4 * 2**power for power in range(8, 29, 2)]  # bytes
BUCKET = 50_000_000  # elements; small beside billions of parameters
TENSOR_RULES = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*\.qkv\.weight$"], "partition_type": "column", "shape": [3, -1], "partition_dim": 0},
        {"patterns": [r".*\.up\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\.out\.weight$", r".*\.down\.weight$"], "partition_type": "row"},
    ],
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One row of the table.

    Attributes:
        function: what every rank runs.
        plan: (names of sizes, numbers of ranks, stages) to its runs: [(ranks, arguments, which a recording names)].
        configuration: (ranks, **arguments) to DeepSpeed's configuration; None where it configures nothing.
        may_share: says something where ranks share a GPU: a rank's bytes are the same, times are not.
        needs_gpu: says nothing on a CPU.
    """

    function: Callable
    plan: Callable
    configuration: Callable = lambda ranks, **arguments: None
    may_share: bool = False
    needs_gpu: bool = False


def deepspeed_configuration(stage=1, micro_batches=MICRO_BATCHES, **more):
    """In bf16 and with one sequence per micro-batch."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET,
            "overlap_comm": False,
            "stage3_param_persistence_threshold": 0,
        },
        **more,
    }


def _several(counts):
    return [ranks for ranks in counts if ranks > 1]


EXPERIMENTS = {
    "zero": Experiment(
        function=experiments.zero,
        plan=lambda sizes, counts, stages: [(n, {"size": size, "stage": stage}) for size in sizes for n in counts for stage in stages],
        configuration=lambda ranks, size, stage: deepspeed_configuration(stage),
        may_share=True,
    ),
    "activations": Experiment(
        function=experiments.activations,
        plan=lambda sizes, counts, stages: [(1, {"size": size, "checkpointing": way}) for size in sizes for way in (False, True)],
    ),
    "outside_allocator": Experiment(
        function=experiments.outside_allocator,
        plan=lambda sizes, counts, stages: [(n, {"buffer": buffer}) for n in counts for buffer in NCCL_BUFFERS],
        needs_gpu=True,
    ),
    "bandwidth": Experiment(
        function=experiments.bandwidth,
        plan=lambda sizes, counts, stages: [(n, {"message_bytes": MESSAGES}) for n in _several(counts)],
    ),
    "tensor": Experiment(
        function=experiments.tensor,
        plan=lambda sizes, counts, stages: [(n, {"size": size}) for size in sizes for n in _several(counts) if SIZES[size].heads % n == 0],
        configuration=lambda ranks, size: deepspeed_configuration(tensor_parallel={"autotp_size": ranks, "partition_config": TENSOR_RULES}),
        may_share=True,
    ),
    "pipeline": Experiment(
        function=experiments.pipeline,
        plan=lambda sizes, counts, stages: [(n, {"size": size, "micro_batches": 4 * n}) for size in sizes for n in _several(counts)],
        configuration=lambda ranks, size, micro_batches: deepspeed_configuration(micro_batches=micro_batches),
    ),
    "construction": Experiment(
        function=experiments.construction,
        plan=lambda sizes, counts, stages: [
            (n, {"size": size, "partitioned": partitioned}) for size in sizes for n in _several(counts) for partitioned in (False, True)
        ],
        configuration=lambda ranks, size, partitioned: deepspeed_configuration(stage=3),
    ),
}


def experiment(name: str) -> Experiment:
    """By its name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}; not {name!r}")
    return EXPERIMENTS[name]
