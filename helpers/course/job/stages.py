"""The job's pipeline in seconds: what a layer takes, and what stages of some cut take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from helpers.course.job.plans import plan
from helpers.course.job.reference import MODELS, SEQUENCES
from helpers.course.job.shared_block import block_bytes
from helpers.course.job.stored import stored
from helpers.tools import theory
from helpers.tools.rehearsal.seconds import REACHED
from helpers.tools.theory import schedules
from helpers.tools.theory.hardware import HOST

BLOCKS = 32  # of the job's model
EVEN = "8 stages"  # the rehearsed plan of which layers' seconds are taken
RECORDED, MICRO_BATCHES = 20, 8  # checkpointed blocks of the recorded pipelines on two GPUs
CUTS = {"by count": 11, "by seconds": 12}  # layers of their first stage: the embedding and so many blocks
SOME_CUTS = {  # into eight stages, beside which a learner's own cut is priced
    "four each": [4] * 8,
    "the long ones first": [5, 5, 5, 4, 4, 4, 4, 1],
    "short at the ends": [2, 4, 4, 5, 5, 5, 5, 2],
    "and short early": [3, 3, 4, 5, 5, 5, 5, 2],
}
KEPT = 24.5  # activations that a block keeps (lesson 05)


@cache
def layer_seconds() -> dict[str, float]:
    """{"embedding", "block", "head": seconds of one sequence's passes}, nothing checkpointed: rehearsed work
    by the constants of an H100."""
    found = stored(EVEN)["seconds"]["passes_of"]
    blocks = plan(EVEN).stages
    first, middle, last = (found[str(rank)] for rank in (0, 1, len(blocks) - 1))
    block = (middle["forward"] + middle["backward"]) / blocks[1]
    ends = [one["forward"] + one["backward"] - block * blocks[0] for one in (first, last)]
    return {"embedding": ends[0], "block": block, "head": ends[1]}


def layer_costs(blocks: int = BLOCKS) -> list[float]:
    """Seconds of every layer, from the embedding to the head."""
    found = layer_seconds()
    return [found["embedding"], *[found["block"]] * blocks, found["head"]]


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """Where stages begin so that the slowest takes least, the others are as even as they can be, and longer
    ones come late."""
    sums = [sum(costs[:at]) for at in range(len(costs) + 1)]
    return list(_best(tuple(sums), stages, _least(tuple(sums), stages)))


@cache
def _least(sums: tuple[float, ...], stages: int) -> float:
    """The least time of the slowest of so many stages, all layers shared out."""
    whole = len(sums) - 1
    best = list(sums)  # of the first layers in one stage
    for count in range(2, stages + 1):
        best = [
            min((max(best[first], sums[at] - sums[first]) for first in range(count - 1, at)), default=0.0)
            for at in range(whole + 1)
        ]
    return best[whole]


def _best(sums: tuple[float, ...], stages: int, most: float) -> tuple[int, ...]:
    @cache
    def found(at: int, count: int) -> tuple[float, tuple[int, ...]]:
        """Of the first `at` layers: the sum of squares, and where stages begin."""
        if count == 1:
            return (sums[at] ** 2 if sums[at] <= most + 1e-12 else float("inf")), (0,)
        ways = []
        for first in range(count - 1, at):
            if (own := sums[at] - sums[first]) <= most + 1e-12:
                squares, begins = found(first, count - 1)
                ways.append((round(squares + own**2, 9), (*begins, first)))
        return min(ways, default=(float("inf"), ()))

    return found(len(sums) - 1, stages)[1]


def stage_seconds(costs: Sequence[float], begins: Sequence[int]) -> list[float]:
    """Of each stage, one micro-batch there and back, if stages begin at these layers."""
    ends = [*begins[1:], len(costs)]
    return [sum(costs[first:end]) for first, end in zip(begins, ends)]


def stage_weights(blocks: Sequence[int]) -> list[int]:
    """Weights of each stage; the first has the embedding, the last the norm and the head."""
    parts = theory.tensors(theory.LlamaSize.of(MODELS["8 B"]))
    each = [sum(parts["block"]) * count for count in blocks]
    each[0] += sum(parts["embedding"])
    each[-1] += sum(parts["head"])
    return each


def drawn_stages() -> Mapping[str, list[str]]:
    """{GPU: what its stage has} of the plan with equal stages, for `plots.stages`."""
    blocks = plan(EVEN).stages
    found = {}
    for rank, weights in enumerate(stage_weights(blocks)):
        end = {0: "embedding", len(blocks) - 1: "head"}.get(rank, "")
        lines = [end, f"{blocks[rank]} blocks", f"{weights / 1e9:.2f} B weights"]
        found[f"GPU {rank}"] = [*lines, f"{16 * weights / 1e9:.1f} GB states"]
    return found


def recorded_pipelines(cost_of: Callable[[Sequence[float], int], float]) -> dict[str, dict[str, str]]:
    """{what: {cut: number}} of the recorded pipelines of 20 checkpointed blocks on two GPUs, predicted from
    layers' seconds and recorded.

    Args:
        cost_of: (seconds of each stage, micro-batches) -> seconds of a step's passes.
    """
    from helpers.course import recorded

    found, rows = layer_seconds(), {}
    again = second_forward("stage 0") / (SEQUENCES // HOST * BLOCKS)  # of a checkpointed block
    block = found["block"] + again
    costs = [found["embedding"], *[block] * RECORDED, found["head"]]
    for run in recorded.runs("job_pipeline"):
        first, passes = CUTS[run.arguments["cut"]], recorded.timelines(run)
        stages = stage_seconds(costs, [0, first])
        span = max(row[-1][-1] for row in passes) - min(row[0][-2] for row in passes)
        due = cost_of(stages, MICRO_BATCHES)
        by_recorded = cost_of([*map(of_a_micro_batch, passes)], MICRO_BATCHES)
        rows[f"{first - 1} + {RECORDED - first + 1} blocks"] = {
            "the two stages, predicted, ms": " and ".join(f"{1e3 * one:.0f}" for one in stages),
            "the same, recorded, ms": " and ".join(f"{one:.0f}" for one in map(of_a_micro_batch, passes)),
            "a step's passes, predicted, s": f"{due:.2f}",
            "the same, recorded, s": f"{span / 1e3:.2f}",
            "predicted / recorded": f"{1e3 * due / span:.2f}",
            "from the recorded stages, s": f"{by_recorded / 1e3:.2f}",
            "idle, recorded": f"{100 * schedules.idle_fraction(passes):.0f} %",
        }
    return {what: {cut: rows[cut][what] for cut in rows} for what in next(iter(rows.values()))}


def of_a_micro_batch(timeline: Sequence[tuple]) -> float:
    """Milliseconds that a stage takes for one, both passes: medians."""
    both = ([end - start for each, *_, start, end in timeline if each == kind] for kind in "FB")
    return sum(map(statistics.median, both))


def over_blocks(
    cost_of: Callable[[Sequence[float], int], float], counts: Sequence[int], stages: int = 8
) -> dict[str, dict[str, float]]:
    """Bars for `plots.time_bars`: a step's passes of models of so many blocks, cut by seconds; of an average
    stage, what it works and what it waits."""
    bars = {}
    for count in counts:
        costs = layer_costs(count)
        work = SEQUENCES * sum(costs) / stages
        whole = cost_of(stage_seconds(costs, balanced(costs, stages)), SEQUENCES)
        bars[f"{count}\nthe job" if count == BLOCKS else str(count)] = {"work": work, "waiting": whole - work}
    return bars


def of_a_step(name: str) -> tuple[float, float]:
    """Seconds of a step of a plan in stages with 1F1B, at the fastest and at the slowest: rehearsed work by
    the constants of an H100, and messages that take no time."""
    blocks, steps = plan(name).stages, stored(EVEN)["seconds"]["passes_of"].values()
    each = stage_seconds(layer_costs(sum(blocks)), begins_of(blocks))
    passes = SEQUENCES * max(each) + sum(each) - max(each)
    fastest = passes + max(one["step"] for one in steps)
    return fastest, fastest / REACHED


def second_forward(name: str) -> float:
    """Seconds of a step that a plan of data parallelism on one host works on passes that checkpointing runs
    a second time: its passes without the work that a pipeline's GPUs have, too."""
    passes = stored(name)["seconds"]["passes"][0]
    return passes["forward"]["work"] + passes["backward"]["work"] - SEQUENCES * sum(layer_costs()) / HOST


def begins_of(blocks: Sequence[int]) -> list[int]:
    """The layer with which each stage of so many blocks begins."""
    return [0, *(1 + sum(blocks[:at]) for at in range(1, len(blocks)))]


def lines(
    cuts: Mapping[str, Sequence[int]], cost_of: Callable[[Sequence[float], int], float]
) -> dict[str, dict[str, str]]:
    """{cut: {what: number}} of the job's pipeline with 1F1B.

    Args:
        cuts: {name: blocks of each stage}.
        cost_of: (seconds of each stage, micro-batches) -> seconds of a step's passes.
    """
    rows = {}
    for name, blocks in cuts.items():
        each = stage_seconds(layer_costs(sum(blocks)), begins_of(blocks))
        whole = cost_of(each, SEQUENCES)
        each_kept = [(KEPT * count + 1) * block_bytes() for count in blocks]  # and its output
        parked = [kept * (len(blocks) - rank) for rank, kept in enumerate(each_kept)]
        held = [16 * weights + more for weights, more in zip(stage_weights(blocks), parked)]
        rows[name] = {
            "blocks": " ".join(map(str, blocks)),
            "most in flight, GB": f"{max(parked) / 1e9:.0f}",
            "with states, GB": f"{max(held) / 1e9:.0f}",
            "slowest stage, ms": f"{1e3 * max(each):.0f}",
            "passes of a step, s": f"{whole:.2f}",
            "of it waiting, s": f"{whole - SEQUENCES * sum(each) / len(each):.2f}",
        }
    return rows
