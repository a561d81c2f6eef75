"""A recorded hang of two ranks under NCCL, beside a healthy run of the same script."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median

from helpers.paths import ROOT

FILE = ROOT / "recorded/hang/2-NVIDIA-H100-80GB-HBM3.json"
SETTLED = 3.0  # seconds after which a GPU looks as it will look on
FIELDS = 5  # of each GPU at each look: index, utilisation in %, power in W, MHz, MiB


@dataclass(frozen=True)
class Hang:
    """What was recorded.

    Attributes:
        stacks: of each rank, the lines that it wrote when it was asked, innermost first.
        reading: what `torchfrtrace` says of the first collective that is not complete, in both flight
            recorders' files: which it is, who is missing, and the line that called it.
        gpus: [(seconds since rank 1 left the all-reduce out, [(utilisation in %, power in W) of each GPU])].
        healthy: the middle utilisation and power of the GPUs of a run that does not hang.
    """

    stacks: list[list[str]]
    reading: list[str]
    gpus: list[tuple[float, list[tuple[float, float]]]]
    healthy: tuple[float, float]

    def utilisation(self, rank: int) -> float:
        """Of a rank's GPU in the hang, in %: the middle one."""
        return self.later(rank, 0)

    def power(self, rank: int) -> float:
        """The same in W."""
        return self.later(rank, 1)

    def later(self, rank: int, which: int) -> float:
        return median(gpus[rank][which] for seconds, gpus in self.gpus if seconds > SETTLED)


def hang() -> Hang:
    runs = json.loads(FILE.read_text())["runs"]
    gone, healthy = runs["gone"], runs["healthy"]
    gpus = [(look[0] - gone["hung"], of_each(look)) for look in gone["gpus"]]
    busy = [gpu for look in healthy["gpus"] for gpu in of_each(look) if gpu[0] > 50]  # after its start
    middle = median(share for share, _ in busy), median(power for _, power in busy)
    stacks = [[line.strip() for line in stack if "hang.py" in line] for stack in gone["stacks"]]
    said = [line.strip() for line in gone["reading"]]
    called = next(line for line in said if "hang.py" in line)
    reading = [line for line in said[:8] if line.startswith(("Not all", "collective", "missing"))]
    return Hang(stacks, [*reading, called], gpus, middle)


def of_each(look: list[float]) -> list[tuple[float, float]]:
    """(utilisation, power) of each GPU."""
    return [(look[at + 1], look[at + 2]) for at in range(1, len(look), FIELDS)]
