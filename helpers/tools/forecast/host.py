"""Whether a training fits a machine's own memory: its ranks' tensors there, and their processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .units import gigabytes

# Bytes of the host that a rank's process holds beside its tensors. On two H200, with torch 2.11, 1.23 GB were
# measured (the kernel's "Pss") after transformers, CUDA and NCCL had begun; DeepSpeed comes on top.
PROCESS = 1_500_000_000


@dataclass(frozen=True)
class Host:
    """What a machine needs.

    Attributes:
        ranks: on it.
        tensors: bytes of the host's memory that tensors of a rank take at most.
        memory: bytes that the machine has, None where nothing was said.
    """

    ranks: int
    tensors: int
    memory: int | None

    @classmethod
    def of(cls, reports: Mapping[int, Mapping], ranks: int, memory: int | None) -> Host:
        """Over {rank: what `fitting.two_steps` returned}, on a machine of so many ranks."""
        return cls(ranks, max(sum(report["host"].values()) for report in reports.values()), memory)

    @property
    def needed(self) -> int:
        """Bytes of the machine, if all ranks are at their highest moment at once, as while they build."""
        return self.ranks * (self.tensors + PROCESS)

    @property
    def fits(self) -> bool:
        return self.memory is None or self.needed <= self.memory

    def as_data(self) -> dict:
        """Plain data; all sizes are bytes."""
        return {"memory": self.memory, "needed": self.needed, "ranks": self.ranks, "tensors": self.tensors}

    def __str__(self):
        each = f"{self.ranks} ranks of {gigabytes(self.tensors)} GB and {gigabytes(PROCESS)} GB of their own"
        needs = f"a machine needs {gigabytes(self.needed)} GB of its own memory"
        if self.memory is None:
            return f"{needs}: {each}"
        off = f"{gigabytes(abs(self.memory - self.needed))} GB"
        if self.fits:
            return f"the machine's own memory suffices, with {off} to spare ({each})"
        most = self.memory // (self.tensors + PROCESS)
        return f"the machine's own memory does not suffice: {off} too little ({each}); {most} ranks would fit"
