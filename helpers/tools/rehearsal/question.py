"""What `python -m helpers.tools.rehearsal` is asked: a model and a configuration of DeepSpeed, and sizes as
people write them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.tools.theory.deepspeed_config import ACCUMULATION, MICRO, TRAIN, Configuration, read
from helpers.tools.theory.gpt_size import GPTSize

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MICRO_BATCHES = 2  # of a step, at most: what a third one holds and sends is what the second did
# Sections that change no byte of a model on the GPU, and would write files or print.
LEFT_OUT = ("scheduler", "wandb", "tensorboard", "csv_monitor", "comet", "flops_profiler", "comms_logger")


class BadQuestion(ValueError):
    """What was asked cannot be read or is not rehearsed; says what to do."""


@dataclass(frozen=True)
class Question:
    """A training of which somebody wants to know whether it fits."""

    model: dict  # keys of transformers' configuration, with `model_type`
    config: dict  # DeepSpeed's, complete, with at most `MICRO_BATCHES` of accumulation
    ranks: int
    sequence: int
    micro_batch: int
    checkpointing: bool
    accumulation: int  # micro-batches of a step, however many
    stage: int
    dtype: str
    is_offloaded: bool
    notes: tuple  # what is rehearsed otherwise than it was asked, or was assumed


def size(text: str) -> int:
    """Bytes from "80GB", "80 GiB" or "80e9"."""
    parts = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kKMGT]?)(i?)B?\s*", text)
    if not parts or float(parts[1]) <= 0:
        raise BadQuestion(f"a size of memory is written as 80GB, 80GiB or 80e9, not {text!r}")
    return int(float(parts[1]) * (1024 if parts[3] else 1000) ** " KMGT".index(parts[2].upper() or " "))


def read_model(path: str | Path) -> dict:
    """The JSON object of a file, or of config.json in a folder."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        model = json.loads(path.read_text())
    except OSError as error:
        raise BadQuestion(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadQuestion(f"{path} is not JSON: {error}") from None
    if not isinstance(model, dict):
        raise BadQuestion(f"{path} should hold an object with keys, and holds a {type(model).__name__}")
    return model


def as_transformers(model: dict) -> dict:
    """The keys of a configuration of transformers; a `GPTSize` becomes a GPT-2 of its numbers."""
    if "model_type" in model:
        return model
    known = sorted(field.name for field in fields(GPTSize))
    if not model or not set(model) <= set(known):
        either = "a model is a configuration of transformers, with its model_type, or has keys out of"
        raise BadQuestion(f"{either} {', '.join(known)}")
    try:
        shape = GPTSize(**model)
    except ValueError as error:
        raise BadQuestion(f"the model's {error}") from None
    sizes = {"vocab_size": shape.vocabulary, "n_positions": shape.context, "n_embd": shape.width}
    sizes |= {"n_layer": shape.layers, "n_head": shape.heads, "bos_token_id": 0, "eos_token_id": 0}
    return {"model_type": "gpt2", **sizes, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)}


def shape_of(model: dict) -> PreTrainedConfig:
    """The configuration as an object of transformers."""
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = model["model_type"]
    if kind not in CONFIG_MAPPING:
        not_known = f"transformers knows no model_type {kind!r}"
        raise BadQuestion(f"{not_known}: models with code of their own are not rehearsed")
    if not libraries(model) or model.get("is_encoder_decoder"):
        raise BadQuestion(
            f"this command rehearses causal language models, and {kind} is none: write a function that "
            "trains it, for helpers.rehearse"
        )
    try:
        return AutoConfig.for_model(**model)
    except Exception as error:
        raise BadQuestion(f"transformers refuses the model's configuration: {error}") from error


def libraries(model: dict) -> list[str]:
    """What every rehearsal of a model would import again, by the names that `preload` takes."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model["model_type"])
    return [f"transformers.{name}"] if isinstance(name, str) else []


def ask(
    model: dict,
    config: dict | str | Path,
    ranks: int,
    sequence: int,
    micro_batch: int | None = None,
    checkpointing: bool = False,
) -> Question:
    """A `Question` from two configurations; DeepSpeed's is read as `deepspeed_config.read` does.

    Raises:
        BadQuestion, BadConfiguration: a part of it is not rehearsed, or DeepSpeed refuses its configuration.
    """
    model = as_transformers(model)
    shape = shape_of(model)
    known = read(config, ranks=ranks, model=shape, micro_batch=micro_batch)
    notes = list(known.notes)
    if known.micro_batch is None:
        known = read(config, ranks=ranks, model=shape, micro_batch=1)
        notes.append("nothing says how large a micro-batch is: 1 sequence is assumed")
    elif micro_batch:
        written = read(config, model=shape)
        if written.train_batch or written.micro_batch not in (None, known.micro_batch):
            step = f"accumulation {known.accumulation}, {known.train_batch:,} sequences in a step"
            notes.append(f"--micro-batch {known.micro_batch} counts more than the file: {step}")
    if name := next(_not_rehearsed(known), None):
        own = f"{name} needs a function of your own for helpers.rehearse"
        raise BadQuestion(f"this command rehearses data parallelism and ZeRO; {own}")
    if "nvme" in known.offload.values():
        raise BadQuestion(
            '"nvme" is not rehearsed: ask with "device": "cpu", whose GPU holds the same but for buffers'
        )
    config = {key: value for key, value in known.config.items() if key not in (*LEFT_OUT, TRAIN)}
    config |= {MICRO: known.micro_batch, ACCUMULATION: min(known.accumulation, MICRO_BATCHES)}
    changed, more = _optimizer(known)
    return Question(
        model=model,
        config=config | changed,
        ranks=ranks,
        sequence=sequence,
        micro_batch=known.micro_batch,
        checkpointing=checkpointing,
        accumulation=known.accumulation,
        stage=known.stage,
        dtype=known.dtype,
        is_offloaded=bool(known.offload),
        notes=(*notes, *more),
    )


def _not_rehearsed(known):
    """Names of what is in use and not rehearsed."""
    whole, zero, partitioned = known.deepspeed, known.zero, known.stage == 3
    in_use = {
        "tensor_parallel": whole.tensor_parallel_config.autotp_size > 1,
        "sequence_parallel_size": known.config.get("sequence_parallel_size", 1) != 1,
        "pipeline": known.config.get("pipeline"),
        "expert_parallel": whole.expert_parallel_config.enabled,
        "data_efficiency": whole.data_efficiency_enabled,
        "hybrid_engine": whole.hybrid_engine.enabled,
        "autotuning": whole.autotuning_config.enabled,
        "compile.deepcompile": whole.compile_config.deepcompile,
        "weight_quantization": whole.weight_quantization_config,
        "zenflow": zero.zenflow,
    }
    quantized = (f"zero_quantized_{what}" for what in ("weights", "gradients", "nontrainable_weights"))
    in_use |= {name: partitioned and getattr(zero, name) for name in quantized}
    return (name for name, value in in_use.items() if value)


def _optimizer(known: Configuration) -> tuple[dict, list[str]]:
    """torch's Adam in the place of DeepSpeed's own, which would have to be compiled: keys of DeepSpeed's
    configuration, and what was changed, as notes."""
    name, params = known.deepspeed.optimizer_name, known.deepspeed.optimizer_params or {}
    if name not in (None, "adam", "adamw"):
        raise BadQuestion(
            f"the optimizer {known.config['optimizer']['type']} is not rehearsed: its states are not Adam's; "
            "ask with AdamW, or use helpers.rehearse"
        )
    on_host, is_torchs = "offload_optimizer" in known.offload, params.get("torch_adam")
    adam, changed, note = {"lr": 1e-4, "torch_adam": True}, {}, []
    if on_host:
        changed = {"zero_force_ds_cpu_optimizer": False}
        note = ["torch's Adam on the host in the place of DeepSpeed's: it needs more there while it steps"]
    elif not is_torchs:
        note = ["torch's fused Adam in the place of DeepSpeed's: it takes 4 bytes more for each tensor"]
    if not on_host and (params.get("fused") or not is_torchs):
        adam["fused"] = True
    return changed | {"optimizer": {"type": "AdamW", "params": adam}}, note
