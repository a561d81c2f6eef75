"""A planner: how long a step of a plan takes, and of many plans the cheapest that fits.

Coarse on purpose: work runs at one rate, messages cost bytes over a bandwidth (latency apart), and the
optimizer's step takes no time (`step_time` has the detailed formula).  Ranks are laid out as lesson 15
advises: the pipeline's stages outermost, then replicas, and neighbours share a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..whole import not_negative, whole
from .communication import Pass, collective_seconds
from .gpt_size import GPTSize
from .hardware import Cluster
from .layers import BF16
from .llama import LlamaSize
from .long_sequences import ulysses_wire_bytes
from .peak import needed_bytes
from .plan import Plan
from .roofline import flops_per_token
from .step_counts import step_messages
from .tensor_parallel import block_messages
from .zero_config import ZeroConfig


def _messages(plan: Plan) -> list[tuple[str, str, float, int, int]]:
    """Of one GPU in a step, but for Ulysses: [(part, collective, bytes of each, their number, ranks)]."""
    messages = []
    if plan.tensor > 1:
        blocks = plan.micro_batches * plan.layers
        for collective, number in block_messages(plan.sequence_parallel, plan.checkpointed).items():
            messages.append(("tensor parallelism", collective, plan.unit, number * blocks, plan.tensor))
    if plan.pipeline > 1:
        messages.append(("pipeline", "send", plan.unit / plan.tensor, 2 * plan.micro_batches, 2))
    zero = ZeroConfig(stage=plan.stage, reduce_bucket_size=plan.bucket)
    job = plan.parameters, plan.layers, zero, plan.replicas, plan.micro_batches
    sent = step_messages(*job, modules=plan.size.modules)
    return messages + [("ZeRO", name, size / number, number, plan.replicas) for _, name, size, number in sent]


def plan_messages(plan: Plan) -> list[tuple[str, str, int, int]]:
    """Messages of one GPU in a step: [(part as in `plan_seconds`, collective, their number, GPUs that take
    part in each)]; for a plan without Ulysses.

    Tensor parallelism's are `block_messages` for each of its layers and micro-batches, ZeRO's
    `step_messages`.  A pipeline stage sends each micro-batch on and its gradient back.
    """
    if plan.ulysses > 1:
        raise ValueError("plan_messages does not count the all-to-alls of Ulysses: use ulysses=1")
    return [(part, collective, number, ranks) for part, collective, _, number, ranks in _messages(plan)]


def plan_seconds(plan: Plan, cluster: Cluster, hidden: bool = False) -> dict[str, float]:
    """Seconds of a step: {"work", "bubble", "tensor parallelism", "pipeline", "ZeRO"}; some have "Ulysses".

    Work is `flops_per_token` over the cluster's rate, that of a GPU on average.  The bubble is (p - 1) / m of
    it (arXiv 2104.04473, section 2.2) where stages are equal; else all wait for the longest, which has s =
    `Plan.imbalance` times as much, and it is (s - 1) + (p - s) / m, exact where the last stage is the
    longest, and else too much by less than one micro-batch on that stage.  Messages are those of
    `plan_messages`, over the `Cluster.bandwidth` of their group; pipeline stages that are not all in one
    host, and a Ulysses group that is larger than one, send through each GPU's own card.  Offload counts as
    free (lesson 12).  Adapters save no work here, and ZeRO's messages are those of all parameters.

    With `hidden`, "ZeRO" is only what is exposed where all of it may go on behind the work: of the whole step
    at stages 2 and 3, of the last micro-batch at stages 0 and 1, which send once.
    """
    passes = "checkpointed step" if plan.checkpointed else "step"
    flops = flops_per_token(plan.size, plan.sequence, passes, causal=True) * plan.batch * plan.sequence
    work = flops / (plan.gpus * cluster.rate)
    bubble = plan.imbalance - 1 + (plan.pipeline - plan.imbalance) / plan.micro_batches
    parts = {"work": work, "bubble": work * bubble, "tensor parallelism": 0.0, "pipeline": 0.0, "ZeRO": 0.0}
    bandwidths = {
        "tensor parallelism": cluster.bandwidth(plan.tensor, 1, plan.gpus),
        "pipeline": cluster.within if plan.gpus <= cluster.host else cluster.link,
        "ZeRO": cluster.bandwidth(plan.replicas, plan.tensor, plan.gpus),
    }
    for part, collective, size, number, ranks in _messages(plan):
        parts[part] += number * collective_seconds(collective, size, ranks, 0.0, bandwidths[part])
    if plan.ulysses > 1:
        shape = plan.micro, plan.sequence, plan.size.width, plan.layers
        sent = plan.micro_batches * ulysses_wire_bytes(*shape, BF16, plan.ulysses, plan.checkpointed)
        near = cluster.in_one_host(plan.ulysses, plan.gpus)
        parts["Ulysses"] = sent / (cluster.within if near else cluster.link)
    if hidden:
        beside = work if plan.stage > 1 else work / plan.micro_batches
        parts["ZeRO"] = Pass(beside, parts["ZeRO"], hides=True).exposed
    return parts


def plan_latency(plan: Plan, latency: float) -> dict[str, float]:
    """Seconds that a plan's messages wait in a step beside what their bytes take, nothing hidden: {part:
    seconds}, parts without messages left out.

    Each turn of a ring (`collective_seconds` without bytes) waits `latency` seconds, inside a host as between
    hosts.  A switch or a tree takes fewer turns, so on many GPUs it is an upper limit.
    """
    not_negative(latency=latency)
    waits: dict[str, float] = {}
    for part, collective, number, ranks in plan_messages(plan):
        waits[part] = waits.get(part, 0.0) + number * collective_seconds(collective, 0, ranks, latency, 1.0)
    return waits


def all_plans(
    size: GPTSize | LlamaSize,
    gpus: int,
    batch: int,
    sequence: int,
    stages: Iterable[int] = (0, 1, 2, 3),
    micros: Iterable[int] = (1, 2, 4, 8),
    tensors: Iterable[int] = (1,),
    pipelines: Iterable[int] = (1,),
    checkpointing: Iterable[bool] = (False, True),
    **others: float | bool,
) -> list[Plan]:
    """Every `Plan` of the grid that divides and that DeepSpeed takes, the simplest first: fewer GPUs that
    share a model, then the lower stage."""
    for name, number in {"gpus": gpus, "batch": batch, "sequence": sequence}.items():
        whole(number, name)
    grid = {"stage": stages, "micro": micros, "tensor": tensors, "pipeline": pipelines}
    grid, bounds = {name: list(values) for name, values in grid.items()}, {"stage": (0, 3)}
    for name, values in grid.items():
        for value in values:
            whole(value, name, *bounds.get(name, ()))
    grid["checkpointed"] = list(checkpointing)
    plans = []
    for values in itertools.product(*grid.values()):
        ways = dict(zip(grid, values)) | others
        try:
            plans.append(Plan(size=size, gpus=gpus, batch=batch, sequence=sequence, **ways))
        except ValueError:
            continue  # it does not divide, or DeepSpeed refuses it
    return sorted(plans, key=_complexity)


def _complexity(plan: Plan) -> tuple[int, ...]:
    return plan.tensor * plan.pipeline, plan.pipeline, plan.stage, plan.checkpointed, plan.micro


def cheapest(plans: Iterable[Plan], cluster: Cluster) -> Plan | None:
    """Of the plans that fit a GPU of the cluster the first that takes at most 5 % longer than the fastest;
    None where none fits.  Plans that are closer are equally fast, as far as the prediction can tell."""
    fitting = [plan for plan in plans if needed_bytes(plan) <= cluster.memory]
    seconds = [sum(plan_seconds(plan, cluster).values()) for plan in fitting]
    close = (plan for plan, took in zip(fitting, seconds) if took <= 1.05 * min(seconds))
    return next(close, None)
