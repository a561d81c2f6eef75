"""What `rehearse` is asked of a model of which a part is frozen: LoRA and QLoRA, as peft's users know them,
and parameters by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

from .adapting import ALL_LINEAR, freeze, task, with_lora
from .extras import need
from .of_transformers import build_transformers
from .refusing import BadQuestion

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..theory.deepspeed_config import Configuration


@dataclass(frozen=True)
class Adaptation:
    """Which part of a model is trained.

    Attributes:
        rank: of LoRA; 0 for no adapters.
        targets: names of layers that get adapters; none for those that peft chooses.
        in_four_bits: whether the frozen part is quantised (QLoRA).
        frozen: patterns of names of parameters that are frozen.
    """

    rank: int = 0
    targets: tuple[str, ...] = ()
    in_four_bits: bool = False
    frozen: tuple[str, ...] = ()


EVERYTHING = Adaptation()


def read(lora: str | None, qlora: str | None, frozen: Sequence[str] | None) -> Adaptation:
    """An `Adaptation` from the command's words: "16" or "16,q_proj,v_proj", and patterns with commas.

    Raises:
        BadQuestion: they cannot be read or do not go together.
    """
    patterns = tuple(filter(None, (word.strip() for words in frozen or () for word in words.split(","))))
    if frozen and not patterns:
        raise BadQuestion("--frozen names no pattern: write one, as --frozen embed_tokens")
    if lora is not None and qlora is not None:
        raise BadQuestion("--lora and --qlora are two ways to do the same: give one of them")
    words = lora if qlora is None else qlora
    if words is None:
        return Adaptation(frozen=patterns)
    option = "--lora" if qlora is None else "--qlora"
    if patterns:
        raise BadQuestion(f"{option} freezes the whole model already: leave --frozen out")
    rank, *targets = (word.strip() for word in words.split(","))
    if not (rank.isascii() and rank.isdigit() and int(rank)):
        raise BadQuestion(f"{option} begins with a rank of 1 or more, as {option} 16, not {rank!r}")
    if "" in targets:
        raise BadQuestion(f"{option} {words} names an empty target: write it as {option} 16,q_proj,v_proj")
    return Adaptation(int(rank), tuple(targets), qlora is not None)


def check(
    wanted: Adaptation, shape: PreTrainedConfig, architecture: str, written: Configuration
) -> list[str]:
    """Try it on a model without memory.

    Args:
        written: DeepSpeed's configuration.

    Returns:
        Names of the layers that get adapters.

    Raises:
        BadQuestion: peft is not installed, has no targets for such a model or does not find those that were
            named; patterns fit no parameter or leave none; or it does not go together with DeepSpeed's
            configuration.
    """
    import torch

    if wanted == EVERYTHING:
        return []
    if wanted.rank:
        need("peft", "LoRA")
    _check_configuration(wanted, architecture, written)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = build_transformers(shape, architecture=architecture)
    except Exception as error:
        raise BadQuestion(f"transformers cannot build the model: {error}") from error
    freeze(model, wanted.frozen)
    if not wanted.rank:
        return []
    _check_targets(model, wanted)
    try:
        found = with_lora(model, wanted, architecture, low_cpu_mem_usage=True)
    except ValueError as error:
        named = ", ".join(wanted.targets) or f"that it has for {shape.model_type}: name some"
        words = shorten(str(error), 200, placeholder=" ...")
        raise BadQuestion(f"peft refuses the targets {named}: {words}") from error
    return sorted(found.peft_config["default"].target_modules)


def _check_configuration(wanted, architecture, written):
    """Stage 3 asserts that what is trained has one type; peft makes adapters in fp32, and copies a head as it
    is."""
    if wanted.in_four_bits and "offload_param" in written.offload:
        raise BadQuestion("--qlora with offload_param is not rehearsed: leave one of them out")
    has_head = wanted.rank and task(architecture) not in (None, "CAUSAL_LM")
    if has_head and written.stage == 3 and written.dtype != "fp32" and not wanted.in_four_bits:
        both = f"its head in {written.dtype} beside adapters in fp32"
        raise BadQuestion(
            f"peft trains of {architecture} {both}, and stage 3 fails with both: ask for stage 2"
        )


def _check_targets(model, wanted):
    """peft leaves out, silently, a target that fits no layer where another one fits."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS
    from torch import nn

    names = [name for name, _ in model.named_modules()]
    linear = {
        name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)
    }
    some = f"name some, as {', '.join(sorted(linear)[:4])}, or {ALL_LINEAR}"
    if not wanted.targets and model.config.model_type not in DEFAULTS:
        raise BadQuestion(f"peft knows no layers for LoRA in {model.config.model_type}: {some}")
    for target in wanted.targets:
        if wanted.targets != (ALL_LINEAR,) and not any(f".{name}".endswith(f".{target}") for name in names):
            raise BadQuestion(f"no layer of {type(model).__name__} is called {target}: {some}")


def notes(
    wanted: Adaptation, layers: Sequence[str], stage: int, dtype: str, checkpointing: bool
) -> Iterator[str]:
    """What is assumed of the user's script.

    Args:
        layers: names of those that get adapters.
        dtype: of the training.
    """
    if not wanted.rank:
        return
    beside = shorten(", ".join(layers), 38, placeholder=" ...")
    yield f"LoRA of rank {wanted.rank} by peft beside {beside}, with its default of no dropout"
    if dtype != "fp32":
        stays = stage == 3 and not wanted.in_four_bits
        then = "stage 3 leaves them so" if stays else f"DeepSpeed casts them to {dtype} as it begins"
        yield f"peft makes adapters in fp32, and {then}"
    if wanted.in_four_bits:
        yield f"QLoRA: NF4 in blocks of 64 with double quantisation, loaded whole and computed in {dtype}"
        yield "a stand-in for bitsandbytes allocates what its Linear4bit does; it has no numbers"
        if stage == 3:
            yield "bitsandbytes holds each gathered weight until its backward pass: stage 3 saves little"
        if not checkpointing:
            yield "prepare_model_for_kbit_training checkpoints the blocks, --checkpointing here"
