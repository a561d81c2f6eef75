"""What comes of a way to train the job: whether it can be, whether it fits, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from helpers.course.job.reference import MEMORY
from helpers.course.play.llama_seconds import TOKENS
from helpers.course.play.llama_step import PARTS, Step

REFUSALS = (
    "",
    f"There is no such step: one micro-batch on every GPU is more than {TOKENS:,} tokens.",
    "DeepSpeed refuses: at stage 0 it does not sum the gradients of a bf16 model in fp32.",
)


@dataclass(frozen=True)
class Outcome:
    """What comes of a `step`; a goal is a function of it."""

    step: Step
    refusal: int  # a place in `REFUSALS`
    moments: list[dict[str, float]]
    seconds: dict[str, float]
    slowest: float

    @classmethod
    @cache
    def of(cls, **ways: object) -> Outcome:
        """Of a `Step`'s arguments; a step that cannot be is shown as one that can, and refused."""
        step = Step(**ways)
        refusal = 2 if step.stage == 0 and step.sums == "fp32" else 0 if step.micro_batches else 1
        shown = Step(**ways | {"sums": "bf16"}) if refusal == 2 else step
        if not step.micro_batches:
            return cls(step, refusal or 1, shown.moments(), dict.fromkeys(PARTS, 0.0), 0.0)
        return cls(step, refusal, shown.moments(), shown.seconds(), shown.slowest())

    @property
    def totals(self) -> list[float]:
        """Bytes at each moment."""
        return [sum(parts.values()) for parts in self.moments]

    @property
    def fastest(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def fits(self) -> bool:
        """Whether the job can run."""
        return not self.refusal and max(self.totals) <= MEMORY
