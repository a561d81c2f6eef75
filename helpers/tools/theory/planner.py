"""A planner: of many ways to train a GPT on a cluster, which fit, and which of these takes the least time.

Coarse on purpose: parameters divide evenly, work runs at one rate, messages cost bytes over a bandwidth
(latency stands apart, in `plan_latency`), and the optimizer's step takes no time, so that thousands of plans
can be tried in a second.  `model_states` and `step_time` have the exact formulas, for one plan; a rehearsal
has everything but the numbers.

In bf16 with Adam as DeepSpeed 0.19 does it.  Tensor parallelism comes with sequence parallelism, unless a
plan says otherwise (Korthikanti et al., arXiv 2205.05198, section 4.2.2), pipelines run 1F1B (Narayanan et
al., arXiv 2104.04473, section 2.2) and take ZeRO's stages 0 and 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.tools.theory.communication import collective_seconds, wire_bytes, zero_wire_bytes
from helpers.tools.theory.layers import (
    Size,
    block_parameters,
    embedding_parameters,
    head_activation_bytes,
    repeated_block_bytes,
)
from helpers.tools.theory.long_sequences import ulysses_wire_bytes
from helpers.tools.theory.model_states import ideal_bytes
from helpers.tools.theory.plans import BF16, Cluster
from helpers.tools.theory.step_time import step_messages
from helpers.tools.theory.tensor_parallel import (
    sequence_parallel_block_activation_bytes,
    tensor_parallel_block_activation_bytes,
)
from helpers.tools.theory.throughput import flops_per_token
from helpers.tools.theory.zero_config import ZeroConfig

# bytes of a GPU that are not for tensors (context, kernels, NCCL), as on two H200:
# recorded/zero-2-NVIDIA-H200.json
OUTSIDE = 2.27e9
AT_ONCE = 1_000_000_000  # elements: DeepSpeed's `stage3_max_live_parameters` and `sub_group_size`
ALL_REDUCES = {
    False: 4,
    True: 6,
}  # of a tensor-parallel block in a forward and a backward pass, by whether it is checkpointed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train a GPT.

    Attributes:
        size: the model's shape.
        gpus: in all.
        batch: sequences of a step, of all GPUs together.
        sequence: tokens of each.
        stage: of ZeRO, 0 to 3.
        micro: sequences of a micro-batch, of each replica.
        checkpointed: whether each block keeps its input alone and is computed again.
        tensor: t, GPUs that share each layer.
        pipeline: p, stages of consecutive layers, as equal as can be (DeepSpeed's
        `partition_method="type:Block"`, with the class of the blocks). bucket: `reduce_bucket_size`,
        elements; DeepSpeed's own by default.
        sequence_parallel: the t GPUs share the tokens where they do not share a layer, the embedding and the
            vocabulary of the loss (Megatron); without it, as in DeepSpeed's own tensor parallelism, each has
            all of these.
        fused: torch's fused AdamW (`"fused": true`), which needs no memory for square roots.
        trained: the share of the parameters that are trained, such as adapters (lesson 11); the token table
            is, if all are.
        offload: the optimizer, with its states and the gradients it takes, is the host's (ZeRO-Offload); for
            stages 1 to 3.
        ulysses: u, GPUs that share the tokens of each sequence (lesson 12) and are replicas for ZeRO.

    Raises:
        ValueError: where the numbers do not divide, or DeepSpeed refuses the combination.
    """

    size: Size
    gpus: int
    batch: int
    sequence: int
    stage: int = 0
    micro: int = 1
    checkpointed: bool = False
    tensor: int = 1
    pipeline: int = 1
    bucket: int = 500_000_000
    sequence_parallel: bool = True
    fused: bool = True
    trained: float = 1.0
    offload: bool = False
    ulysses: int = 1

    def __post_init__(self):
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage must be 0, 1, 2 or 3, not {self.stage!r}")
        if self.pipeline > 1 and self.stage > 1:
            raise ValueError(f"DeepSpeed's pipelines refuse ZeRO's stage {self.stage}: use 0 or 1")
        if self.gpus % (self.tensor * self.pipeline):
            raise ValueError(f"{self.gpus} GPUs cannot form replicas of {self.tensor} x {self.pipeline}")
        if self.size.heads % self.tensor or self.pipeline > self.size.layers:
            raise ValueError(
                f"{self.size.heads} heads and {self.size.layers} layers cannot be shared by "
                f"{self.tensor} x {self.pipeline} GPUs"
            )
        if not 0 < self.trained <= 1:
            raise ValueError(f"trained is a share, above 0 and up to 1, not {self.trained!r}")
        if self.offload and self.stage == 0:
            raise ValueError("DeepSpeed offloads the optimizer at ZeRO's stages 1 to 3, not at 0")
        if self.ulysses > 1 and self.tensor * self.pipeline > 1:
            raise ValueError(
                "the planner has Ulysses with data parallelism alone: use tensor=1 and pipeline=1"
            )
        if self.replicas % self.ulysses or self.sequence % self.ulysses or self.size.heads % self.ulysses:
            raise ValueError(
                f"{self.replicas} GPUs, {self.sequence} tokens and {self.size.heads} heads cannot "
                f"be shared by {self.ulysses} each"
            )
        if self.batch * self.ulysses % (self.replicas * self.micro):
            apart = self.replicas // self.ulysses
            raise ValueError(
                f"{self.batch} sequences are no whole number of micro-batches of {self.micro} on "
                f"{apart} replicas"
            )

    @property
    def replicas(self) -> int:
        """N: copies of the model, among which ZeRO shards; those of one Ulysses group have the same
        sequences."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def micro_batches(self) -> int:
        """m: of a step, on each replica."""
        return self.batch * self.ulysses // (self.replicas * self.micro)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens of each and width of what a GPU has of a micro-batch: with Ulysses a part of the
        tokens."""
        return self.micro, self.sequence // self.ulysses, self.size.width

    @property
    def unit(self) -> int:
        """Bytes of the residual stream of a micro-batch, 2 b s h."""
        return BF16 * math.prod(self.shape)

    @property
    def layers(self) -> int:
        """Of the longest pipeline stage."""
        return -(-self.size.layers // self.pipeline)

    @property
    def imbalance(self) -> float:
        """Layers of the longest pipeline stage over those of all stages on average: 1 where p divides the
        layers."""
        return self.layers * self.pipeline / self.size.layers

    @property
    def parameters(self) -> float:
        """P: elements of one GPU before ZeRO shards anything, those of the largest pipeline stage."""
        ends = (
            embedding_parameters(self.size.vocabulary, self.size.context, self.size.width)
            + 2 * self.size.width
        )
        return self.layers * block_parameters(self.size.width) / self.tensor + ends / (
            self.tensor if self.sequence_parallel else 1
        )

    @property
    def kept(self) -> float:
        """Bytes that one block keeps of a micro-batch for its backward pass; checkpointed its input alone."""
        if self.checkpointed:
            return self.unit / (self.tensor if self.sequence_parallel else 1)
        block = (
            sequence_parallel_block_activation_bytes
            if self.sequence_parallel
            else tensor_parallel_block_activation_bytes
        )
        exchanged = (
            self.unit if self.ulysses > 1 else 0
        )  # attention's result, kept by heads and by tokens: as in `ulysses_activation_bytes`
        return block(*self.shape, self.size.heads, BF16, self.tensor, device="cuda") + exchanged

    @property
    def activations(self) -> float:
        """The most bytes of activations that a GPU has at once: those that are kept and, at the loss, 8 bytes
        more for each logit.

        In a pipeline the first stage keeps min(p, m) micro-batches, and the last has the loss: the larger of
        the two.
        """
        tokens, vocabulary = math.prod(self.shape[:2]), self.size.vocabulary
        head = head_activation_bytes(*self.shape, vocabulary, BF16, device="cuda") + 8 * tokens * vocabulary
        last = self.layers * self.kept + head / (self.tensor if self.sequence_parallel else 1)
        return max(last, min(self.pipeline, self.micro_batches) * self.layers * self.kept)

    @property
    def again(self) -> float:
        """Bytes that only the backward pass has, beside all gradients that stay: those of one block, computed
        again where blocks are checkpointed.

        Stage 0: the first block, complete.  Stage 1: that one, whose own gradients come when it goes; or,
        when they are there, two gradients more of the token table, which is tied: one from the head, one from
        the embedding, and their sum.  Stages 2 and 3, where gradients are shards and come complete only for a
        moment: these three gradients of the table; or the last block, the first to run, when all others still
        keep what they keep, beside the head's gradient of the table and that of a matrix before it is
        reduced.
        """
        h, unit = self.size.width, self.unit
        block = unit + repeated_block_bytes(*self.shape, self.size.heads, BF16, device="cuda")
        table, matrix, own = (
            BF16 * elements for elements in (self.size.vocabulary * h, 4 * h * h, block_parameters(h))
        )
        in_use = own if self.checkpointed else 7 / 4 * matrix  # of stage 3, in the backward pass
        others, less = (self.layers - 1) * self.kept, self.gathered - self._gathered(in_use)
        if self.stage == 0:
            return block / self.tensor
        if self.trained < 1:  # gradients of adapters are too small to be counted
            return others + block / self.tensor - less
        if self.stage == 1:  # the partition's gradients are not yet copied
            copied = 0 if self.offload else BF16 * self.parameters / self.replicas
            again = (
                others + (block + 2 * table) / self.tensor
                if self.micro_batches > 1 and self.checkpointed
                else 0
            )
            return max((block - own + matrix) / self.tensor, max(again, 2 * table / self.tensor) - copied, 0)
        waiting = BF16 * (
            self.bucket if own <= BF16 * self.bucket else min(self.bucket, 3 * h * h)
        )  # until the bucket is full
        waiting = matrix + (max(matrix, waiting * self.offload) if self.stage == 2 else waiting)
        first = (
            max(block + (matrix if self.stage == 3 else 0), 8 * unit + waiting)
            if self.checkpointed
            else 5 * unit + waiting
        )
        left = (
            table if self.stage == 2 and self.micro_batches > 1 else 0
        )  # stage 2 lets the micro-batch before's last gradient live
        return max(
            others + (first + table + left) / self.tensor - less, max(block + table, 3 * table) / self.tensor
        )

    @property
    def gathered(self) -> float:
        """Bytes of parameters that stage 3 has gathered at once.

        DeepSpeed's own limit is 10^9 elements; it cannot go below what is in use: the token table of the
        head, and the block that comes first in the backward pass where it is computed again, else that
        block's largest matrix.
        """
        h = self.size.width
        return self._gathered(
            BF16 * (self.size.vocabulary * h + (block_parameters(h) if self.checkpointed else 4 * h * h))
        )

    def _gathered(self, used: float) -> float:
        return (
            max(BF16 * min(self.parameters, AT_ONCE), used / self.tensor)
            if self.stage == 3 and self.replicas > 1
            else 0.0
        )

    @property
    def copies(self) -> int:
        """Bytes for each element that the optimizer steps at once: its gradient in fp32, 4; above stage 0
        once more flat in bf16, 2.

        Without the fused AdamW a square root too, 4, which comes when the flat copy is gone, and at stages 1
        and 2 the bf16 gradients with it."""
        return (6 if self.stage else 4) if self.fused else {0: 8, 1: 6, 2: 6, 3: 8}[self.stage]

    @property
    def host(self) -> float:
        """Bytes of the host's memory that offload takes for one GPU.

        For each element of its partition 18: master weights, Adam, gradients in fp32, new parameters; 2 more
        at stage 2 with several micro-batches. At stages 1 and 2 also a buffer of the largest parameter.  As
        in `offload_bytes`.
        """
        if not self.offload:
            return 0.0
        kept = 2 if self.stage == 2 and self.micro_batches > 1 else 0
        return (18 + kept) * self.trained * self.parameters / self.replicas + self._sides

    @property
    def _sides(self) -> float:
        """Bytes of a buffer of the largest parameter, on the device and in the host, with which stages 1 and
        2 offload."""
        return (
            BF16 * max(self.size.vocabulary, 4 * self.size.width) * self.size.width / self.tensor
            if self.offload and self.stage < 3
            else 0.0
        )

    @property
    def name(self) -> str:
        """In words, for a table: "stage 3, checkpointed, 2 x 4 sequences, t = 8, p = 4"."""
        parts = [
            f"stage {self.stage}",
            *["checkpointed"] * self.checkpointed,
            f"{self.micro_batches} x {self.micro}",
        ]
        parts += [
            f"{letter} = {count}"
            for letter, count in (("t", self.tensor), ("p", self.pipeline), ("u", self.ulysses))
            if count > 1
        ]
        parts += ["offload"] * self.offload + [f"{100 * self.trained:.3g} % trained"] * (self.trained < 1)
        return ", ".join(parts)


def moments(plan: Plan) -> dict[str, float]:
    """Bytes of tensors on the fullest GPU at the moments that compete for the peak of a step: {"loss",
    "backward", "step"}.

    Within 1.1 % of every recorded training; beside rehearsals of GPTs of four layers, 8,192 and 25,600 wide,
    on 64 GPUs with one sequence (lesson 15) from 5 % too low to 11 % too high, both at stage 3.

    States by the ZeRO paper (arXiv 1910.02054, section 5), P elements and N replicas.  At the loss gradients
    are there only from the micro-batch before, or at stage 3, which keeps its part for ever.  At the end of
    the backward pass one block's activations are left; stages 1 and 2 have a bucket, and copy what the
    partition needs, 2 P / N.  The step has a rank's own gradients and `Plan.copies` of what is stepped at
    once: P elements at stage 0, P / N at stages 1 and 2, of these at most a sub-group at stage 3.  In
    pipelines P is the fullest stage's, the longest one with the token table.  At stage 0 their states are
    replicated, as Megatron's: DeepSpeed's own, with its `BF16_Optimizer`, shard master weights and Adam there
    as at stage 1, and keep a second set of gradients.
    """
    return {moment: sum(sizes.values()) for moment, sizes in moment_parts(plan).items()}


def moment_parts(plan: Plan) -> dict[str, dict[str, float]]:
    """What the `moments` consist of, {moment: {category: bytes}}, by a ledger's categories.

    Gathered parameters count as parameters, the bucket and flat copies of gradients as buffers, what the
    optimizer makes as other; what only the backward pass has, as activations, gradients that wait to be
    reduced among them.
    """
    states, share = (
        ideal_bytes(plan.parameters, plan.replicas, plan.stage),
        0 if plan.offload else plan.trained,
    )
    lasting = {"parameters": states["parameters"]} | {
        name: share * states[name] for name in ("master weights", "optimizer states")
    }
    passing = lasting | {"parameters": states["parameters"] + plan.gathered}
    gradients = states["gradients"] * (
        plan.trained if plan.stage == 1 else share
    )  # offloaded they leave as they come, but at stage 1
    part = share * plan.parameters / (plan.replicas if plan.stage else 1)
    bucket, sides = BF16 * plan.bucket if plan.stage else 0, plan._sides
    before = plan.micro_batches > 1 or plan.stage == 3
    stepped = min(part, AT_ONCE) if plan.stage == 3 else part
    copied = BF16 * part if plan.stage in (1, 2) else 0
    there = (
        {"gradients": gradients, "buffers": sides + (bucket if plan.stage in (1, 3) else 0)}
        if before
        else {"buffers": sides}
    )
    return {
        "loss": passing | there | {"activations": plan.activations},
        "backward": passing
        | {"gradients": gradients, "buffers": bucket + sides + copied, "activations": plan.again},
        "step": lasting
        | {
            "gradients": BF16 * part,
            "buffers": sides + (bucket if plan.stage == 3 else 0),
            "other": plan.copies * stepped,
        },
    }


def needed_bytes(plan: Plan) -> float:
    """Of a GPU's memory: the highest of the `moments`, and what is outside of tensors."""
    return max(moments(plan).values()) + OUTSIDE


def replica_bandwidth(plan: Plan, cluster: Cluster) -> float:
    """Bytes per second at which a rank's messages go round the replicas: inside a host, or through the cards
    of all its GPUs that are in one group.

    A group has host / t GPUs in each host, p stages lying in hosts of their own; its rings enter and leave a
    host by all of their cards, until NVLink is the limit, as in `tensor_parallel_cluster_seconds`.
    """
    if plan.gpus <= cluster.host:
        return cluster.within
    return min(cluster.within, max(1, cluster.host // plan.tensor) * cluster.link)


def plan_seconds(plan: Plan, cluster: Cluster) -> dict[str, float]:
    """Seconds of a step, nothing hidden: {"work", "bubble", "tensor parallelism", "pipeline", "ZeRO"}, and
    "Ulysses" where a plan has it.

    Work is `flops_per_token` over the cluster's rate, that of a GPU on average, the head's spread over all
    stages.  The bubble is (p - 1) / m of it (arXiv 2104.04473, section 2.2) where stages are equal; else all
    wait for the longest, which has s = `Plan.imbalance` times as much, and it is (s - 1) + (p - s) / m, exact
    where the last stage is the longest, and else too much by less than one micro-batch on that stage.  Tensor
    parallelism 4 all-reduces of 2 b s h bytes for each block and micro-batch, 6 if it is checkpointed (arXiv
    1909.08053, section 3); ZeRO `zero_wire_bytes`, gradients all-reduced in whole buckets at stages 1 and 2
    as DeepSpeed does.  Between pipeline stages 2 b s h bytes go forward and as many back.  Ulysses
    `ulysses_wire_bytes`.  Offload counts as free: how long it takes is recorded in lesson 11.  Adapters save
    no work here, and ZeRO's messages are those of all parameters.
    """
    passes = "checkpointed step" if plan.checkpointed else "step"
    flops = flops_per_token(plan.size, plan.sequence, passes, causal=True) * plan.batch * plan.sequence
    work = flops / (plan.gpus * cluster.rate)
    times = plan.micro_batches * plan.layers * ALL_REDUCES[plan.checkpointed]
    inside = cluster.within if plan.tensor <= cluster.host else cluster.link
    zero = zero_wire_bytes(
        plan.parameters, plan.replicas, plan.stage, BF16, plan.micro_batches, whole_buckets=True
    )
    return {
        "work": work,
        "bubble": work * (plan.imbalance - 1 + (plan.pipeline - plan.imbalance) / plan.micro_batches),
        "tensor parallelism": times * wire_bytes("all_reduce", plan.unit, plan.tensor) / inside,
        "pipeline": 2 * plan.micro_batches * plan.unit / plan.tensor / cluster.link
        if plan.pipeline > 1
        else 0.0,
        "ZeRO": zero / replica_bandwidth(plan, cluster),
    } | ({"Ulysses": _ulysses_seconds(plan, cluster)} if plan.ulysses > 1 else {})


def _ulysses_seconds(plan, cluster):
    """Of all micro-batches: all-to-alls inside a host, or each GPU through its own card."""
    one = ulysses_wire_bytes(
        plan.micro, plan.sequence, plan.size.width, plan.layers, BF16, plan.ulysses, plan.checkpointed
    )
    return plan.micro_batches * one / (cluster.within if plan.ulysses <= cluster.host else cluster.link)


def plan_messages(plan: Plan) -> list[tuple[str, str, int, int]]:
    """Messages of one GPU in a step: [(part as in `plan_seconds`, collective, their number, GPUs that take
    part in each)].

    Tensor parallelism has 4 all-reduces for each of its layers and micro-batches, 6 if blocks are
    checkpointed; with sequence parallelism each is a reduce-scatter and an all-gather, which take as many
    turns together.  ZeRO's are `step_messages`.  A pipeline stage sends each micro-batch on and its gradient
    back.

    Raises:
        ValueError: for a plan with Ulysses, whose all-to-alls are not counted.
    """
    if plan.ulysses > 1:
        raise ValueError("plan_messages does not count the all-to-alls of Ulysses: use ulysses=1")
    found = []
    if plan.tensor > 1:
        found.append(
            (
                "tensor parallelism",
                "all_reduce",
                plan.micro_batches * plan.layers * ALL_REDUCES[plan.checkpointed],
                plan.tensor,
            )
        )
    if plan.pipeline > 1:
        found.append(("pipeline", "send", 2 * plan.micro_batches, 2))
    zero = ZeroConfig(stage=plan.stage, reduce_bucket_size=plan.bucket)
    sent = step_messages(plan.parameters, plan.layers, zero, plan.replicas, plan.micro_batches)
    return found + [("ZeRO", collective, number, plan.replicas) for _, collective, _, number in sent]


def plan_latency(plan: Plan, latency: float) -> dict[str, float]:
    """Seconds that a plan's messages wait in a step beside what their bytes take, nothing hidden: {part:
    seconds}, parts without messages left out.

    `collective_seconds` without bytes: in a ring of n GPUs a reduce-scatter or an all-gather takes n - 1
    turns, an all-reduce 2 (n - 1), a send 1. All plans by the same account: each turn waits `latency`
    seconds, inside a host as between hosts.  A switch or a tree takes fewer turns, so on many GPUs it is an
    upper limit.
    """
    waits: dict[str, float] = {}
    for part, collective, number, ranks in plan_messages(plan):
        waits[part] = waits.get(part, 0.0) + number * collective_seconds(collective, 0, ranks, latency, 1.0)
    return waits


def all_plans(
    size: Size,
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
    found = []
    for stage, micro, checkpointed, tensor, pipeline in itertools.product(
        stages, micros, checkpointing, tensors, pipelines
    ):
        ways = {
            "stage": stage,
            "micro": micro,
            "checkpointed": checkpointed,
            "tensor": tensor,
            "pipeline": pipeline,
        }
        try:
            found.append(Plan(size=size, gpus=gpus, batch=batch, sequence=sequence, **ways, **others))
        except ValueError:
            continue
    return sorted(
        found,
        key=lambda plan: (
            plan.tensor * plan.pipeline,
            plan.pipeline,
            plan.stage,
            plan.checkpointed,
            plan.micro,
        ),
    )


def cheapest(plans: Iterable[Plan], cluster: Cluster, margin: float = 0.05) -> Plan | None:
    """Of the plans that fit a GPU of the cluster the first that takes at most `margin` longer than the
    fastest; None where none fits.

    A margin, since two plans whose predicted times are closer than the prediction is good are equally fast as
    far as one knows.
    """
    seconds = {
        plan: sum(plan_seconds(plan, cluster).values())
        for plan in plans
        if needed_bytes(plan) <= cluster.memory
    }
    return next((plan for plan in seconds if seconds[plan] <= (1 + margin) * min(seconds.values())), None)
