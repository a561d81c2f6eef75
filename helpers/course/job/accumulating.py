"""How the job adds up gradients at ZeRO's stages 1 and 2: what a GPU holds of them over a step, when it sends
them, and what sending in every micro-batch costs, predicted and recorded."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from helpers.course import recorded
from helpers.course.job.more_gpus import NVLINK, Pass, last_pass, layers, step_parts
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
    messages computed, of 8 GPUs, none of which hides."""
    from helpers.course import plots

    one, times = step_parts(), SEQUENCES // EACH
    reduce = _each_way(NVLINK).message
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
        passes[f"{number}"] = (now, now + one["forward"] + one["backward"])
        now += one["forward"]
        for _, size in layers():
            lasts = one["backward"] / len(layers())
            held[FP32_SUMS] += [(now, 1e-9 * (own + size)), (now + lasts / 2, 1e-9 * own)]
            now += lasts
        sent[FP32_SUMS].append((now - one["backward"], now))
    title = "Gradients on one of eight GPUs, while it adds up eight micro-batches"
    limit = (f"room at the loss: {room() / 1e9:.1f}", room() / 1e9)
    return plots.held_and_sent(held, sent, title, "GB of gradients", passes, limit)


def _each_way(bandwidth: float, ranks: int = EACH) -> Pass:
    """A backward pass whose gradients go to their owners, layer by layer: half of what an all-reduce is."""
    return last_pass(ranks, 2 * bandwidth)


def _steps(stage: int, overlap: bool, ranks: int, bandwidth: float, count: int) -> tuple[list, list]:
    """Boxes of work and of messages in a step of so many micro-batches, sent to owners."""
    one, reduced = step_parts(), _each_way(bandwidth, ranks)
    work, sent, now = [], [], 0.0
    for number in range(1, count + 1):
        work.append(("forward", "", now, now + one["forward"]))
        begin = now + one["forward"]
        now = begin + one["backward"]
        work.append(("backward", f"{number}", begin, now))
        if stage == 1 and number < count:
            continue
        if overlap:
            ends = begin + reduced.layers[-1][4]
            sent.append(("reduce", "", begin + reduced.layers[0][3], now := max(now, ends)))
        else:
            sent.append(("reduce", "", now, now + reduced.message))
            now += reduced.message
    now += one["update"] / ranks  # too short to be seen
    sent.append(("all-gather", "", now, now + reduced.message))
    return work, sent


def overlapping(gpus: int = 16, bandwidth: float = 25e9) -> Plot:
    """The job's step on several hosts whose network carries so many bytes per second: stage 1, stage 2, and
    stage 2 with ideal overlap, all to owners, with as many sequences in a micro-batch."""
    from helpers.course import plots

    rows, ends = {}, {}
    ways = {"stage 1": (1, False), "stage 2": (2, False), "overlapped": (2, True)}
    for way, (stage, overlap) in ways.items():
        work, sent = _steps(stage, overlap, gpus, bandwidth, SEQUENCES // gpus)
        rows |= {f"{way}:\nwork": work, f"{way}:\nmessages": sent}
        ends[way] = sent[-1][3]
    told = ", ".join(f"{way} {end:.1f} s" for way, end in ends.items())
    title = f"A step on {gpus} GPUs, {bandwidth / 1e9:g} GB/s between hosts: {told}"
    return plots.timeline(rows, title, "seconds, computed for the job")


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
