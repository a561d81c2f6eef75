"""Which experiments there are: for each the function that ranks run, its runs, DeepSpeed's configuration for
it, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from helpers.course import models
from helpers.course.recording import (
    autotuning,
    experiments,
    longest,
    nvme,
    qlora,
    rehearsed_models,
    speed,
)
from helpers.course.recording.experiments import MICRO_BATCHES, FineTuning
from helpers.course.recording.longest import LongText

SIZES = {
    "tiny": models.TINY,
    "124M": models.GPT2,
    "1.5B": models.GPT2_XL,
    "7.5B": models.GPTSize(vocabulary=50257, context=1024, width=4096, layers=36, heads=32),
    # the smallest whose partition on two ranks is worth a disk to DeepSpeed
    "3.2M": models.GPTSize(context=64, width=256, layers=4, heads=4),
}
# For times: an odd vocabulary has a matrix product of the head that runs at an eighth of a GPU's rate, so it
# is made a multiple of 64 or more.
SIZES |= {f"{name}, padded": replace(SIZES[name], vocabulary=50304) for name in ("1.5B", "7.5B")}
NCCL_BUFFERS = [2**22, 2**24]  # bytes; the first is NCCL's own choice
# keys of GlmConfig, and tokens of a sequence or of the first one
SHAPES = {"6.2B": (models.CHATGLM_6B, 8192), "tiny": (models.TINY_CHATGLM, 64)}
TEXTS = {"6.2B": (models.CHATGLM_6B, 1024), "tiny": (models.TINY_CHATGLM, 32)}
LIMIT = 24_000_000_000  # bytes: a GPU of 24 GB, for the experiments finetune and longest_sequence
TINY_LIMIT = 3_000_000  # bytes, for the tiny model
MESSAGES = [4 * 2**power for power in range(8, 29, 2)]  # bytes
BUCKET = 50_000_000  # elements; small beside billions of parameters
# ways to build a model, and its dtype by each
CONSTRUCTIONS = {"partitioned": "bf16", "whole, device": "bf16", "whole, host": "fp32"}
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
            names)].  Those with other numbers of ranks are left out later.
        configuration: (ranks, **arguments) to DeepSpeed's configuration; None where it configures nothing.
        alone: one rank runs it, whatever number is asked for.
        may_share: says something where ranks share a GPU: a rank's bytes are the same, times are not.
        needs_gpu: says nothing on a CPU.
        needs_cpu: is recorded on a CPU, where its bytes are those of any device.
        libraries: what is imported once for all ranks.
        missing: says why this machine cannot run it, or "".
    """

    function: Callable
    plan: Callable
    configuration: Callable = lambda ranks, **arguments: None
    alone: bool = False
    may_share: bool = False
    needs_gpu: bool = False
    needs_cpu: bool = False
    libraries: tuple = ()
    missing: Callable = lambda: ""


FINE_TUNING = {
    "no ZeRO": FineTuning(stage=0, fits=False),
    "no ZeRO, checkpointing": FineTuning(stage=0, fits=True, checkpointing=True),
    "no ZeRO, checkpointing, chunked loss": FineTuning(stage=0, fits=True, checkpointing=True, chunks=8),
    "ZeRO-2": FineTuning(stage=2, fits=False),
    "ZeRO-2, offload": FineTuning(stage=2, fits=False, offload=True),
    "ZeRO-2, checkpointing": FineTuning(stage=2, fits=True, checkpointing=True),
    "ZeRO-3": FineTuning(stage=3, fits=False),
    "ZeRO-3, bf16 adapters": FineTuning(stage=3, fits=False, fp32_adapters=False),
    "ZeRO-3, bf16 adapters, plain linear": FineTuning(
        stage=3, fits=False, fp32_adapters=False, memory_efficient_linear=False
    ),
    "ZeRO-3, checkpointing": FineTuning(stage=3, fits=True, checkpointing=True),
}
# what is tried on a CPU
TINY_FINE_TUNING = ("no ZeRO, checkpointing, chunked loss", "ZeRO-2, offload", "ZeRO-3, bf16 adapters")
_TILED = {"checkpointing": True, "tile": 1024}
_ULYSSES = {"ranks": 2, "shared": True}
LONG_TEXT = {
    "plain": LongText(),
    "checkpointing": LongText(checkpointing=True),
    "checkpointing, tiles": LongText(**_TILED),
    "checkpointing, tiles, host": LongText(host=True, **_TILED),
    "ZeRO-3": LongText(ranks=2, stage=3),
    "ZeRO-3, checkpointing, tiles": LongText(ranks=2, stage=3, **_TILED),
    "Ulysses": LongText(stage=1, **_ULYSSES),
    "Ulysses, checkpointing": LongText(stage=1, checkpointing=True, **_ULYSSES),
    "Ulysses, checkpointing, tiles": LongText(stage=1, **_ULYSSES, **_TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles": LongText(stage=3, **_ULYSSES, **_TILED),
    "Ulysses, ZeRO-3, checkpointing, tiles, host": LongText(stage=3, host=True, **_ULYSSES, **_TILED),
}
TINY_LONG_TEXT = ("checkpointing, tiles", "Ulysses, checkpointing")  # what is tried on a CPU
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
# arguments that a recording gives by name
NAMED = {"size": SIZES, "shape": SHAPES, "case": FINE_TUNING, "text": TEXTS, "way": LONG_TEXT}
NAMED["training"] = rehearsed_models.TRAININGS
# buffers for Adam's three states, gradients, and one more
_ON_DISK = {"device": "nvme", "nvme_path": "swap", "buffer_count": 5}
_PARAMETERS_ON_DISK = {**_ON_DISK, "buffer_count": 6, "buffer_size": 600_000, "max_in_cpu": 0}
PLACES = {  # of the optimizer's states, the cases of the experiment nvme
    "device": {},
    "host": {"offload_optimizer": {"device": "cpu"}},
    "disk": {"offload_optimizer": _ON_DISK},
    "disk, parameters too": {"offload_optimizer": _ON_DISK, "offload_param": _PARAMETERS_ON_DISK},
    "disk, sub-groups under 1 MiB": {"offload_optimizer": _ON_DISK, "sub_group_size": 200_000},
    "disk, stage 2": {"offload_optimizer": _ON_DISK, "stage": 2},
    "disk, pipelined": {"offload_optimizer": _ON_DISK | {"pipeline_read": True, "pipeline_write": True}},
}
# bits, stage, engine.train()
QLORA = [(16, 3, True), *((4, stage, True) for stage in range(4)), (4, 2, False), (4, 3, False)]


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


def one_micro_batch(**zero: object) -> dict:
    """With these keys of ZeRO alone, and one micro-batch in a step."""
    return deepspeed_configuration(micro_batches=1, zero_optimization=zero)


def finetune_configuration(case: str) -> dict:
    """With the keys of article D."""
    way = FINE_TUNING[case]
    if not way.stage:
        return one_micro_batch(stage=0)
    keys = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "reduce_bucket_size": 500_000_000,
    }
    if way.offload:
        keys["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if way.stage == 3:
        keys["memory_efficient_linear"] = way.memory_efficient_linear
    return one_micro_batch(stage=way.stage, **keys)


def speed_configuration(stage: int, sequences: int, micro_batches: int, change: str) -> dict:
    """As people run it: DeepSpeed's own buckets and overlap, and torch's fused AdamW; with one change, from
    SPEED_CHANGES."""
    config = deepspeed_configuration(micro_batches=micro_batches, zero_optimization={"stage": stage})
    config["train_micro_batch_size_per_gpu"] = sequences
    config["optimizer"]["params"]["fused"] = True
    return _merged(config, SPEED_CHANGES[change])


def _merged(config, change):
    """A configuration with some keys changed, also inside of its sections; None takes a key away."""
    merged = dict(config)
    for key, value in change.items():
        if value is None:
            del merged[key]
        else:
            merged[key] = _merged(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def long_text_configuration(way: str) -> dict:
    """With stage 3 holding no more than a layer's gathered weights."""
    at_once = ("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size")
    stage = LONG_TEXT[way].stage
    keys = dict.fromkeys(at_once, 0) if stage == 3 else {}
    return one_micro_batch(stage=stage, reduce_bucket_size=500_000, **keys)


def nvme_configuration(place: str) -> dict:
    """At stage 3 where the place says nothing else."""
    keys = {"reduce_bucket_size": 100_000, "sub_group_size": 800_000, "stage3_param_persistence_threshold": 0}
    return one_micro_batch(**{"stage": 3, **keys, **PLACES[place]})


def qlora_configuration(stage: int) -> dict:
    """Without a large bucket."""
    return one_micro_batch(stage=stage, reduce_bucket_size=10_000, stage3_param_persistence_threshold=0)


def autotuning_configuration() -> dict:
    """The stages and micro-batches to try are lists."""
    config = one_micro_batch(stage=[0, 1, 2, 3], reduce_bucket_size=100_000)
    return config | {"train_micro_batch_size_per_gpu": [2, 8], "autotuning": {"enabled": True, "fast": True}}


def _finetune_plan(sizes, counts, stages):
    if "tiny" in sizes:
        shape, cases = "tiny", [(case, None) for case in TINY_FINE_TUNING]
    else:
        shape, cases = "6.2B", []
        for case, way in FINE_TUNING.items():
            cases += [(case, LIMIT)] if way.fits else [(case, LIMIT), (case, None)]
    return [
        (2 if FINE_TUNING[case].stage else 1, {"shape": shape, "case": case, "limit": limit})
        for case, limit in cases
    ]


def _speed_plan(sizes, counts, stages):
    if "tiny" in sizes:
        cases, starts = [(counts[-1], "tiny", stages[-1], 2, 2, False, "")], (1,)
    else:
        plain = {name.split(",")[0] for name in sizes}
        cases = [case for case in SPEED if case[1].split(",")[0] in plain and case[2] in stages]
        starts = (1, 2)
    names = ("size", "stage", "sequences", "micro_batches", "checkpointing", "change")
    return [
        (ranks, dict(zip(names, rest)) | {"compiled": rest[-1] == "compiled", "start": start})
        for ranks, *rest in cases
        for start in starts
    ]


def _long_text_plan(sizes, counts, stages):
    tiny = "tiny" in sizes
    text, limit, ways = ("tiny", TINY_LIMIT, TINY_LONG_TEXT) if tiny else ("6.2B", LIMIT, LONG_TEXT)
    return [(LONG_TEXT[way].ranks, {"text": text, "way": way, "limit": limit}) for way in ways]


def _several(counts):
    return [ranks for ranks in counts if ranks > 1]


def _each(name, values, ranks=None):
    """A plan: every value of one argument, with the ranks given or all that are wanted."""
    return lambda sizes, counts, stages: [
        (count, {name: value}) for count in (ranks or counts) for value in values
    ]


_GLM = ("transformers.GlmForCausalLM", "peft")
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
        alone=True,
    ),
    "outside_allocator": Experiment(
        function=experiments.outside_allocator, plan=_each("buffer", NCCL_BUFFERS), needs_gpu=True
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
        libraries=_GLM,
    ),
    "longest_sequence": Experiment(
        function=longest.longest_sequence,
        plan=_long_text_plan,
        configuration=lambda ranks, text, way, limit: long_text_configuration(way),
        libraries=_GLM,
    ),
    "rehearsed_models": Experiment(
        function=rehearsed_models.rehearsed_models,
        plan=lambda sizes, counts, stages: [
            (training.ranks, {"training": name}) for name, training in rehearsed_models.TRAININGS.items()
        ],
        configuration=lambda ranks, training: rehearsed_models.configuration(
            rehearsed_models.TRAININGS[training]
        ),
        needs_gpu=True,
        libraries=("transformers", "transformers.integrations"),
    ),
    "speed": Experiment(
        function=speed.speed,
        plan=_speed_plan,
        configuration=lambda ranks, stage, sequences, micro_batches, change, **more: speed_configuration(
            stage, sequences, micro_batches, change
        ),
    ),
    "constants": Experiment(
        function=speed.constants,
        plan=lambda sizes, counts, stages: [(n, {}) for n in (counts[-1:] if "tiny" in sizes else counts)],
    ),
    "nvme": Experiment(
        function=nvme.nvme,
        plan=lambda sizes, counts, stages: [(2, {"size": "3.2M", "place": place}) for place in PLACES],
        configuration=lambda ranks, size, place: nvme_configuration(place),
        needs_cpu=True,
        missing=nvme.missing,
    ),
    "qlora": Experiment(
        function=qlora.qlora,
        plan=lambda sizes, counts, stages: [
            (2, {"shape": "tiny", "bits": bits, "stage": stage, "train": train})
            for bits, stage, train in QLORA
        ],
        configuration=lambda ranks, shape, bits, stage, train: qlora_configuration(stage),
        needs_cpu=True,
        libraries=_GLM,
        missing=qlora.missing,
    ),
    "autotuning": Experiment(
        function=autotuning.autotuning,
        plan=_each("attempt", (1, 2, 3), ranks=[1]),  # the rank starts the autotuner
        alone=True,
        configuration=lambda ranks, attempt: autotuning_configuration(),
        needs_cpu=True,
        missing=autotuning.missing,
    ),
    "offload_error": Experiment(
        function=experiments.offload_error,
        plan=lambda sizes, counts, stages: [(counts[0], {"mended": mended}) for mended in (True, False)],
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
