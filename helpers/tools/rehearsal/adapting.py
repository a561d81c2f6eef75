"""Models of which a part is frozen: made with adapters by peft or in four bits, as scripts make them, and
counted."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from .of_transformers import build_transformers
from .refusing import BadQuestion

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from .adaptations import Adaptation
    from .question import Question

TASKS = {  # transformers' lists of classes: what peft calls the task
    "CAUSAL_LM": "CAUSAL_LM",
    "TOKEN_CLASSIFICATION": "TOKEN_CLS",
    "SEQUENCE_CLASSIFICATION": "SEQ_CLS",
    "QUESTION_ANSWERING": "QUESTION_ANS",
}
FOUR_BITS = "4 bits"
ALL_LINEAR = "all-linear"  # peft's name for every linear layer but the last


def task(architecture: str) -> str | None:
    """What peft calls the task of transformers' class; None where it has no name for it."""
    from transformers.models.auto import modeling_auto as auto

    for listed, name in TASKS.items():
        if architecture in getattr(auto, f"MODEL_FOR_{listed}_MAPPING_NAMES").values():
            return name
    return None


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
