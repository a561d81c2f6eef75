"""How the ranks of a training are divided: by data alone, or also by matrices (DeepSpeed's AutoTP), experts
(its AutoEP) or sequences (its Ulysses)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from . import autoep, autotp, ulysses
from .refusing import BadQuestion
from .spread import held, most_different

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..measure.operations import Message
    from ..measure.traffic import Traffic
    from ..theory.deepspeed_config import Configuration


@dataclass(frozen=True)
class Axes:
    """Degrees whose product is the number of ranks, but for that of the experts.

    Attributes:
        data: ranks that differ in their data; ZeRO partitions over them.
        tensor: consecutive ranks that share every matrix and have the same data.
        experts: consecutive ranks of the data axis over which the experts are divided.
        sequence: consecutive ranks that share every sequence; ZeRO partitions over them, too.
    """

    data: int
    tensor: int = 1
    experts: int = 1
    sequence: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.sequence

    @property
    def has_others(self) -> bool:
        """Whether there is another axis than data."""
        return self.divides or self.sequence > 1

    @property
    def divides(self) -> bool:
        """Whether a rank has a part of the model, before ZeRO."""
        return self.tensor > 1 or self.experts > 1

    def __str__(self):
        words = f"{self.ranks:,} ranks"
        if self.has_others:
            words += f" = {self.data:,} data"
        for name in ("tensor", "sequence"):
            if getattr(self, name) > 1:
                words += f" × {getattr(self, name):,} {name}"
        return f"{words}, experts divided over {self.experts:,}" if self.experts > 1 else words

    def along(self, message: Message) -> str:
        """The axis along which a message passes."""
        group = message.group
        if self.experts > 1:
            if message.operation.startswith("all_to_all"):
                return "experts"
            return "data" if len(group) == self.ranks else "data of an expert"
        name, size = ("sequence", self.sequence) if self.sequence > 1 else ("tensor", self.tensor)
        if len(group) == self.ranks and 1 < size < self.ranks:
            return "all ranks"
        return name if max(group) // size == min(group) // size else "data"

    def ideal(self, traffic: Traffic) -> dict[str, float]:
        """`Traffic.ideal`; with several axes the operations say along which, as "all_reduce, tensor"."""
        if not self.has_others:
            return traffic.ideal
        sent = Counter()
        for message in traffic.messages:
            if message.ideal:
                sent[f"{message.operation}, {self.along(message)}"] += message.ideal
        return dict(sent)

    def most_different(self, report: Mapping, stage: int, in_turn: bool = False) -> list[int]:
        """The first rank, and those that hold most and least, by the arithmetic of ZeRO's partitions.

        AutoTP gives what cannot be divided evenly to the first of the ranks that share a matrix: then the
        last of them are looked at, too.

        Args:
            report: what the first rank's rehearsal returned.
        """
        sizes, experts = report["sizes"], report["expert_sizes"]
        if self.experts > 1 and stage:
            every = held(sizes, stage, self.data, in_turn)
            replicas = held(experts, stage, self.data // self.experts, in_turn)
            every = every + numpy.repeat(replicas, self.experts)
            return sorted({0, int(every.argmax()), int(every.argmin())})
        replicas = most_different(sizes, stage, self.data * self.sequence, in_turn)
        is_even = all(part in (size, size / self.tensor) for part, size in zip(sizes, report["whole"]))
        within = {0} if is_even else {0, self.tensor - 1}
        return sorted(replica * self.tensor + place for replica in replicas for place in within)


def used(known: Configuration) -> list[str]:
    """The sections of DeepSpeed's configuration that divide the ranks."""
    are_used = {
        autotp.SECTION: known.deepspeed.tensor_parallel_config.autotp_size > 1,
        autoep.SECTION: known.deepspeed.expert_parallel_config.enabled,
        ulysses.SECTION: known.config.get(ulysses.SECTION, 1) > 1,
    }
    return [name for name in are_used if are_used[name]]


def divide(
    known: Configuration, ranks: int, name: str, shape: PreTrainedConfig, sequence: int, labels: str
) -> Axes:
    """What DeepSpeed's configuration makes of so many ranks.

    Args:
        name: of transformers' class.
        sequence: tokens.
        labels: what they are, in `architectures.LABELS`.

    Raises:
        BadQuestion: the ranks cannot be divided so, or DeepSpeed does not divide this model.
    """
    sections = used(known)
    if len(sections) > 1:
        raise BadQuestion(f"{' and '.join(sections)} together are not rehearsed: ask with one of them")
    if autotp.SECTION in sections:
        tensor = autotp.check(known, ranks, name, shape)
        return Axes(ranks // tensor, tensor=tensor)
    if ulysses.SECTION in sections:
        parts = ulysses.check(known, ranks, name, shape, sequence, labels)
        return Axes(ranks // parts, sequence=parts)
    return Axes(ranks, experts=autoep.check(known, ranks, name, shape) if sections else 1)


def notes(written: Configuration, known: Configuration, axes: Axes) -> Iterator[str]:
    """What DeepSpeed counts otherwise than people do, and what is assumed."""
    if axes.tensor > 1 and written.train_batch:
        real = known.micro_batch * known.accumulation * axes.data
        yield (
            f"DeepSpeed counts all {axes.ranks:,} ranks in train_batch_size {written.train_batch:,}: a step "
            f"has {real:,} different sequences"
        )
    if axes.sequence > 1:
        yield "Ulysses is registered and its loss taken as Accelerate and transformers' Trainer do"
    if known.deepspeed.expert_parallel_config.enabled:
        yield "every expert is assumed to get as many tokens as any other; a rank with more needs more"
