"""How the job adds up gradients at ZeRO's stages 1 and 2: what a GPU holds of them over a step, when it sends
them, and what sending in every micro-batch costs, predicted and recorded."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from helpers.course import recorded
from helpers.course.job.more_gpus import NVLINK, last_pass, layers, step_parts
from helpers.course.job.plans import plan
from helpers.course.job.reference import EACH, MEMORY, SEQUENCES
from helpers.course.job.stored import moments, states, step_times, stored

if TYPE_CHECKING:
    from helpers.course.plots.style import Plot

FP32_SUMS = "stage 2, fp32 sums"
HARDWARE = "2 x NVIDIA H100 80GB HBM3"


def room() -> float:
    """Bytes that are left for gradients at the job's fullest moment, if masters and means are sharded."""
    fullest, outside = moments(FP32_SUMS)["backward"], stored(FP32_SUMS)["outside"]
    return MEMORY - outside - sum(fullest.values()) + fullest["gradients"]


def gradients_in_a_step() -> Plot:
    """GB of gradients on a GPU over the eight micro-batches of a step, and when it sends them, in three ways;
    messages computed, of 8 GPUs, to the owners; none hides.  Columns are the passes of stage 1."""
    from helpers.course import plots

    one, times = step_parts(), SEQUENCES // EACH
    reduce = last_pass(EACH, 2 * NVLINK).message  # to the owners: half of what an all-reduce is
    held: dict[str, list] = {"stage 1, fp32 sums": [], "stage 1": [], FP32_SUMS: []}
    both, late = list(held)[:2], times * (one["forward"] + one["backward"])
    sums, own = states("stage 1")["gradients"], states(FP32_SUMS)["gradients"]
    passes, sent, now = {}, {way: [(late, late + reduce)] for way in both}, 0.0
    sent[FP32_SUMS] = []
    for way in both:  # what a backward pass makes stays
        begin = one["forward"]
        held[way] = [(0.0, 2e-9 * sums * (way == both[0]))]
        for at, (_, size) in enumerate(layers()):
            begin = one["forward"] + one["backward"] * (at + 1) / len(layers())
            held[way].append((begin, held[way][-1][1] + 1e-9 * size))
    held[FP32_SUMS] = [(0.0, 0.0)]
    for number in range(1, times + 1):
        begin = (number - 1) * late / times
        passes[f"{number}"] = (begin, begin + late / times)
        now += one["forward"]
        for _, size in layers():
            lasts = one["backward"] / len(layers())
            held[FP32_SUMS] += [(now, 1e-9 * (own + size)), (now + lasts / 2, 1e-9 * own)]
            now += lasts
        sent[FP32_SUMS].append((now, now + reduce))
        now += reduce
    title = "Gradients on one of eight GPUs, while it adds up eight micro-batches"
    limit = (f"room at the loss: {room() / 1e9:.1f}", room() / 1e9)
    return plots.held_and_sent(held, sent, title, "GB of gradients", passes, limit)


def costs_of_stage_2(longer: Callable[[int, int, float, float], float]) -> list[dict[str, str]]:
    """Rows for a table: by how many seconds a step of stage 2 is longer than one of stage 1, as `longer` of
    micro-batches, ranks, parameters and bytes per second says, and as recorded on two H100s."""
    rows = []
    for words, times, parameters, bandwidth, steps in recorded_pairs():
        due, found = longer(times, 2, parameters, bandwidth), steps[1] - steps[0]
        row = {"two GPUs, DeepSpeed's default": words, "micro-batches": times}
        row |= {"predicted": f"{due:.2f} s", "recorded": f"{found:.2f} s"}
        row["of steps"] = "{:.2f} and {:.2f} s".format(*steps)
        rows.append(row | {"recorded / predicted": f"{found / due:.1f}"})
    return rows


def recorded_pairs() -> list[tuple[str, int, float, float, list[float]]]:
    """(words, micro-batches, parameters, bytes per second, [seconds of a step at stages 1 and 2])."""
    names = [f"2 GPUs, stage {stage}" for stage in (1, 2)]
    of_job = stored(names[0])
    blocks = (
        "the job with 19 blocks, NVLink",
        plan(names[0]).config["gradient_accumulation_steps"],
        of_job["elements"],
        NVLINK,
        [seconds_of(name) for name in names],
    )
    found = [blocks]
    case = {"ranks": 2, "micro_batches": 8, "change": "", "hardware": HARDWARE}
    for link in ("NVLink", "sockets"):
        runs = [recorded.runs("links", link=link, stage=stage, **case) for stage in (1, 2)]
        size, taken = recorded.stage_0(link)
        both = [recorded.step_time(starts).median for starts in runs]
        found.append((f"1.56 billion parameters, {link}", 8, runs[0][0].parameters, size / taken, both))
    return found


def two_hosts(network: float) -> list[dict[str, str]]:
    """Rows for a table: seconds of a step at the fastest on 16 GPUs with bf16 sums, over a network of so many
    bytes per second between two hosts, at stages 1 and 2, in three ways to send gradients."""
    rows = []
    for stage, sequences in (("stage 1", ""), ("stage 2", ""), ("stage 2", ", 2 sequences")):
        row = {"two hosts, seconds at best": f"{stage}{sequences or ', 1 sequence'}"}
        for how in ("", ", to the owner", ", to the owner, overlap"):
            found, _ = step_times(f"{stage}, 16 GPUs{how}{sequences}", network)
            row[how[2:] or "default"] = f"{found.total:.1f}"
        rows.append(row)
    return rows


def seconds_of(name: str) -> float:
    """The median seconds of a plan's steps by the clock, on the slowest rank."""
    (run,) = recorded.runs("job_seconds", plan=name, through="DeepSpeed")
    each = [[sum(map(sum, step)) for step in report["seconds"]] for report in run.reports]
    return max(statistics.median(steps) for steps in each)
