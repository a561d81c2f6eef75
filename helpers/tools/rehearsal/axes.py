"""How the ranks of a training are divided: by data alone, or also by matrices (DeepSpeed's AutoTP)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .refusing import BadQuestion
from .spread import most_different

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..measure.traffic import Traffic
    from ..theory.deepspeed_config import Configuration

AUTOTP = "tensor_parallel"  # the section of DeepSpeed's configuration


@dataclass(frozen=True)
class Axes:
    """Degrees whose product is the number of ranks.

    Attributes:
        data: ranks that differ in their data; ZeRO partitions over them.
        tensor: consecutive ranks that share every matrix and have the same data.
    """

    data: int
    tensor: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.tensor

    def __str__(self):
        words = f"{self.ranks:,} ranks"
        return f"{words} = {self.data:,} data × {self.tensor:,} tensor" if self.tensor > 1 else words

    def of_group(self, group: Sequence[int]) -> str:
        """The axis along which a message passes between these ranks."""
        if len(group) == self.ranks and 1 < self.tensor < self.ranks:
            return "all ranks"
        is_within = self.tensor > 1 and max(group) // self.tensor == min(group) // self.tensor
        return "tensor" if is_within else "data"

    def ideal(self, traffic: Traffic) -> dict[str, float]:
        """`Traffic.ideal`; with several axes the operations say along which, as "all_reduce, tensor"."""
        if self.tensor == 1:
            return traffic.ideal
        sent = Counter()
        for message in traffic.messages:
            if message.ideal:
                sent[f"{message.operation}, {self.of_group(message.group)}"] += message.ideal
        return dict(sent)

    def most_different(
        self, sizes: Sequence[int], whole: Sequence[int], stage: int, in_turn: bool = False
    ) -> list[int]:
        """The first rank, and those that hold most and least, as `spread.most_different` finds them along the
        data axis.  AutoTP gives what cannot be divided evenly to the first of the ranks that share a matrix:
        then the last of them are looked at, too.

        Args:
            sizes: elements of each parameter on the first rank, in the optimizer's order.
            whole: the same of all that share it.
        """
        replicas = most_different(sizes, stage, self.data, in_turn)
        is_even = all(part in (size, size / self.tensor) for part, size in zip(sizes, whole))
        within = {0} if is_even else {0, self.tensor - 1}
        return sorted(replica * self.tensor + place for replica in replicas for place in within)


def divide(known: Configuration, ranks: int, name: str, shape: PreTrainedConfig) -> Axes:
    """What DeepSpeed's configuration makes of so many ranks.

    Args:
        name: of transformers' class.

    Raises:
        BadQuestion: the ranks cannot be divided so, or DeepSpeed does not divide this model.
    """
    tensor = known.deepspeed.tensor_parallel_config.autotp_size
    if tensor <= 1:
        return Axes(ranks)
    if ranks % tensor:
        raise BadQuestion(f"{AUTOTP}.autotp_size {tensor} does not divide {ranks:,} ranks")
    check_autotp(known, tensor, name, shape)
    return Axes(ranks // tensor, tensor)


def check_autotp(known: Configuration, tensor: int, name: str, shape: PreTrainedConfig) -> None:
    """Ask DeepSpeed's AutoTP whether it knows how to divide the model, before that is built."""
    import torch
    from deepspeed.module_inject.auto_tp import AutoTP
    from deepspeed.module_inject.tp_plan_converter import TPPlanConverter
    from deepspeed.module_inject.tp_shard import AutoTPMeta
    from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan

    from .of_transformers import build_transformers

    heads = AutoTPMeta.from_model_config(shape).num_kv_heads
    if known.stage == 3 and heads is not None and tensor > heads:
        empty = f"{tensor - heads} of {tensor} ranks would have no part of its {heads} key-value heads"
        raise BadQuestion(f"DeepSpeed's ZeRO-3 fails where AutoTP leaves a rank nothing: {empty}")
    if known.deepspeed.tensor_parallel_config.get_partition_config_object() is not None:
        return
    with torch.device("meta"):
        model = build_transformers(shape, architecture=name)
    try:
        plan = _get_hf_tp_plan(model)
        if not plan or TPPlanConverter.convert(plan) is None:
            AutoTP.tp_parser(model)
    except (AssertionError, ValueError) as error:
        words = " ".join(str(error).split()).rstrip(".")
        raise BadQuestion(f"DeepSpeed's AutoTP does not divide {name}: {words}") from error


def sections(known: Configuration, axes: Axes) -> dict[str, object]:
    """The sections of DeepSpeed's configuration that divide the ranks."""
    return {AUTOTP: known.config[AUTOTP]} if axes.tensor > 1 else {}


def notes(written: Configuration, known: Configuration, axes: Axes) -> Iterator[str]:
    """What DeepSpeed counts otherwise than people do."""
    if axes.tensor > 1 and written.train_batch:
        real = known.micro_batch * known.accumulation * axes.data
        yield (
            f"DeepSpeed counts all {axes.ranks:,} ranks in train_batch_size {written.train_batch:,}: a step "
            f"has {real:,} different sequences"
        )
