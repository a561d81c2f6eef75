"""What `python -m helpers.tools.rehearsal` is asked: a model and a configuration of DeepSpeed from files, and
sizes as people write them."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from helpers.course.models import GPTSize

UNITS = {
    "": 1,
    "B": 1,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
ELSEWHERE = (
    "tensor_parallel",
    "sequence_parallel_size",
    "pipeline",
    "compression_training",
    "curriculum_learning",
    "data_efficiency",
)
MICRO_BATCHES = 2  # of a step, at most: what a third one holds and sends is what the second did


class BadQuestion(ValueError):
    """What was asked cannot be read or is not rehearsed; says what to do."""


@dataclass(frozen=True)
class Question:
    """A training of which somebody wants to know whether it fits.

    Attributes:
        model: keys of transformers' configuration, with `model_type`; or those of `GPTSize`.
        config: DeepSpeed's, complete, with at most `MICRO_BATCHES` of accumulation.
        ranks: how many.
        sequence, micro_batch: tokens of a sequence, sequences of a micro-batch.
        checkpointing: of every block.
        accumulation: micro-batches of a step, however many.
        notes: what is rehearsed otherwise than it was asked.
    """

    model: dict
    config: dict
    ranks: int
    sequence: int
    micro_batch: int
    checkpointing: bool
    accumulation: int
    notes: tuple

    @property
    def stage(self) -> int:
        return self.config.get("zero_optimization", {}).get("stage", 0)

    @property
    def is_offloaded(self) -> bool:
        zero = self.config.get("zero_optimization", {})
        return any(
            zero.get(key, {}).get("device", "none") != "none"
            for key in ("offload_optimizer", "offload_param")
        )


def size(text: str) -> int:
    """Bytes from "80GB", "80 GiB" or "80e9".

    Raises:
        BadQuestion: it is none of these.
    """
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kKMGT]?i?B?)\s*", text)
    if not found or found[2] not in UNITS or float(found[1]) <= 0:
        raise BadQuestion(f"a size of memory is written as 80GB, 80GiB or 80e9, not {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def read(path: str | Path) -> dict:
    """A JSON file that holds an object.

    Raises:
        BadQuestion: there is none.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise BadQuestion(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadQuestion(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadQuestion(f"{path} should hold an object with keys, and holds a {type(found).__name__}")
    return found


def check_model(model: dict) -> None:
    """That it is of a kind that can be built.

    Raises:
        BadQuestion: it is not.
    """
    if "model_type" in model:
        from transformers import CONFIG_MAPPING

        if model["model_type"] not in CONFIG_MAPPING:
            raise BadQuestion(
                f"transformers knows no model_type {model['model_type']!r}: models with code of "
                "their own are not rehearsed"
            )
        return
    known = {field.name for field in fields(GPTSize)}
    if not model or not set(model) <= known:
        raise BadQuestion(
            "a model is a configuration of transformers, with its model_type, or has keys out of "
            f"{', '.join(sorted(known))}"
        )
    try:
        GPTSize(**model)
    except ValueError as error:
        raise BadQuestion(f"the model's {error}") from None


def libraries(model: dict) -> list[str]:
    """What every rehearsal of a model would import again, by the names that `preload` takes."""
    if "model_type" not in model:
        return []
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [
        f"transformers.{name}"
        for name in [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model["model_type"])]
        if isinstance(name, str)
    ]


def ask(
    model: dict,
    config: dict,
    ranks: int,
    sequence: int,
    micro_batch: int | None = None,
    checkpointing: bool = False,
) -> Question:
    """A `Question` from two configurations.  What is "auto", as transformers lets people write, is filled in.

    Raises:
        BadQuestion: a part of it is not rehearsed, or contradicts another.
    """
    check_model(model)
    config, notes = copy.deepcopy(config), []
    if there := [key for key in ELSEWHERE if config.get(key)]:
        raise BadQuestion(
            f"this command rehearses data parallelism and ZeRO; {there[0]} needs a function of "
            "your own for helpers.rehearse"
        )
    own = config.pop("train_micro_batch_size_per_gpu", "auto")
    micro_batch = micro_batch or (1 if own == "auto" else own)
    accumulation = config.pop("gradient_accumulation_steps", "auto")
    whole = config.pop("train_batch_size", "auto")
    if accumulation == "auto":
        accumulation = 1 if whole == "auto" else whole // (micro_batch * ranks) or 1
    if whole not in ("auto", made := micro_batch * accumulation * ranks):
        raise BadQuestion(
            f"train_batch_size is {whole}, and {accumulation} micro-batches of {micro_batch} on "
            f"{ranks} ranks make {made}"
        )
    config |= {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": min(accumulation, MICRO_BATCHES),
    }
    notes += optimizer(config)
    without_auto(config, model)
    for key in ("scheduler", "wandb", "tensorboard", "csv_monitor", "flops_profiler", "comms_logger"):
        config.pop(key, None)
    return Question(model, config, ranks, sequence, micro_batch, checkpointing, accumulation, tuple(notes))


def optimizer(config: dict) -> list[str]:
    """Put torch's Adam in the place of DeepSpeed's own, which would have to be compiled; what was changed, as
    notes."""
    given = config.get("optimizer") or {"type": "AdamW"}
    if given["type"].lower() not in ("adam", "adamw"):
        raise BadQuestion(
            f"the optimizer {given['type']} is not rehearsed: its states are not Adam's; ask with "
            "AdamW, or use helpers.rehearse"
        )
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}}
    own = given.get("params", {})
    plain = own.get("torch_adam") and not own.get("fused")
    if plain:
        config["optimizer"]["params"].pop("fused")
    if (config.get("zero_optimization") or {}).get("offload_optimizer", {}).get("device", "none") != "none":
        config["optimizer"]["params"].pop("fused", None)
        config["zero_force_ds_cpu_optimizer"] = False
        return [
            "torch's Adam in the host's memory in the place of DeepSpeed's: it needs more there "
            "while it steps, and no more on the GPU"
        ]
    return (
        []
        if own.get("torch_adam")
        else ["torch's fused Adam in the place of DeepSpeed's: it takes 4 bytes more for each tensor"]
    )


def without_auto(config: dict, model: dict) -> None:
    """Fill in what is "auto": in `zero_optimization` as transformers does, from the model's width; elsewhere
    DeepSpeed's own choice."""
    width = model.get("hidden_size") or model.get("n_embd") or model.get("d_model") or model.get("width", 64)
    filled = {
        "reduce_bucket_size": width * width,
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }
    for key, value in list(config.items()):
        if value == "auto":
            del config[key]
        elif isinstance(value, dict):
            for inner, part in list(value.items()):
                if part == "auto":
                    del value[inner]
                    if key == "zero_optimization" and inner in filled:
                        value[inner] = filled[inner]
                    if key in ("bf16", "fp16") and inner == "enabled":
                        value[inner] = key == "bf16"
