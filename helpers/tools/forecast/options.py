"""What the command's options say, read in one place."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..rehearsal import adaptations
from ..rehearsal.adaptations import EVERYTHING, Adaptation
from ..rehearsal.cards import card
from ..rehearsal.refusing import BadQuestion
from ..rehearsal.reserving import OUTSIDE
from .pace import Terms
from .units import size


@dataclass(frozen=True)
class Options:
    """What the options say; None where one says nothing.

    Attributes:
        model, deepspeed, accelerate, training_arguments: paths of files, of the model's also a folder.
        ranks, sequence, micro_batch, checkpointing, gpus_per_host: they count more than what files say.
        memory: bytes of a GPU.
        outside: of these, bytes that torch's allocator never sees.
        host_memory: bytes of a machine's own memory.
        terms: what is asked about time.
        adaptation: which part of the model is trained.
        only_rank: the only one to be rehearsed.
        json: whether the answer is data for programs.
        figure: path of a picture to be drawn.
    """

    model: str
    deepspeed: str | None = None
    accelerate: str | None = None
    training_arguments: str | None = None
    ranks: int | None = None
    sequence: int | None = None
    micro_batch: int | None = None
    checkpointing: bool | None = None
    gpus_per_host: int | None = None
    memory: int | None = None
    outside: int = OUTSIDE
    host_memory: int | None = None
    terms: Terms = Terms()
    adaptation: Adaptation = EVERYTHING
    only_rank: int | None = None
    json: bool = False
    figure: str | None = None


def read(words: argparse.Namespace) -> Options:
    """The `Options` from what argparse made of the command line.

    Raises:
        BadQuestion: an option cannot be read, or two of them do not go together.
    """
    return Options(
        model=words.model,
        deepspeed=words.deepspeed,
        accelerate=words.accelerate,
        training_arguments=words.training_arguments,
        ranks=words.ranks,
        sequence=words.sequence,
        micro_batch=words.micro_batch,
        checkpointing=words.checkpointing,
        gpus_per_host=words.gpus_per_host,
        memory=_memory(words.gpu, words.gpu_memory),
        outside=size(words.outside_tensors) if words.outside_tensors else OUTSIDE,
        host_memory=size(words.host_memory) if words.host_memory else None,
        terms=Terms.of(words.gpu, words.tokens, words.price, words.host_network),
        adaptation=adaptations.read(words.lora, words.qlora, words.frozen),
        only_rank=words.only_rank,
        json=words.json,
        figure=words.figure,
    )


def _memory(gpu, gpu_memory):
    """Bytes of a GPU that is named, or described by its memory."""
    if gpu and gpu_memory:
        raise BadQuestion("--gpu and --gpu-memory say the same in two ways: give one of them")
    if gpu:
        return card(gpu).memory
    return size(gpu_memory) if gpu_memory else None
