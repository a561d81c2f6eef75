"""The job's pipeline, to play with: how many blocks on how many stages, cut by what, in which order."""

from __future__ import annotations

from functools import cache

from helpers.course.job.reference import MEMORY, MODELS, SEQUENCE, SEQUENCES
from helpers.course.job.shared_block import block_bytes
from helpers.course.job.stages import (
    KEPT,
    balanced,
    layer_costs,
    stage_seconds,
    stage_weights,
)
from helpers.course.job.stored import stored
from helpers.course.play.compared import Bars, Goals, Numbers
from helpers.course.play.compared import played as of_bars
from helpers.course.play.grids import Choice
from helpers.course.play.played import Played
from helpers.course.plots.replicas import MESSAGE
from helpers.course.plots.style import owner_colour

BLOCKS, COUNT, PARAMETERS, SECONDS = 32, "blocks", "parameters", "seconds"
CHOICES = {
    "blocks": Choice("blocks of the model", list(range(28, 37)), BLOCKS),
    "stages": Choice("stages", [2, 4, 8], 8),
    "cut": Choice("cut into equal", [COUNT, PARAMETERS, SECONDS], COUNT),
    "order": Choice("order", ["GPipe", "1F1B"], "GPipe"),
}
WORDS = (
    "Work {work} s of each GPU on average, waiting {waiting} s: {total} s. Idle {idle} %. The fullest GPU"
    " needs {needed} GB."
)
GOALS: Goals = {
    "Let the 8 B fit on eight GPUs.": lambda ways, times: is_the_job(ways) and needed(**ways) < MEMORY,
    "The same, in less than 9 s.": lambda ways, times: (
        is_the_job(ways) and needed(**ways) < MEMORY and times > base(**ways)["work"] / 9
    ),
    "On eight GPUs, less than 12 % idle.": lambda ways, times: ways["stages"] == 8 and times > 0.88,
}


def is_the_job(ways: dict) -> bool:
    return ways["blocks"] == BLOCKS and ways["stages"] == 8


@cache
def begins(blocks: int, stages: int, cut: str) -> list[int]:
    """Where stages begin in the list of layers."""
    if cut == SECONDS:
        return balanced(layer_costs(blocks), stages)
    if cut == PARAMETERS:
        block = stage_weights([0, 1, 0])[1]
        table = stage_weights([0, 0])[0]
        return balanced([table, *[block] * blocks, table], stages)
    each, more = divmod(blocks, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    return [0, *(1 + sum(counts[:stage]) for stage in range(1, stages))]


def blocks_of(blocks: int, stages: int, cut: str) -> list[int]:
    """Of each stage."""
    found = [*begins(blocks, stages, cut), blocks + 2]
    counts = [end - first for first, end in zip(found, found[1:])]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def needed(blocks: int, stages: int, cut: str, order: str) -> float:
    """Bytes of the fullest GPU: 16 for a weight, the activations in flight, the scores where the loss is, and
    what lies outside the allocator."""
    counts, found = blocks_of(blocks, stages, cut), []
    for stage, (own, weights) in enumerate(zip(counts, stage_weights(counts))):
        flight = SEQUENCES if order == "GPipe" else stages - stage
        scores = 10 * SEQUENCE * MODELS["8 B"]["vocab_size"] if stage == stages - 1 else 0  # bf16, fp32 twice
        found.append(16 * weights + flight * (KEPT * own + 1) * block_bytes() + scores)
    return max(found) + stored("8 stages")["outside"]


def base(blocks: int, stages: int, cut: str, order: str) -> Numbers:
    """Seconds of a step in which nobody waits."""
    return {"work": SEQUENCES * sum(layer_costs(blocks)) / stages, "waiting": 0.0}


def found(blocks: int, stages: int, cut: str, order: str) -> Numbers:
    """Seconds by the lesson's formula; percent; GB."""
    each = stage_seconds(layer_costs(blocks), begins(blocks, stages, cut))
    total = SEQUENCES * max(each) + sum(each) - max(each)
    work = base(blocks, stages, cut, order)["work"]
    memory = needed(blocks, stages, cut, order) / 1e9
    return {"work": work, "waiting": total - work, "idle": 100 * (1 - work / total), "needed": memory}


BARS = Bars(
    found,
    base,
    called="if nobody waited",
    unit="s",
    parts={"work": owner_colour(0), "waiting": MESSAGE},
    title="A step of 64 sequences, computed;",
    words=WORDS,
    goals=GOALS,
)


def cuts(*names: str, **start: object) -> Played:
    """The seconds of a step of the job's pipeline, beside those of one in which nobody waits; arguments as in
    `compared.played`."""
    return of_bars(BARS, CHOICES, names, start)
