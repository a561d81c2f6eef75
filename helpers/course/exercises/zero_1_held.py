"""What DeepSpeed's ZeRO-1 holds, for the check of lesson 07's formula, in every rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.exercises.trials import complete
from helpers.course.training.comparable import LENGTH

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
MICRO_BATCHES = 2
BESIDE = {"inputs": 16 * MICRO_BATCHES * LENGTH, "other": 4}  # ids and targets; the norm


def is_awkward(parameters: int, ranks: int) -> bool:
    """Whether a shard needs padding to a whole number and another element to an even one."""
    return bool(parameters % ranks and -(-parameters // ranks) % 2)


@cache
def trained(seed: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """((parameters, ranks, bucket), {category: bytes between two micro-batches}) of an awkward GPT,
    trained in bf16: one rank's part of it is no whole number, and rounded up it is odd."""
    from helpers.course import models, training
    from helpers.tools import theory

    choose, ranks = random.Random(seed), dist.get_world_size()
    vocabulary, bucket = choose.randrange(128, 256), choose.randrange(20_000, 40_000)
    shape = {"context": LENGTH, "width": 25, "layers": 2, "heads": 5}
    sizes = (models.GPTSize(vocabulary=vocabulary + more, **shape) for more in range(4 * ranks))
    size = next(one for one in sizes if is_awkward(theory.gpt_parameters(one), ranks))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": bucket},
    }
    held = training.train(config, size, steps=2, make=torch.optim.AdamW)["moments"]["between micro-batches"]
    found = {name: size for name, size in held.categories.items() if size}
    return (theory.gpt_parameters(size), ranks, bucket), found


def held(see: See, answer: Callable) -> None:
    """How many bytes a formula gives in each category beyond those that DeepSpeed holds."""
    arguments, found = trained(see.seed)
    told = complete(answer(*arguments), CATEGORIES)
    less = f"minus what DeepSpeed holds of {arguments[0]:,} parameters"
    for name in CATEGORIES:
        see(f"your {name} {less}", told[name] - found.get(name, 0))
    beside = {name: size for name, size in found.items() if name not in CATEGORIES}
    see(
        "what DeepSpeed holds besides and is not known",
        [one for one in beside.items() if one not in BESIDE.items()],
    )
