"""Recorded hangs of two ranks under NCCL, beside a healthy run of the same script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import fill

from helpers.paths import ROOT

FILE = ROOT / "recorded/hang/2-NVIDIA-H200.json"
SETTLED, SHOWN = 3.0, 30.0  # seconds after which a GPU looks as it will look on, and that a figure shows
FIELDS = 5  # of each GPU at each look: index, utilisation in %, power in W, MHz, MiB
Line = tuple[Sequence[float], Sequence[float]]  # xs, ys


@dataclass(frozen=True)
class Hang:
    """What was recorded.

    Attributes:
        output: of each rank, the lines that it printed.
        stood: of each rank, the line at which Python stood when it was asked.
        waiting: of each rank, what its flight recorder says of the collectives that had not ended, in the
            order in which it entered them.
        reading: what `torchfrtrace` says of the first collective that is not complete, in both flight
            recorders' files: which it is, who is missing, and the line that called it.
        gpus: [(seconds since rank 1 left the others' way, [(utilisation in %, power in W) of each GPU])].
        healthy: the middle utilisation and power of the GPUs of a run that does not hang.
    """

    output: list[list[str]]
    stood: list[str]
    waiting: list[list[str]]
    reading: list[str]
    gpus: list[tuple[float, list[tuple[float, float]]]]
    healthy: tuple[float, float]

    def power(self, rank: int) -> float:
        """Of a rank's GPU in the hang, in W: the middle one."""
        return median(gpus[rank][1] for seconds, gpus in self.gpus if seconds > SETTLED)

    def watchdog(self, rank: int) -> str:
        """What torch's watchdog wrote on a rank when it gave up, in lines; "" where it gave up nothing."""
        found = (line for line in self.output[rank] if "Watchdog caught" in line)
        return fill(next(found, "").partition("] [Rank ")[2].partition("] ")[2], 90, subsequent_indent="  ")

    def panels(self, name: str) -> dict[str, dict[str, Line]]:
        """Utilisation and power of both GPUs over time, as `plots.in_panels` takes them."""
        at, looks = zip(*(look for look in self.gpus if look[0] < SHOWN))
        shown = {}
        for which, what in enumerate(("utilisation, %", "power, W")):
            lines = {f"rank {rank}'s GPU": (at, [gpus[rank][which] for gpus in looks]) for rank in range(2)}
            healthy = {"a healthy run": ((at[0], at[-1]), [self.healthy[which]] * 2)}
            shown[f"{name}: {what}"] = lines | healthy
        return shown


def hang(variant: str) -> Hang:
    """Rank 1 is "gone", has "crossed" two groups, or goes on to the "next" collective."""
    runs = json.loads(FILE.read_text())["runs"]
    hung = runs[variant]
    gpus = [(look[0] - hung["hung"], of_each(look)) for look in hung["gpus"]]
    of_healthy = [gpu for look in runs["healthy"]["gpus"] for gpu in of_each(look)]
    busy = [gpu for gpu in of_healthy if gpu[0] > 50]  # after its start
    middle = median(share for share, _ in busy), median(power for _, power in busy)
    stood = [next(line for line in stack if "hang.py" in line).split(", ")[1] for stack in hung["stacks"]]
    waiting = [list(not_ended(entries)) for entries in hung["flight recorder"]]
    said = [line.strip() for line in hung["reading"]]
    called = [line for line in said if "hang.py" in line][:1]
    reading = [line for line in said[:8] if line.startswith(("Not all", "collective", "missing"))]
    return Hang(hung["output"], stood, waiting, [*reading, *called], gpus, middle)


def not_ended(entries: list[dict]) -> Iterator[str]:
    """Of a flight recorder's entries, in words."""
    for entry in entries:
        if entry["state"] != "completed":
            (size,) = entry["input_sizes"][0]
            line = next(frame for frame in entry["frames"] if frame.startswith("hang.py")).split()[0]
            yield f"number {entry['collective_seq_id']} of its group, {size:,} elements, called at {line}"


def of_each(look: list[float]) -> list[tuple[float, float]]:
    """(utilisation, power) of each GPU."""
    return [(look[at + 1], look[at + 2]) for at in range(1, len(look), FIELDS)]
