"""A Llama block that GPUs share: what of its seconds is divided among them, and what each repeats.

Products and attention are `theory`'s, by the constants of an H100.  All else was recorded with the block
of 8 B, and how much of it is divided follows from the job's rehearsals with t = 1 and t = 2; for other models
both grow with what they work on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from types import MappingProxyType

from helpers.course.job.more_gpus import NVLINK
from helpers.course.job.reference import MODELS, SEQUENCE, SEQUENCES
from helpers.course.job.stored import peak, stored
from helpers.tools import theory

PARTS = ("matrix products", "attention", "elementwise", "messages")  # of a rehearsed step
MACHINE = theory.MACHINES["H100 80GB"]
BLOCKS = MappingProxyType(
    {
        "8 B": MODELS["8 B"],
        "70 B": MODELS["70 B"],
        "405 B": MODELS["70 B"]
        | {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128},
    }
)


def block_bytes(model: str = "8 B") -> int:
    """Of one activation of a sequence, ebsh, in bf16."""
    return 2 * SEQUENCE * BLOCKS[model]["hidden_size"]


@cache
def divided_share() -> float:
    """Of all that is neither product, attention nor message: the part that halves when two GPUs share a
    block, by the job's rehearsals."""
    alone, two = (
        told["seconds"]["fastest"]["elementwise"] / told["config"]["gradient_accumulation_steps"]
        for told in map(stored, ("stage 0", "t = 2"))
    )
    return 2 * (1 - two / alone)


def recorded_block(ranks: int = 1, sequence_parallel: bool = False) -> dict[str, float]:
    """Of the recorded block of 8 B, on the rank whose messages waited least: {"seconds": that its GPU was
    busy, "messages": those of them in messages, "kernels", "kept": bytes}; and of the slowest rank "clock": a
    pass's seconds by the clock."""
    from helpers.course import recorded

    (run,) = recorded.runs("block", ranks=ranks, sequence_parallel=sequence_parallel)
    last = min(run.reports, key=lambda report: report["busy"]["messages"])
    busy = last["busy"]
    found = {"seconds": busy["gpu"], "messages": busy["messages"], "kernels": busy["kernels"]}
    clock = max(report["median"] for report in run.reports)
    return found | {"kept": last["kept"], "clock": clock}


@cache
def block_parts(model: str = "8 B") -> dict[str, float]:
    """Seconds of one GPU for the forward and backward pass of a block, on one sequence: {"products",
    "attention", "elementwise, divided", "elementwise, repeated"}."""
    products, scores = work(model)
    base = BLOCKS["8 B"]
    all_else = recorded_block()["seconds"] - sum(work("8 B"))
    grown = {name: BLOCKS[model][name] / base[name] for name in ("hidden_size", "intermediate_size")}
    return {
        "products": products,
        "attention": scores,
        "elementwise, divided": divided_share() * all_else * grown["intermediate_size"],
        "elementwise, repeated": (1 - divided_share()) * all_else * grown["hidden_size"],
    }


def work(model: str) -> tuple[float, float]:
    """Seconds of a block's products and of its attention, forward and backward."""
    size = theory.LlamaSize.of(BLOCKS[model])
    h, inner, kv, f = size.width, size.attention_width, size.kv_width, size.feed_forward
    shapes = ((h, inner), (h, kv), (h, kv), (inner, h), (h, f), (h, f), (f, h))
    products = sum(theory.matrix_seconds(SEQUENCE, *shape, MACHINE) for shape in shapes)
    scores = 2 * SEQUENCE**2 * inner / MACHINE.attention_rate("bf16", SEQUENCE * size.head_width)
    return 3 * products, 3.5 * scores


def recorded_label() -> str:
    from helpers.course import recorded

    return recorded.runs("block")[0].label


def beside_recorded(predicted: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, str]]:
    """{way: {what: milliseconds}} of a block on two GPUs, predicted and as it was recorded.

    Args:
        predicted: (seconds, those of them in messages) with tensor parallelism, then with sequence
            parallelism too.
    """
    rows = {}
    for with_tokens, (way, (seconds, sent)) in enumerate(predicted.items()):
        run = recorded_block(2, bool(with_tokens))
        rows[way] = {
            "predicted, ms": f"{1e3 * seconds:.1f}",
            "recorded, ms": f"{1e3 * run['seconds']:.1f}",
            "predicted / recorded": f"{seconds / run['seconds']:.2f}",
            "messages, predicted": f"{1e3 * sent:.1f}",
            "messages, recorded": f"{1e3 * run['messages']:.1f}",
            "by the clock, ms": f"{1e3 * run['clock']:.1f}",
        }
    return rows


def bars_of_blocks(
    block_seconds: Callable[..., float], work: float, repeated: float, message: float
) -> dict[str, dict[str, float]]:
    """Bars for `plots.shared_seconds`, by a learner's formula: with 1 to 8 GPUs, and with sequence
    parallelism."""
    bars = {}
    for t, tokens in ((1, False), (2, False), (4, False), (8, False), (2, True), (4, True), (8, True)):
        own = {"divided": (work + repeated * tokens) / t, "repeated": repeated * (not tokens)}
        sent = block_seconds(t, work, repeated, message, tokens) - sum(own.values())
        name = f"t = {t}, sequence parallel" if tokens else f"t = {t}"
        bars[name] = own | {"messages": max(0.0, sent)}
    return bars


def recorded_blocks() -> dict[str, dict[str, float]]:
    """{bar of `bars_of_blocks`: what `recorded_block` says}, of those that were recorded."""
    ways = {"t = 1": (1, False), "t = 2": (2, False), "t = 2, sequence parallel": (2, True)}
    return {bar: recorded_block(*way) for bar, way in ways.items()}


def from_blocks_to_step(blocks: float) -> dict[str, dict[str, str]]:
    """{what is added: seconds} from `blocks`, a learner's seconds of all blocks with t = 8, to the job's step
    with AutoTP, rehearsed."""
    names = ("t = 8, own logits, not checkpointed", "t = 8, own logits", "t = 8")
    kept, own, whole = (stored(name)["seconds"]["fastest"] for name in names)
    parts, times = block_parts(), MODELS["8 B"]["num_hidden_layers"] * SEQUENCES
    repeated = parts["elementwise, repeated"]
    in_blocks = times * ((sum(parts.values()) - repeated) / 8 + repeated)
    three = times * 3 * theory.wire_bytes("all_reduce", block_bytes(), 8) / NVLINK
    work = sum(kept.values()) - kept["messages"] - in_blocks
    rows = {"all blocks, by your formula": blocks, "+ an f for each of five matrices": three}
    rows["+ embedding, head, loss, optimizer"] = work
    rows["+ start-up of messages, and those of the head"] = sum(kept.values()) - blocks - three - work
    rows["+ a second forward pass (checkpointing)"] = sum(own.values()) - sum(kept.values())
    rows["+ gathered logits"] = sum(whole.values()) - sum(own.values())
    ends = zip(rows, rows.values(), accumulate(rows.values()))
    return {name: {"s": f"{more:.1f}", "so far, s": f"{end:.1f}"} for name, more, end in ends}


def seconds_of_plans(plans: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """{bar: {part: seconds of a step at the fastest}}, and what a GPU sends and needs, and what torch
    reserves, of {bar: plan}, rehearsed."""
    rows = {}
    for bar, plan in plans.items():
        told = stored(plan)
        ends = [sum(told["seconds"][end].values()) for end in ("fastest", "slowest")]
        rows[bar] = {f"{part}, s": f"{told['seconds']['fastest'][part]:.1f}" for part in PARTS}
        rows[bar]["a step, s"] = f"{ends[0]:.1f} to {ends[1]:.1f}"
        rows[bar]["sent, GB"] = f"{sum(told['sent'].values()) / 1e9:,.0f}"
        rows[bar]["needed, GB"] = f"{(peak(plan) + told['outside']) / 1e9:.0f}"
        rows[bar]["reserved, GB"] = f"{(told['reserved'][1] + told['outside']) / 1e9:.0f}"
    return rows
