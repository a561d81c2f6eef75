"""One account of the peak of a step: the moments that compete for it, whatever counts what is there at each:
exact states for recorded runs (`helpers.course.recorded`), the paper's for a plan."""

from __future__ import annotations

from collections.abc import Mapping

from .backward import llama_moments
from .hardware import HARDWARE
from .layers import BF16
from .llama import LlamaSize
from .model_states import MOMENTS, ideal_bytes
from .plan import AT_ONCE, Plan
from .zero_config import ZeroConfig

OUTSIDE = HARDWARE["H200"]["outside tensors"].value  # bytes of a GPU that are not for tensors: context, NCCL


def peak_moments(
    states: Mapping[str, Mapping[str, float]],
    *,
    activations: float,
    again: float | None,
    step: Mapping[str, float],
    accumulates: bool,
) -> dict[str, dict[str, float]]:
    """The moments of a step that compete for its peak, {"loss", "backward", "step": {category: bytes}}.

    Args:
        states: by each of `MOMENTS`, what is there without activations, {category: bytes}.
        activations: what is kept at the loss, and 8 bytes for each logit.
        again: what only the backward pass has; None where that moment does not compete.
        step: everything that is there while the optimizer steps.
        accumulates: whether gradients of a micro-batch before are there at the loss.
    """
    after_step, between, after_backward = (states[moment] for moment in MOMENTS)
    moments = {"loss": {**(between if accumulates else after_step), "activations": activations}}
    if again is not None:
        moments["backward"] = {**after_backward, "activations": again}
    return moments | {"step": dict(step)}


def moment_parts(plan: Plan) -> dict[str, dict[str, float]]:
    """What the `moments` of a plan consist of, {moment: {category: bytes}}, by a ledger's categories; of a
    Llama without other parallelism, offload and adapters `llama_moments`.

    Gathered parameters count as parameters, the bucket and flat copies of gradients as buffers, what the
    optimizer makes as other; what only the backward pass has, with gradients that wait, as activations.
    """
    if isinstance(plan.size, LlamaSize) and plan.is_data_parallel:
        config = ZeroConfig(stage=plan.stage, reduce_bucket_size=plan.bucket, overlap_comm=False)
        ways = {"checkpointed": plan.checkpointed, "micro_batches": plan.micro_batches, "fused": plan.lean}
        return llama_moments(plan.size, plan.micro, plan.sequence, config, ranks=plan.replicas, **ways)
    ideal = ideal_bytes(plan.parameters, plan.replicas, plan.stage)
    trained = 0 if plan.offload else plan.trained  # the share whose states are the device's
    lasting = {name: trained * ideal[name] for name in ("master weights", "optimizer states")}
    lasting["parameters"] = ideal["parameters"]
    passing = lasting | {"parameters": ideal["parameters"] + plan.gathered}
    # offloaded gradients leave as they come, but at stage 1
    gradients = ideal["gradients"] * (plan.trained if plan.stage == 1 else trained)
    part = trained * plan.parameters / (plan.replicas if plan.stage else 1)
    bucket, sides = BF16 * plan.bucket if plan.stage else 0, plan.offload_buffer
    copied = BF16 * part if plan.stage in (1, 2) else 0
    stepped = min(part, AT_ONCE) if plan.stage == 3 else part
    kept_bucket = bucket if plan.stage in (1, 3) else 0
    states = {
        "after step": passing | {"buffers": sides},
        "between micro-batches": passing | {"gradients": gradients, "buffers": sides + kept_bucket},
        "after backward": passing | {"gradients": gradients, "buffers": bucket + sides + copied},
    }
    step = lasting | {"gradients": BF16 * part, "other": plan.copies * stepped}
    return peak_moments(
        states,
        activations=plan.activations,
        again=plan.again,
        step=step | {"buffers": sides + (bucket if plan.stage == 3 else 0)},
        accumulates=plan.micro_batches > 1 or plan.stage == 3,  # stage 3 keeps its gradients for ever
    )


def moments(plan: Plan) -> dict[str, float]:
    """Bytes of tensors on the fullest GPU at the moments that compete for the peak of a step: {"loss",
    "backward", "step"}; states by the ZeRO paper (arXiv 1910.02054, section 5).

    Within 1.1 % of every recorded training; beside rehearsals of GPTs of four layers, 8,192 and 25,600 wide,
    on 64 GPUs with one sequence (lesson 17) from 5 % too low to 11 % too high, both at stage 3.  Pipelines at
    stage 0 replicate states, as Megatron's; DeepSpeed's own, with its `BF16_Optimizer`, shard master weights
    and Adam there as at stage 1, and keep a second set of gradients.
    """
    return {moment: sum(sizes.values()) for moment, sizes in moment_parts(plan).items()}


def needed_bytes(plan: Plan) -> float:
    """Of a GPU's memory: the highest of the `moments`, and what is outside of tensors."""
    return max(moments(plan).values()) + OUTSIDE
