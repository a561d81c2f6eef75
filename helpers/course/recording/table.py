"""Which experiments there are: for each the function that ranks run, its runs, DeepSpeed's configuration for
it, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from helpers.course import models
from helpers.course.recording import autotuning, experiments, longest, nvme, qlora, speed
from helpers.course.recording.experiments import MICRO_BATCHES

SIZES = {
    "tiny": models.TINY,
    "124M": models.GPT2,
    "1.5B": models.GPT2_XL,
    "7.5B": models.GPTSize(vocabulary=50257, context=1024, width=4096, layers=36, heads=32),
    "3.2M": models.GPTSize(
        context=64, width=256, layers=4, heads=4
    ),  # the smallest whose partition on two ranks is worth a disk to DeepSpeed
}
# For times: an odd vocabulary has a matrix product of the head that runs at an eighth of a GPU's rate, so it
# is made a multiple of 64 or more.
SIZES |= {f"{name}, padded": replace(SIZES[name], vocabulary=50304) for name in ("1.5B", "7.5B")}
NCCL_BUFFERS = [2**22, 2**24]  # bytes; the first is NCCL's own choice
SHAPES = {
    "6.2B": (models.CHATGLM_6B, 8192),
    "tiny": (models.TINY_CHATGLM, 64),
}  # keys of GlmConfig, tokens of a sequence
LIMIT = 24_000_000_000  # bytes: a GPU of 24 GB, for the experiment finetune
MESSAGES = [4 * 2**power for power in range(8, 29, 2)]  # bytes
BUCKET = 50_000_000  # elements; small beside billions of parameters
CONSTRUCTIONS = {
    "partitioned": "bf16",
    "whole, device": "bf16",
    "whole, host": "fp32",
}  # ways to build a model, and its dtype by each


OFFLOADED = {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": True},
    "reduce_bucket_size": BUCKET,
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One row of the table.

    Attributes:
        function: what every rank runs.
        plan: (names of sizes, numbers of ranks, stages) to its runs: [(ranks, arguments, which a recording
            names)].
        configuration: (ranks, **arguments) to DeepSpeed's configuration; None where it configures nothing.
        may_share: says something where ranks share a GPU: a rank's bytes are the same, times are not.
        needs_gpu: says nothing on a CPU.
        needs_cpu: is recorded on a CPU, where its bytes are those of any device.
        libraries: what is imported once for all ranks.
        missing: says why this machine cannot run it, or "".
    """

    function: Callable
    plan: Callable
    configuration: Callable = lambda ranks, **arguments: None
    may_share: bool = False
    needs_gpu: bool = False
    needs_cpu: bool = False
    libraries: tuple = ()
    missing: Callable = lambda: ""


FINE_TUNING = {
    "no ZeRO": experiments.FineTuning(stage=0, fits=False),
    "no ZeRO, checkpointing": experiments.FineTuning(stage=0, fits=True, checkpointing=True),
    "no ZeRO, checkpointing, chunked loss": experiments.FineTuning(
        stage=0, fits=True, checkpointing=True, chunks=8
    ),
    "ZeRO-2": experiments.FineTuning(stage=2, fits=False),
    "ZeRO-2, offload": experiments.FineTuning(stage=2, fits=False, offload=True),
    "ZeRO-2, checkpointing": experiments.FineTuning(stage=2, fits=True, checkpointing=True),
    "ZeRO-3": experiments.FineTuning(stage=3, fits=False),
    "ZeRO-3, bf16 adapters": experiments.FineTuning(stage=3, fits=False, fp32_adapters=False),
    "ZeRO-3, bf16 adapters, plain linear": experiments.FineTuning(
        stage=3, fits=False, fp32_adapters=False, memory_efficient_linear=False
    ),
    "ZeRO-3, checkpointing": experiments.FineTuning(stage=3, fits=True, checkpointing=True),
}


TILED = {"checkpointing": True, "tile": 1024}
LONG_TEXT = {
    "plain": longest.LongText(),
    "checkpointing": longest.LongText(checkpointing=True),
    "checkpointing, tiles": longest.LongText(**TILED),
    "checkpointing, tiles, host": longest.LongText(host=True, **TILED),
    "ZeRO-3": longest.LongText(ranks=2, stage=3),
    "ZeRO-3, checkpointing, tiles": longest.LongText(ranks=2, stage=3, **TILED),
    "Ulysses": longest.LongText(ranks=2, stage=1, shared=True),
    "Ulysses, checkpointing": longest.LongText(ranks=2, stage=1, shared=True, checkpointing=True),
    "Ulysses, checkpointing, tiles": longest.LongText(ranks=2, stage=1, shared=True, **TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles": longest.LongText(ranks=2, stage=3, shared=True, **TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles, host": longest.LongText(
        ranks=2, stage=3, shared=True, host=True, **TILED
    ),
}
# what a case of the experiment `speed` changes in DeepSpeed's configuration; None takes a key away
SPEED_CHANGES = {
    "": {},
    "unfused": {"optimizer": {"params": {"fused": False}}},
    "unchecked": {"bf16": {"check_grad_overflow": False}},
    "overlap": {"zero_optimization": {"overlap_comm": True}},
    "offload": {
        "optimizer": {"params": {"torch_adam": False, "fused": None}},
        "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
    },
    "compiled": {},  # the model's blocks, not a key
}
_SMALL, _LARGE = "1.5B, padded", "7.5B, padded"
SPEED = [  # ranks, size, stage, sequences of a micro-batch, micro-batches, checkpointing, change
    *((ranks, _SMALL, stage, 16, 1, False, "") for ranks in (1, 2, 4) for stage in (0, 1, 2, 3)),
    *((ranks, _SMALL, stage, 16, 4, False, "") for ranks, stage in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3))),
    *((ranks, _SMALL, stage, 32, 1, False, "") for ranks, stage in ((1, 1), (2, 1), (2, 2), (2, 3))),
    *((ranks, _LARGE, stage, 16, 1, True, "") for ranks in (2, 4) for stage in (2, 3)),
    *((2, _SMALL, 1, 16, 1, False, change) for change in ("unfused", "unchecked", "overlap", "compiled")),
    *((2, _SMALL, 2, 16, 1, False, change) for change in ("overlap", "offload")),
    (2, _SMALL, 1, 16, 1, True, ""),
    (2, _SMALL, 1, 1, 1, False, ""),
    (2, "1.5B", 1, 16, 1, False, ""),
]
TEXTS = {
    "6.2B": (models.CHATGLM_6B, 1024),
    "tiny": (models.TINY_CHATGLM, 32),
}  # keys of GlmConfig, tokens of the first sequence
TINY_LIMIT = 3_000_000  # bytes, for the tiny model
TINY_WAYS = ("checkpointing, tiles", "Ulysses, checkpointing")  # what is tried on a CPU
NAMED = {
    "size": SIZES,
    "shape": SHAPES,
    "case": FINE_TUNING,
    "text": TEXTS,
    "way": LONG_TEXT,
}  # arguments that a recording gives by name
TINY_FINE_TUNING = (
    "no ZeRO, checkpointing, chunked loss",
    "ZeRO-2, offload",
    "ZeRO-3, bf16 adapters",
)  # what is tried on a CPU


def deepspeed_configuration(stage: int = 1, micro_batches: int = MICRO_BATCHES, **more: object) -> dict:
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


def finetune_configuration(case: str) -> dict:
    """With the keys of article D, in bf16 and with one sequence per step."""
    chosen = FINE_TUNING[case]
    keys = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "reduce_bucket_size": 500_000_000,
    }
    if chosen.offload:
        keys["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if chosen.stage == 3:
        keys["memory_efficient_linear"] = chosen.memory_efficient_linear
    zero = {"stage": chosen.stage, **(keys if chosen.stage else {})}
    return deepspeed_configuration(micro_batches=1, zero_optimization=zero)


def _finetune_plan(sizes, counts, stages):
    if "tiny" in sizes:
        found = [(case, "tiny", None) for case in TINY_FINE_TUNING]
    else:
        found = [
            (case, "6.2B", limit)
            for case, way in FINE_TUNING.items()
            for limit in ((LIMIT,) if way.fits else (LIMIT, None))
        ]
    runs = [
        (2 if FINE_TUNING[case].stage else 1, {"shape": shape, "case": case, "limit": limit})
        for case, shape, limit in found
    ]
    return [(ranks, arguments) for ranks, arguments in runs if ranks in counts]


def speed_configuration(stage: int, sequences: int, micro_batches: int, change: str) -> dict:
    """As people run it: DeepSpeed's own buckets and overlap, and torch's fused AdamW; with one change, from
    SPEED_CHANGES."""
    config = deepspeed_configuration(micro_batches=micro_batches, zero_optimization={"stage": stage})
    config["train_micro_batch_size_per_gpu"] = sequences
    config["optimizer"]["params"]["fused"] = True
    return _merged(config, SPEED_CHANGES[change])


def _merged(config, change):
    """A configuration with some keys changed, also inside of its sections; None takes a key away."""
    inside = {
        key: _merged(config.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in change.items()
    }
    return {key: value for key, value in (config | inside).items() if value is not None}


def _speed_plan(sizes, counts, stages):
    if "tiny" in sizes:
        cases, starts = [(counts[-1], "tiny", stages[-1], 2, 2, False, "")], (1,)
    else:
        starts = (1, 2)
        plain = {name.split(",")[0] for name in sizes}
        cases = [
            case
            for case in SPEED
            if case[0] in counts and case[1].split(",")[0] in plain and case[2] in stages
        ]
    names = ("size", "stage", "sequences", "micro_batches", "checkpointing", "change")
    return [
        (ranks, dict(zip(names, rest)) | {"compiled": rest[-1] == "compiled", "start": start})
        for ranks, *rest in cases
        for start in starts
    ]


def long_text_configuration(way: str) -> dict:
    """With stage 3 holding no more than a layer's gathered weights."""
    at_once = {
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
    }
    zero = {
        "stage": LONG_TEXT[way].stage,
        "reduce_bucket_size": 500_000,
        **(at_once if LONG_TEXT[way].stage == 3 else {}),
    }
    return deepspeed_configuration(micro_batches=1, zero_optimization=zero)


def _long_text_plan(sizes, counts, stages):
    text, limit, ways = ("tiny", TINY_LIMIT, TINY_WAYS) if "tiny" in sizes else ("6.2B", LIMIT, LONG_TEXT)
    return [
        (LONG_TEXT[way].ranks, {"text": text, "way": way, "limit": limit})
        for way in ways
        if LONG_TEXT[way].ranks in counts
    ]


ON_DISK = {
    "device": "nvme",
    "nvme_path": "swap",
    "buffer_count": 5,
}  # buffers for Adam's three states, gradients, and one more
PARAMETERS_ON_DISK = {
    "device": "nvme",
    "nvme_path": "swap",
    "buffer_count": 6,
    "buffer_size": 600_000,
    "max_in_cpu": 0,
}
PLACES = {  # of the optimizer's states, the cases of the experiment nvme
    "device": {},
    "host": {"offload_optimizer": {"device": "cpu"}},
    "disk": {"offload_optimizer": ON_DISK},
    "disk, parameters too": {"offload_optimizer": ON_DISK, "offload_param": PARAMETERS_ON_DISK},
    "disk, sub-groups under 1 MiB": {"offload_optimizer": ON_DISK, "sub_group_size": 200_000},
    "disk, stage 2": {"offload_optimizer": ON_DISK, "stage": 2},
    "disk, pipelined": {"offload_optimizer": ON_DISK | {"pipeline_read": True, "pipeline_write": True}},
}


def nvme_configuration(place: str) -> dict:
    """In bf16; at stage 3 where the place says nothing else."""
    zero = {
        "stage": 3,
        "reduce_bucket_size": 100_000,
        "sub_group_size": 800_000,
        "stage3_param_persistence_threshold": 0,
    }
    return deepspeed_configuration(micro_batches=1, zero_optimization=zero | PLACES[place])


QLORA = [
    (16, 3, True),
    *((4, stage, True) for stage in range(4)),
    *((4, stage, False) for stage in (2, 3)),
]  # bits, stage, engine.train()


def qlora_configuration(stage: int) -> dict:
    """In bf16, without a large bucket."""
    zero = {"stage": stage, "reduce_bucket_size": 10_000, "stage3_param_persistence_threshold": 0}
    return deepspeed_configuration(micro_batches=1, zero_optimization=zero)


def autotuning_configuration() -> dict:
    """In bf16; the stages and micro-batches to try are lists."""
    asked = {"enabled": True, "fast": True}
    zero = {"stage": [0, 1, 2, 3], "reduce_bucket_size": 100_000}
    return deepspeed_configuration(
        train_micro_batch_size_per_gpu=[2, 8], micro_batches=1, zero_optimization=zero, autotuning=asked
    )


def _several(counts):
    return [ranks for ranks in counts if ranks > 1]


EXPERIMENTS = {
    "zero": Experiment(
        function=experiments.zero,
        plan=lambda sizes, counts, stages: [
            (n, {"size": size, "stage": stage}) for size in sizes for n in counts for stage in stages
        ],
        configuration=lambda ranks, size, stage: deepspeed_configuration(stage),
        may_share=True,
    ),
    "activations": Experiment(
        function=experiments.activations,
        plan=lambda sizes, counts, stages: [
            (1, {"size": size, "checkpointing": way}) for size in sizes for way in (False, True)
        ],
    ),
    "outside_allocator": Experiment(
        function=experiments.outside_allocator,
        plan=lambda sizes, counts, stages: [
            (n, {"buffer": buffer}) for n in counts for buffer in NCCL_BUFFERS
        ],
        needs_gpu=True,
    ),
    "bandwidth": Experiment(
        function=experiments.bandwidth,
        plan=lambda sizes, counts, stages: [(n, {"message_bytes": MESSAGES}) for n in _several(counts)],
    ),
    "tensor": Experiment(
        function=experiments.tensor,
        plan=lambda sizes, counts, stages: [
            (n, {"size": size}) for size in sizes for n in _several(counts) if SIZES[size].heads % n == 0
        ],
        configuration=lambda ranks, size: deepspeed_configuration(
            tensor_parallel={"autotp_size": ranks, "partition_config": models.AUTOTP_RULES}
        ),
        may_share=True,
    ),
    "pipeline": Experiment(
        function=experiments.pipeline,
        plan=lambda sizes, counts, stages: [
            (n, {"size": size, "micro_batches": 4 * n}) for size in sizes for n in _several(counts)
        ],
        configuration=lambda ranks, size, micro_batches: deepspeed_configuration(micro_batches=micro_batches),
    ),
    "construction": Experiment(
        function=experiments.construction,
        plan=lambda sizes, counts, stages: [
            (n, {"size": size, "how": how})
            for size in sizes
            for n in _several(counts)
            for how in CONSTRUCTIONS
        ],
        configuration=lambda ranks, size, how: deepspeed_configuration(stage=3),
    ),
    "finetune": Experiment(
        function=experiments.finetune,
        plan=_finetune_plan,
        configuration=lambda ranks, shape, case, limit: finetune_configuration(case),
        libraries=("transformers.GlmForCausalLM", "peft"),
    ),
    "longest_sequence": Experiment(
        function=longest.longest_sequence,
        plan=_long_text_plan,
        configuration=lambda ranks, text, way, limit: long_text_configuration(way),
        libraries=("transformers.GlmForCausalLM", "peft"),
    ),
    "speed": Experiment(
        function=speed.speed,
        plan=_speed_plan,
        configuration=lambda ranks, size, stage, sequences, micro_batches, checkpointing, change, compiled, start: (
            speed_configuration(stage, sequences, micro_batches, change)
        ),
    ),
    "constants": Experiment(
        function=speed.constants,
        plan=lambda sizes, counts, stages: [(n, {}) for n in (counts[-1:] if "tiny" in sizes else counts)],
    ),
    "nvme": Experiment(
        function=nvme.nvme,
        plan=lambda sizes, counts, stages: [
            (2, {"size": "3.2M", "place": place}) for place in PLACES if 2 in counts
        ],
        configuration=lambda ranks, size, place: nvme_configuration(place),
        needs_cpu=True,
        missing=nvme.missing,
    ),
    "qlora": Experiment(
        function=qlora.qlora,
        plan=lambda sizes, counts, stages: [
            (2, {"shape": "tiny", "bits": bits, "stage": stage, "train": train})
            for bits, stage, train in QLORA
            if 2 in counts
        ],
        configuration=lambda ranks, shape, bits, stage, train: qlora_configuration(stage),
        needs_cpu=True,
        libraries=("transformers.GlmForCausalLM", "peft"),
        missing=qlora.missing,
    ),
    "autotuning": Experiment(
        function=autotuning.autotuning,
        plan=lambda sizes, counts, stages: [
            (1, {"attempt": attempt}) for attempt in (1, 2, 3)
        ],  # of one rank, which starts the autotuner
        configuration=lambda ranks, attempt: autotuning_configuration(),
        needs_cpu=True,
        missing=autotuning.missing,
    ),
    "offload_error": Experiment(
        function=experiments.offload_error,
        plan=lambda sizes, counts, stages: [
            (n, {"mended": mended}) for n in counts[:1] for mended in (True, False)
        ],
        configuration=lambda ranks, mended: deepspeed_configuration(
            gradient_clipping=1.0, zero_optimization=OFFLOADED
        ),
    ),
}


def experiment(name: str) -> Experiment:
    """By its name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}; not {name!r}")
    return EXPERIMENTS[name]
