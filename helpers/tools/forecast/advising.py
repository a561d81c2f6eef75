"""What to change where a training does not fit: the cheapest change that covers what is missing, rehearsed
before it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..rehearsal.question import Question, ask
from ..rehearsal.rehearsing import RehearsalError
from ..rehearsal.reserving import FITS
from ..theory.deepspeed_config import ACCUMULATION, MICRO, TRAIN
from .units import gigabytes
from .verdict import WORST, Verdict

PASSING, STEPPING = ("forward", "backward"), ("step",)
ALL = ("building", *PASSING, *STEPPING)
STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers", "other")
KEPT = ("activations", "other", "parameters")  # parameters: those that ZeRO-3 has gathered
SUB_GROUP, BUCKET = 100_000_000, 50_000_000  # elements
BUCKETS = {  # at each stage: the keys of buckets
    1: ("reduce_bucket_size", "allgather_bucket_size"),
    2: ("reduce_bucket_size", "allgather_bucket_size"),
    3: ("reduce_bucket_size", "stage3_prefetch_bucket_size"),
}
OPTIMIZER = {"offload_optimizer": {"device": "cpu"}}
BOTH = OPTIMIZER | {"offload_param": {"device": "cpu"}}


@dataclass(frozen=True)
class Change:
    """A change of a question.

    Attributes:
        words: what to do.
        phases, categories: of what is held, what it can make smaller.
        zero: keys of "zero_optimization" and their new values.
        more: the other arguments of `question.ask` that change.
    """

    words: str
    phases: Sequence[str]
    categories: Sequence[str]
    zero: dict = field(default_factory=dict)
    more: dict = field(default_factory=dict)

    def of(self, question: Question) -> Question:
        """The changed question; smaller micro-batches are more of them."""
        more = question.arguments | self.more
        config = {key: value for key, value in question.written.items() if key != TRAIN}
        config[MICRO] = more["micro_batch"]
        config[ACCUMULATION] = question.accumulation * question.micro_batch // more["micro_batch"]
        config["zero_optimization"] = config.get("zero_optimization", {}) | self.zero
        return ask(question.model, config, **more)


def changes(question: Question) -> Iterator[Change]:
    """Those that are possible, the cheapest first: buckets, checkpointing, smaller micro-batches, a higher
    stage, offload, more GPUs."""
    zero, stage, size = question.written.get("zero_optimization", {}), question.stage, question.micro_batch
    if stage == 3 and zero.get("sub_group_size", 10**9) > SUB_GROUP:
        yield Change(f'"sub_group_size": {SUB_GROUP}', STEPPING, ("other",), {"sub_group_size": SUB_GROUP})
    if large := {name: BUCKET for name in BUCKETS.get(stage, ()) if zero.get(name, 5 * 10**8) > BUCKET}:
        words = ", ".join(f'"{name}": {BUCKET}' for name in large)
        yield Change(words, ALL, ("buffers", "other", "parameters"), large)
    if not question.checkpointing:
        yield Change("checkpoint the blocks (--checkpointing)", PASSING, KEPT, more={"checkpointing": True})
    while size % 2 == 0:
        size //= 2
        words = f"{question.accumulation * question.micro_batch // size} micro-batches of {size}"
        yield Change(words, PASSING, KEPT, more={"micro_batch": size})
    for higher in range(stage + 1, 4):
        yield Change(f'"zero_optimization": {{"stage": {higher}}}', ALL, STATES, {"stage": higher})
    partitioned = {"stage": max(stage, 1)}
    if not zero.get("offload_optimizer"):
        yield Change('"offload_optimizer": {"device": "cpu"}', ALL, STATES, partitioned | OPTIMIZER)
    if not zero.get("offload_param"):
        words = '"stage": 3 with "offload_optimizer" and "offload_param": {"device": "cpu"}'
        yield Change(words, ALL, STATES, {"stage": 3} | BOTH)
    for ranks in (2 * question.ranks, 4 * question.ranks, 8 * question.ranks) if stage else ():
        yield Change(f"{ranks:,} GPUs", ALL, STATES, more={"ranks": ranks})


def can_cover(together: Sequence[Change], report: Mapping, room: float) -> bool:
    """Whether what changes can make smaller is as much as is missing, in every phase that needs more than the
    room."""
    for phase, held in report["peaks"].items():
        names = {name for change in together if phase in change.phases for name in change.categories}
        missing = sum(held.values()) - room
        if missing > 0 and sum(held.get(name, 0) for name in names) < missing:
            return False
    return True


def advice(
    question: Question,
    reports: Mapping[int, Mapping],
    verdict: Verdict,
    report_of: Callable[[Question, int], Mapping],
    suffices: Callable[[Question, Mapping], bool],
) -> str:
    """A sentence: what fills the highest moment, and the cheapest change with which it fits, with its figure.

    Args:
        report_of: gives the report of a changed question and a rank.
        suffices: whether a machine's own memory does for a question and that report.
    """
    now, possible = reports[verdict.rank], list(changes(question))
    held = max(now["peaks"].values(), key=lambda parts: sum(parts.values()))
    largest = max(held, key=held.get)
    cause = f"most of it, {gigabytes(held[largest])} GB, is {largest}"
    kinds = {(*change.zero, *change.more): change for change in possible}  # the furthest of each
    furthest = list(kinds.values())
    least = None
    for together in [
        *([change] for change in possible),
        *(furthest[:n] for n in range(2, len(furthest) + 1)),
    ]:
        if not can_cover(together, now, verdict.memory - verdict.outside):
            continue
        try:
            changed = question
            for change in together:
                changed = change.of(changed)
            report = report_of(changed, verdict.rank)
        except (RehearsalError, ValueError):  # a model that cannot be checkpointed, say
            continue
        if not suffices(changed, report):
            continue
        least = Verdict.of({verdict.rank: report}, verdict.memory, verdict.outside)
        if WORST.index(least.reserved.how) < WORST.index(verdict.reserved.how):
            words = " and ".join(change.words for change in together)
            needs = (
                f"needs {gigabytes(least.needed)} GB" if least.reserved.how == FITS else least.reserved.how
            )
            return f"{cause}: try {words}, which {needs} (rehearsed)"
    tried = f"; with all of it {gigabytes(least.needed)} GB are needed" if least else ""
    return f"{cause}: neither buckets, micro-batches, stages, offload nor 8 times the GPUs are enough{tried}"
