"""What an experiment is: the function that ranks run, its runs, DeepSpeed's configuration for each, and what
it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product

from helpers.course import models

MODELS = {  # by which a run is asked for
    "tiny": models.TINY,
    "124M": models.GPT2,
    "1.5B": models.GPT2_XL,
    "7.5B": models.GPTSize(vocabulary=50257, context=1024, width=4096, layers=36, heads=32),
}
# For times: an odd vocabulary has a matrix product of the head that runs at an eighth of a GPU's rate, so it
# is made a multiple of 64 or more.
SIZES = MODELS | {f"{name}, padded": replace(MODELS[name], vocabulary=50304) for name in ("1.5B", "7.5B")}
# few wide layers: a host issues them faster than a GPU computes them, whatever the batch
SIZES["7.5B, 8 layers"] = replace(SIZES["7.5B, padded"], layers=8)
# the smallest whose partition on two ranks is worth a disk to DeepSpeed
SIZES["3.2M"] = models.GPTSize(context=64, width=256, layers=4, heads=4)
# keys of GlmConfig, and tokens of a sequence or of the first one
SHAPES = {"6.2B": (models.CHATGLM_6B, 8192), "tiny": (models.TINY_CHATGLM, 64)}
TEXTS = {"6.2B": (models.CHATGLM_6B, 1024), "tiny": (models.TINY_CHATGLM, 32)}
GLM = ("transformers.GlmForCausalLM", "peft")  # the libraries of these two
LIMIT = 24_000_000_000  # bytes: a GPU of 24 GB, for the experiments finetune and longest_sequence
RANKS, STAGES = (1, 2, 4, 8, 16, 32, 64), (0, 1, 2, 3)
MICRO_BATCHES = 2  # of a step, where an experiment has no number of its own
BUCKET = 50_000_000  # elements; small beside billions of parameters


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment.

    Attributes:
        function: what every rank runs.
        runs: [(ranks, arguments, which a recording names)].
        configuration: (ranks, **arguments) to DeepSpeed's configuration; None where it configures nothing.
        prediction: (ranks, **arguments) to what is expected, plain data that is kept beside the run.
        may_share: says something where ranks share a GPU: a rank's bytes are the same, times are not.
        needs_gpu: says nothing on a CPU.
        needs_cpu: is recorded on a CPU, where its bytes are those of any device; all its runs always.
        libraries: what is imported once for all ranks.
        missing: says why this machine cannot run it, or "".
    """

    function: Callable
    runs: list[tuple[int, dict]]
    configuration: Callable = lambda ranks, **arguments: None
    prediction: Callable = lambda ranks, **arguments: None
    may_share: bool = False
    needs_gpu: bool = False
    needs_cpu: bool = False
    libraries: tuple = ()
    missing: Callable[[], str] = lambda: ""


def grid(counts: Iterable[int], **values: Iterable) -> list[tuple[int, dict]]:
    """Runs with each of these numbers of ranks and every combination of arguments."""
    combinations = [dict(zip(values, chosen)) for chosen in product(*values.values())]
    return [(ranks, arguments) for ranks in counts for arguments in combinations]


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
