"""How the ranks of a training are divided: by data alone, or also by matrices (DeepSpeed's AutoTP) or experts
(its AutoEP)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from . import autoep, autotp
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
    """

    data: int
    tensor: int = 1
    experts: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.tensor

    @property
    def divides(self) -> bool:
        """Whether a rank has a part of the model, before ZeRO."""
        return self.tensor > 1 or self.experts > 1

    def __str__(self):
        words = f"{self.ranks:,} ranks"
        if self.divides:
            words += f" = {self.data:,} data"
        if self.tensor > 1:
            words += f" × {self.tensor:,} tensor"
        return f"{words}, experts divided over {self.experts:,}" if self.experts > 1 else words

    def along(self, message: Message) -> str:
        """The axis along which a message passes."""
        group = message.group
        if self.experts > 1:
            if message.operation.startswith("all_to_all"):
                return "experts"
            return "data" if len(group) == self.ranks else "data of an expert"
        if len(group) == self.ranks and 1 < self.tensor < self.ranks:
            return "all ranks"
        is_within = self.tensor > 1 and max(group) // self.tensor == min(group) // self.tensor
        return "tensor" if is_within else "data"

    def ideal(self, traffic: Traffic) -> dict[str, float]:
        """`Traffic.ideal`; with several axes the operations say along which, as "all_reduce, tensor"."""
        if not self.divides:
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
        replicas = most_different(sizes, stage, self.data, in_turn)
        is_even = all(part in (size, size / self.tensor) for part, size in zip(sizes, report["whole"]))
        within = {0} if is_even else {0, self.tensor - 1}
        return sorted(replica * self.tensor + place for replica in replicas for place in within)


def divide(known: Configuration, ranks: int, name: str, shape: PreTrainedConfig) -> Axes:
    """What DeepSpeed's configuration makes of so many ranks.

    Args:
        name: of transformers' class.

    Raises:
        BadQuestion: the ranks cannot be divided so, or DeepSpeed does not divide this model.
    """
    has_tensor = known.deepspeed.tensor_parallel_config.autotp_size > 1
    has_experts = known.deepspeed.expert_parallel_config.enabled
    if has_tensor and has_experts:
        both = f"{autotp.SECTION} and {autoep.SECTION}"
        raise BadQuestion(f"{both} together are not rehearsed: ask with one of them")
    if has_tensor:
        tensor = autotp.check(known, ranks, name, shape)
        return Axes(ranks // tensor, tensor=tensor)
    return Axes(ranks, experts=autoep.check(known, ranks, name, shape) if has_experts else 1)


def sections(known: Configuration) -> dict[str, object]:
    """The sections of DeepSpeed's configuration that divide the ranks."""
    used = {
        autotp.SECTION: known.deepspeed.tensor_parallel_config.autotp_size > 1,
        autoep.SECTION: known.deepspeed.expert_parallel_config.enabled,
    }
    return {name: known.config[name] for name in used if used[name]}


def notes(written: Configuration, known: Configuration, axes: Axes) -> Iterator[str]:
    """What DeepSpeed counts otherwise than people do, and what is assumed."""
    if axes.tensor > 1 and written.train_batch:
        real = known.micro_batch * known.accumulation * axes.data
        yield (
            f"DeepSpeed counts all {axes.ranks:,} ranks in train_batch_size {written.train_batch:,}: a step "
            f"has {real:,} different sequences"
        )
    if known.deepspeed.expert_parallel_config.enabled:
        yield "every expert is assumed to get as many tokens as any other; a rank with more needs more"
