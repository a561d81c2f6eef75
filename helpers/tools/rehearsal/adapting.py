"""Models of which a part is frozen: LoRA and QLoRA by peft, and parameters by their names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING

from .of_transformers import build_transformers
from .refusing import BadQuestion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from .question import Question

TASKS = {  # transformers' lists of classes: what peft calls the task
    "CAUSAL_LM": "CAUSAL_LM",
    "TOKEN_CLASSIFICATION": "TOKEN_CLS",
    "SEQUENCE_CLASSIFICATION": "SEQ_CLS",
    "QUESTION_ANSWERING": "QUESTION_ANS",
}
FOUR_BITS = "4 bits"
ALL_LINEAR = "all-linear"  # peft's name for every linear layer but the last


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


def task(architecture: str) -> str | None:
    """What peft calls the task of transformers' class; None where it has no name for it."""
    from transformers.models.auto import modeling_auto as auto

    for listed, name in TASKS.items():
        if architecture in getattr(auto, f"MODEL_FOR_{listed}_MAPPING_NAMES").values():
            return name
    return None


def check(
    wanted: Adaptation, shape: PreTrainedConfig, architecture: str, offload: dict[str, str]
) -> list[str]:
    """Try it on a model without memory.

    Args:
        offload: {a section of DeepSpeed's configuration: where it puts what}.

    Returns:
        Names of the layers that get adapters.

    Raises:
        BadQuestion: peft has no targets for such a model or does not find those that were named; patterns fit
            no parameter or leave none; or it does not go together with what is offloaded.
    """
    import torch

    if wanted == EVERYTHING:
        return []
    if wanted.in_four_bits and "offload_param" in offload:
        raise BadQuestion("--qlora with offload_param is not rehearsed: leave one of them out")
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
        words = shorten(str(error), 200, placeholder=" ...")
        raise BadQuestion(f"peft refuses the targets {', '.join(wanted.targets)}: {words}") from error
    return sorted(found.peft_config["default"].target_modules)


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
    beside = shorten(", ".join(layers), 50, placeholder=" ...")
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


def built(question: Question, shape: PreTrainedConfig, config: dict | None) -> PreTrainedModel:
    """The question's model, with what is frozen by name, or loaded in four bits.

    Args:
        config: DeepSpeed's, where its stage 3 partitions a model as it is built; one in four bits it does
            not, since transformers loads that whole.
    """
    import torch
    from deepspeed.accelerator import get_accelerator

    build = partial(build_transformers, shape, architecture=question.architecture)
    if question.adaptation.in_four_bits:
        from .four_bits import loaded

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(question.dtype, torch.float32)
        shape.dtype = dtype
        return loaded(build, get_accelerator().current_device_name(), dtype)
    model = build(config=config)
    freeze(model, question.adaptation.frozen)
    return model


def adapted(model: PreTrainedModel, question: Question) -> nn.Module:
    """The model with adapters, as a script makes it after it was built and before `deepspeed.initialize`;
    the model itself where none are wanted."""
    wanted = question.adaptation
    if wanted.in_four_bits:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return with_lora(model, wanted, question.architecture) if wanted.rank else model


def with_lora(model: PreTrainedModel, wanted: Adaptation, architecture: str, **options: object) -> nn.Module:
    """The model, frozen, with adapters by peft.

    Args:
        options: of peft's `get_peft_model`.

    Raises:
        ValueError: peft has no targets for such a model, or does not find those that were named.
    """
    from peft import LoraConfig, get_peft_model

    targets = list(wanted.targets) or None
    targets = ALL_LINEAR if targets == [ALL_LINEAR] else targets
    config = LoraConfig(r=wanted.rank, target_modules=targets, task_type=task(architecture))
    with _quiet():
        return get_peft_model(model, config, **options)


@contextmanager
def _quiet():
    """peft asks transformers by names that will change, and tells what it corrects itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every parameter whose name fits a pattern as a shell's, in whole or in consecutive parts:
    "embed_tokens", "layers.[0-3]" and "*norm*" fit.

    Raises:
        BadQuestion: a pattern fits none, or none is left to be trained.
    """
    fitting = Counter()
    for name, parameter in model.named_parameters():
        for pattern in patterns:
            if fnmatchcase(f".{name}.", f"*.{pattern}.*"):
                parameter.requires_grad_(False)
                fitting[pattern] += 1
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fitting[pattern]:
            some = ", ".join(dict.fromkeys((names[0], names[len(names) // 2], names[-1])))
            raise BadQuestion(f"--frozen {pattern} fits no parameter; their names are as {some}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadQuestion(f"--frozen {','.join(patterns)} fits every parameter: nothing is left to train")


def counted(model: nn.Module, short: dict[str, str]) -> dict[str, dict[str, int]]:
    """{"frozen" or "trained": {dtype, or "4 bits": elements}}.

    Args:
        short: names for torch's of a dtype.
    """
    found = {"frozen": Counter(), "trained": Counter()}
    for parameter in model.parameters():
        kept = getattr(parameter, "quant_state", None)
        elements = getattr(parameter, "ds_numel", parameter.numel())
        if kept is not None:
            elements = kept.shape[0] * kept.shape[1]
        dtype = str(parameter.dtype) if kept is None else FOUR_BITS
        dtype = short.get(dtype, dtype)
        found["trained" if parameter.requires_grad else "frozen"][dtype] += elements
    return {kind: dict(elements) for kind, elements in found.items()}


def described(kinds: dict[str, dict[str, int]]) -> str:
    """In words what `counted` found; where a part is frozen, they are a line of their own."""

    def listed(kind, words):
        (dtype, count), *others = kinds[kind].items()
        first = f"{count:,} {words} in {dtype}"
        return " and ".join([first, *(f"{count:,} in {dtype}" for dtype, count in others)])

    if not kinds["frozen"]:
        return f"{listed('trained', 'parameters')}, "
    return f"{listed('trained', 'trained parameters')}, {listed('frozen', 'frozen')},\n"
