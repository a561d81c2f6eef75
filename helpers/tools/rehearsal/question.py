"""What `rehearse` is asked: a model and a configuration of DeepSpeed, and more."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..theory.deepspeed_config import ACCUMULATION, MICRO, TRAIN, Configuration, read
from ..theory.gpt_size import GPTSize
from . import adaptations, axes
from .adaptations import EVERYTHING, Adaptation
from .architectures import architecture, longest
from .refusing import BadQuestion, refuse

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ARGUMENTS = ("ranks", "sequence", "micro_batch", "checkpointing", "adaptation")
MICRO_BATCHES = 2  # of a step, at most: what a third one holds and sends is what the second did
# Sections that change no byte of a model on the GPU, and would write files or print; and those that `refuse`
# has found unused.
LEFT_OUT = (
    *("scheduler", "wandb", "tensorboard", "csv_monitor", "comet", "flops_profiler", "comms_logger"),
    *("aio", "autotuning", "checkpoint", "data_efficiency", "datastates_ckpt", "expert_parallel"),
    *("hybrid_engine", "pipeline", "sequence_parallel_size", "tensor_parallel", "weight_quantization"),
)


@dataclass(frozen=True)
class Question:
    """A training of which somebody wants to know whether it fits."""

    model: dict  # keys of transformers' configuration, with `model_type`
    config: dict  # DeepSpeed's, complete, with at most `MICRO_BATCHES` of accumulation
    ranks: int
    sequence: int
    micro_batch: int
    checkpointing: bool | int  # of every block, or of so many, the first
    adaptation: Adaptation  # which part is trained
    accumulation: int  # micro-batches of a step, however many
    stage: int
    dtype: str
    is_offloaded: bool
    axes: axes.Axes  # how the ranks are divided
    architecture: str  # the name of transformers' class
    labels: str  # what they are, in `architectures.LABELS`
    written: dict  # DeepSpeed's configuration as it was read
    assumed: tuple  # of precision, micro-batch and accumulation, those that nothing says
    notes: tuple  # what is rehearsed otherwise than it was asked, or was assumed

    @property
    def arguments(self) -> dict:
        """Those of `ask` beside the two configurations, for a question that differs in some of them."""
        return {name: getattr(self, name) for name in ARGUMENTS}


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
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        not_known = f"transformers knows no model_type {kind!r}"
        raise BadQuestion(f"{not_known}: models with code of their own are not rehearsed")
    try:
        return AutoConfig.for_model(**model)
    except Exception as error:
        words = " ".join(str(error).split())
        raise BadQuestion(f"transformers refuses the model's configuration: {words}") from error


def ask(
    model: dict,
    config: dict | str | Path,
    ranks: int,
    sequence: int,
    micro_batch: int | None = None,
    checkpointing: bool | int = False,
    adaptation: Adaptation = EVERYTHING,
) -> Question:
    """A `Question` from two configurations; DeepSpeed's is read as `deepspeed_config.read` does.

    Args:
        checkpointing: True for every block; a number for so many, the first.

    Raises:
        BadQuestion, BadConfiguration: a part of it is not rehearsed, or DeepSpeed refuses its configuration.
    """
    model = as_transformers(model)
    shape = shape_of(model)
    if model.get("quantization_config"):
        raise BadQuestion("a model that is quantised already is not rehearsed: leave quantization_config out")
    name, labels, notes = architecture(model, shape)
    notes = [*notes, *_too_long(shape, name, sequence)]
    written = read(config, model=shape)
    refuse(written)
    adapted = adaptations.check(adaptation, shape, name, written)
    divided = axes.divide(written, ranks, name, shape, sequence, labels)
    if divided.has_others and adaptation != EVERYTHING:
        adapting = "--lora, --qlora or --frozen"
        raise BadQuestion(f"{axes.used(written)[0]} with {adapting} is not rehearsed: leave one of them out")
    known = _known(config, ranks // divided.sequence, shape, micro_batch, written)
    notes += [*known.notes, *_of_batches(written, known, divided.data, micro_batch), *_of_deepspeed(known)]
    notes += axes.notes(written, known, divided)
    notes += adaptations.notes(adaptation, adapted, known.stage, known.dtype, checkpointing)
    return Question(
        model=model,
        config=_rehearsed(known),
        ranks=ranks,
        sequence=sequence,
        micro_batch=known.micro_batch,
        checkpointing=checkpointing,
        adaptation=adaptation,
        accumulation=known.accumulation,
        stage=known.stage,
        dtype=known.dtype,
        is_offloaded=bool(known.offload),
        axes=divided,
        architecture=name,
        labels=labels,
        written=written.config,
        assumed=tuple(_assumed(written, known, micro_batch)),
        notes=tuple(notes),
    )


def _known(config, ranks, shape, micro_batch, written):
    """The configuration with all batch sizes; a micro-batch of which nothing says the size has 1 sequence."""
    if _is_open(written, micro_batch):
        micro_batch = 1
    return read(config, ranks=ranks, model=shape, micro_batch=micro_batch)


def _is_open(written, micro_batch):
    """Whether nothing says how large a micro-batch is."""
    sizes = (micro_batch, written.micro_batch, written.train_batch)
    return not any(sizes)


def _assumed(written, known, micro_batch):
    """Of precision, micro-batch and accumulation those that nothing says."""
    is_auto = any('"enabled" is "auto"' in note for note in known.notes)
    if is_auto or not {"bf16", "fp16"} & set(known.config):
        yield "precision"
    if _is_open(written, micro_batch):
        yield "micro-batch 1"
    if written.accumulation is None and written.train_batch is None:
        yield f"accumulation {known.accumulation}"


def _of_batches(written, known, data, micro_batch):
    """Notes on batch sizes; `data` ranks differ in theirs."""
    if _is_open(written, micro_batch):
        yield "nothing says how large a micro-batch is: 1 sequence is assumed"
    elif micro_batch and (written.train_batch or written.micro_batch not in (None, micro_batch)):
        each = known.micro_batch * known.accumulation * data
        step = f"accumulation {known.accumulation}, {each:,} sequences in a step"
        yield f"--micro-batch {micro_batch} counts more than the file: {step}"


def _of_deepspeed(known):
    """Notes on what DeepSpeed takes otherwise than people think."""
    if "activation_checkpointing" in known.config:
        yield "activation_checkpointing is not for models of transformers, which have --checkpointing"
    if "offload_param" in known.offload and known.stage < 3:
        yield f"offload_param does nothing at stage {known.stage}: it is stage 3's"
    if not known.config.get("optimizer"):
        whose = "DeepSpeed's on the host" if "offload_optimizer" in known.offload else "torch's fused one"
        yield f"no optimizer is named: AdamW is assumed, {whose}"


def _rehearsed(known):
    """The configuration that a rehearsal gives to DeepSpeed."""
    config = {key: value for key, value in known.config.items() if key not in (*LEFT_OUT, TRAIN)}
    config |= {name: known.config[name] for name in axes.used(known)}
    config |= {MICRO: known.micro_batch, ACCUMULATION: min(known.accumulation, MICRO_BATCHES)}
    return config | {"optimizer": _optimizer(known)}


def _too_long(shape, name, sequence):
    """A note where a model was made for shorter sequences; refuses those for which it has no positions."""
    most, is_table = longest(shape)
    if most is not None and sequence > most:
        if is_table:
            raise BadQuestion(f"{name} has {most:,} positions, and a sequence has {sequence:,} tokens")
        yield f"the model's configuration ends at {most:,} positions, and {sequence:,} are rehearsed"


def _optimizer(known: Configuration) -> dict:
    """The optimizer of the configuration; else what transformers takes by default, torch's fused
    AdamW, or DeepSpeed's where it steps on the host."""
    written, on_host = known.config.get("optimizer"), "offload_optimizer" in known.offload
    if not written:
        written = {"type": "AdamW", "params": {} if on_host else {"torch_adam": True, "fused": True}}
    params = {name: value for name, value in (written.get("params") or {}).items() if value != "auto"}
    return {"type": written["type"], "params": {"lr": 1e-4} | params}
