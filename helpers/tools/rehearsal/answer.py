"""What the command says: a table of a few ranks, whether the training fits, and what to change where it does
not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.tools.rehearsal.question import Question

CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
PHASES = {
    "building": "building, initialising",
    "forward": "forward",
    "backward": "backward",
    "step": "optimizer's step",
}
# Bytes that two H200 gave to one rank beside its tensors (the driver, kernels, NCCL, workspaces):
# recorded/zero-2-NVIDIA-H200.json, stage 0.
OUTSIDE = 2_270_000_000
MORE_PARTS = (lambda question: question.stage < 3, '"zero_optimization": {{"stage": 3}}')
MORE_RANKS = (lambda question: True, "more ranks")
ADVICE = {  # what fills the highest moment: [(whether it can still be done, what to do)]
    "activations": [
        (lambda question: not question.checkpointing, "checkpoint the blocks (--checkpointing)"),
        (lambda question: question.micro_batch > 1, '"train_micro_batch_size_per_gpu": {half}'),
        (lambda question: True, "shorter or shared sequences, or a loss over parts of the tokens"),
    ],
    "optimizer states": [
        (lambda question: question.stage == 0, '"zero_optimization": {{"stage": 1}}'),
        (
            lambda question: not question.is_offloaded,
            '"offload_optimizer": {{"device": "cpu"}}, or more ranks',
        ),
        (lambda question: True, "more ranks"),
    ],
    "gradients": [
        (lambda question: question.stage < 2, '"zero_optimization": {{"stage": 2}}'),
        MORE_PARTS,
        MORE_RANKS,
    ],
    "parameters": [MORE_PARTS, MORE_RANKS],
    "gathered parameters": [
        (lambda question: True, 'a smaller "stage3_max_live_parameters" and "stage3_prefetch_bucket_size"')
    ],
    "buffers": [(lambda question: True, 'a smaller "reduce_bucket_size"')],
    "temporary while passing": [
        (lambda question: question.micro_batch > 1, '"train_micro_batch_size_per_gpu": {half}'),
        (
            lambda question: True,
            'a loss over parts of the tokens, shorter sequences, or a smaller "reduce_bucket_size"',
        ),
    ],
    "temporary while stepping": [
        (lambda question: question.stage == 0, '"zero_optimization": {{"stage": 1}}'),
        (
            lambda question: question.stage < 3,
            '"zero_optimization": {{"stage": 3}}, whose step takes a part of the parameters at a time',
        ),
        (lambda question: True, 'a smaller "sub_group_size"'),
    ],
}
ADVICE["master weights"] = ADVICE["optimizer states"]


@dataclass(frozen=True)
class Verdict:
    """Whether a training fits.

    Attributes:
        needed: bytes of a GPU, of the rank that needs most.
        memory: bytes that a GPU has, or None where nothing was said.
        rank, phase: where most is needed.
    """

    needed: int
    memory: int | None
    rank: int
    phase: str

    @property
    def fits(self) -> bool:
        return self.memory is None or self.needed <= self.memory

    def __str__(self):
        most = f"rank {self.rank} needs most, {gigabytes(self.needed)} GB, in {PHASES[self.phase]}"
        if self.memory is None:
            return most
        left = self.memory - self.needed
        words = (
            f"fits, with {gigabytes(left)} GB to spare"
            if self.fits
            else f"does not fit: {gigabytes(-left)} GB too much"
        )
        return f"{words} of {gigabytes(self.memory)} GB ({most})"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def verdict(reports: Mapping[int, dict], memory: int | None, outside: int = OUTSIDE) -> Verdict:
    """The `Verdict` over {rank: what `fitting.two_steps` returned}."""
    heights = {
        (rank, phase): sum(held.values())
        for rank, report in reports.items()
        for phase, held in report["peaks"].items()
    }
    rank, phase = max(heights, key=heights.get)
    return Verdict(heights[rank, phase] + outside, memory, rank, phase)


def advice(question: Question, reports: Mapping[int, dict], found: Verdict) -> str:
    """A sentence: what fills the highest moment, and the first thing to change that has not been done yet."""
    held = causes(reports[found.rank], found.phase)
    cause = max(held, key=held.get)
    change = next(words for possible, words in ADVICE[cause] if possible(question)).format(
        half=question.micro_batch // 2
    )
    return f"most of it, {gigabytes(held[cause])} GB, is {cause}: try {change}"


def causes(report: dict, phase: str) -> dict[str, int]:
    """{what fills a phase's highest moment: bytes}: its categories, and what they mean there."""
    held = dict(report["peaks"][phase])
    held["temporary while passing" if phase in ("forward", "backward") else "temporary while stepping"] = (
        held.pop("other", 0)
    )
    own = report["states"]["parameters"]
    if held.get("parameters", 0) > 2 * own:
        held["gathered parameters"] = held.pop("parameters") - own
    return held


def table(question: Question, reports: Mapping[int, dict], outside: int = OUTSIDE) -> list[str]:
    """The lines of the table: a column for each rank, GB of 10^9 bytes."""
    rows = [("GB", *(f"rank {rank}" for rank in reports)), ("states between micro-batches",)]
    rows += [
        (f"  {category}", *(gigabytes(report["states"][category]) for report in reports.values()))
        for category in CATEGORIES
    ]
    rows.append(("highest moment in",))
    for phase, name in PHASES.items():
        held = [report["peaks"][phase] for report in reports.values()]
        rows.append((f"  {name}", *(gigabytes(sum(parts.values())) for parts in held)))
        for category in visible(held):
            rows.append((f"    {category}", *(gigabytes(parts.get(category, 0)) for parts in held)))
    rows.append(("outside of tensors, as on two H200", *(gigabytes(outside) for _ in reports)))
    if question.is_offloaded:
        rows.append(
            (
                "the host's memory at most, of this rank",
                *(gigabytes(sum(report["host"].values())) for report in reports.values()),
            )
        )
    rows.append((f"to be sent in a step, accumulation {question.accumulation}",))
    for operation in sorted({operation for report in reports.values() for operation in report["sent"]}):
        rows.append(
            (f"  {operation}", *(gigabytes(report["sent"].get(operation, 0)) for report in reports.values()))
        )
    wide = max(len(row[0]) for row in rows)
    return [f"{row[0]:<{wide}}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows]


def visible(held: Sequence[dict[str, int]]) -> list[str]:
    """The categories that are a fiftieth or more of some rank's bytes, the largest first."""
    most = {
        category: max(parts.get(category, 0) / sum(parts.values()) for parts in held)
        for category in set().union(*held)
    }
    return sorted(
        (category for category in most if most[category] > 0.02),
        key=lambda category: (-most[category], category),
    )
