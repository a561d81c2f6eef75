"""What a step of the course's GPT moves in memory, issues and sends, under plain torch or DeepSpeed 0.19 with
torch's AdamW.

Bytes are those of an *eager* model: each operator reads its arguments from memory and writes its result
there; read from the operators that torch dispatches, and the tests count them again.  U = e s b h bytes is
one tensor of the residual stream, N the number of ranks; other symbols are those of `layers`.
"""

from __future__ import annotations

import math

from ..whole import whole
from .gpt_size import GPTSize, of_gpts
from .zero_config import ELEMENT_BYTES, ZeroConfig

# Bytes of a block's operators in units of U, matrix products and attention left out: of each of two norms, of
# each of two residual additions (backward of two forks), of GELU on four widths.
NORM, ADD, GELU = {"forward": 2, "backward": 3}, {"forward": 3, "backward": 3}, {"forward": 8, "backward": 12}
BIASES = {"forward": 0, "backward": 9}  # the product adds them; their gradients read 3 + 1 + 4 + 1 widths
VIEW = {"forward": 0, "backward": 12}  # gradients of q, k, v: stacked, then copied into their product's order
BLOCK = {name: 2 * NORM[name] + 2 * ADD[name] + GELU[name] + BIASES[name] + VIEW[name] for name in NORM}
ZERO_3_BIASES = 18  # its linear layer adds the bias by itself: reads and writes 3 + 1 + 4 + 1 widths

# Operators that a pass issues: of a block, and of embedding, head and loss together.
BLOCK_OPERATORS, END_OPERATORS = {"forward": 10, "backward": 20}, {"forward": 9, "backward": 12}
ADAM_OPERATORS = 9  # of one tensor, where Adam is not fused
# Of a block that is computed again: all but its last product and its last addition; at stage 3 that product
# too, and four biases.
REPEATED_OPERATORS, ZERO_3_REPEATED_OPERATORS = 8, 13
BLOCK_TENSORS, END_TENSORS = 12, 4  # parameters of a block; the two tables, and the final norm's
BLOCK_MODULES, END_MODULES = 9, 7  # modules whose forward pass DeepSpeed hooks at stage 3
# per fp32 element: read p, g, m, v and write p, m, v once; or in eight operators, one after another
ADAM_BYTES = {"fused": 28, "unfused": 84}
STAGE_0_BUCKET, DDP_BUCKET = 500_000_000, 25 * 2**20  # elements, DeepSpeed's own; bytes, torch's
# What DeepSpeed's hooks, Python alone, take the host in units of an operator, from runs: for each parameter's
# gradient at stages 1 to 3 (1.5 to 2.5), and for each visit to a module at stage 3 (12 to 25).
GRADIENT_HOOK, MODULE_HOOK = 2, 15
MOST_OF_GRADIENT_HOOK, MOST_OF_MODULE_HOOK = 2.5, 25


def block_elementwise_bytes(
    batch: int, sequence: int, width: int, element_bytes: int, zero_3: bool = False
) -> dict[str, int]:
    """Bytes that a block's operators read and write, matrix products and attention left out: {"forward": 18
    U, "backward": 45 U}, at DeepSpeed's stage 3 (`zero_3`) 18 U more in the forward pass."""
    unit = element_bytes * batch * sequence * width
    forward = BLOCK["forward"] + (ZERO_3_BIASES if zero_3 else 0)
    return {"forward": forward * unit, "backward": BLOCK["backward"] * unit}


@of_gpts
def ends_elementwise_bytes(size: GPTSize, batch: int, sequence: int, element_bytes: int) -> dict[str, int]:
    """Bytes of embedding, final norm and loss, the head's product left out.

    With X = s b V logits: forward a copy in fp32 (bf16 only), its log-softmax, 8 X; backward the gradient of
    the chosen scores, 4 X, of the softmax, 12 X, and the copy back.  The tables: 4 U and a norm's 2 U;
    backward 2 U, a norm's 3 U, and 4 e V h for the gradient of the table, which has two sources.
    """
    logits, unit = batch * sequence * size.vocabulary, element_bytes * batch * sequence * size.width
    cast = (element_bytes + 4 if element_bytes == 2 else 0) * logits
    table = element_bytes * size.vocabulary * size.width
    return {
        "forward": cast + 8 * logits + (4 + NORM["forward"]) * unit,
        "backward": 16 * logits + cast + (2 + NORM["backward"]) * unit + 4 * table,
    }


def gradient_copy_bytes(
    parameters: float, config: ZeroConfig | dict, ranks: int = 1, accumulation: int = 1
) -> dict[str, float]:
    """Bytes that a rank moves in its memory for gathering and reducing in a step: {"forward", "backward"}.

    Per element of e bytes.  Stage 0, once: flattened, divided (several ranks) and copied back, 2 e each.
    Stages 1 (once), 2 and 3 (in each micro-batch): into the bucket, divided, flattened (several ranks), 2 e
    each, and twice copied for the partition, 4 e / N.  Stage 3 also 2 e + 3 e / N each time parameters are
    gathered, in both passes.  Stages 0 and 1 add the gradients of each further micro-batch, 3 e.
    Where a bf16 model's gradients are summed in fp32, each micro-batch's are cast and added, 18: stage 1 all
    of them, and 18 more once, to send the sums in bf16; stages 2 and 3 a rank's own.
    """
    config = ZeroConfig.of(config)
    e, several, times = config.element_bytes, ranks > 1, accumulation if config.stage > 1 else 1
    gathered = times * (2 * e + 3 * e / ranks) if config.stage == 3 and several else 0
    reduced = times * ((6 if several or config.stage == 3 else 4) * e + 4 * e / ranks)
    if config.stage == 0:
        reduced = (6 if several else 4) * e if config.dtype == "bf16" or several else 0
    added = 3 * e * (accumulation - 1) if config.stage < 2 else 0
    if config.sums_in_fp32:
        added += 18 * (accumulation + 1 if config.stage == 1 else accumulation / ranks)
    return {"forward": gathered * parameters, "backward": (gathered + reduced + added) * parameters}


def optimizer_bytes(
    parameters: float,
    config: ZeroConfig | dict,
    ranks: int = 1,
    fused: bool = False,
    check_overflow: bool = True,
) -> float:
    """Bytes that `engine.step()` reads and writes on a rank, without clipping: Adam's (`ADAM_BYTES`) and, in
    bf16, 34 for each element at stage 0, 46 for each of the partition's at stages 1 and 2, 42 at stage 3.

    Per element: gradients cast to fp32, parameters cast back, gradients unscaled, their norm, and a look for
    infinities at stages 0 to 2 (`check_overflow`: `bf16.check_grad_overflow`, at stages 1 and 2).
    """
    config = ZeroConfig.of(config)
    e, adam = config.element_bytes, ADAM_BYTES["fused" if fused else "unfused"]
    if config.stage == 0:
        return (adam + (0 if config.dtype == "fp32" else 2 * (e + 4) + 8 + (4 + e) + 4 + 2 * e)) * parameters
    norm = (e + 8) + 8  # in fp64
    cast = (e + 4) if config.dtype == "bf16" else 0
    looked_at = 2 * e if check_overflow and config.stage < 3 else 0
    return (adam + norm + cast + 8 + (4 + e) + 2 * e + looked_at) * parameters / ranks


@of_gpts
def operators(
    size: GPTSize,
    config: ZeroConfig | dict | None,
    ranks: int = 1,
    accumulation: int = 1,
    checkpointing: bool = False,
    fused: bool = False,
    check_overflow: bool = True,
) -> dict[str, int]:
    """Operators, views left out, that the host issues in a step, {pass: number}; each about one kernel.

    DeepSpeed copies each parameter's gradient at stage 0, and visits it by a hook in each micro-batch at
    stages 1 to 3 (`GRADIENT_HOOK`); at stage 3 hooks visit every module in each pass too (`MODULE_HOOK`).
    Its step issues 21 operators for each parameter at stage 0, 16 for each in the partition at stages 1 and 2
    (2 without `check_overflow`), and 2 at stage 3, Adam's own left out.  `config` None is plain torch.
    """
    config = ZeroConfig.of(config) if config is not None else None
    stage, layers = config.stage if config else None, size.layers
    tensors = BLOCK_TENSORS * layers + END_TENSORS
    forward, backward = (layers * BLOCK_OPERATORS[name] + END_OPERATORS[name] for name in BLOCK_OPERATORS)
    if checkpointing:
        backward += layers * (ZERO_3_REPEATED_OPERATORS if stage == 3 else REPEATED_OPERATORS)
    if stage == 3:
        visits = MODULE_HOOK * (BLOCK_MODULES * layers + END_MODULES) + (tensors if ranks > 1 else 0)
        forward += visits + 4 * layers
        backward += visits + (MODULE_HOOK * BLOCK_MODULES * layers if checkpointing else 0)
    issued = {"forward": accumulation * forward, "backward": accumulation * backward}
    if stage is None or (stage == 0 and config.dtype == "fp32"):
        return issued | {"step": 1 if fused else ADAM_OPERATORS * tensors}
    issued["backward"] += tensors if stage == 0 else GRADIENT_HOOK * tensors * accumulation
    if stage < 2:
        issued["backward"] += tensors * (accumulation - 1)  # gradients are added up
    if stage == 0:
        return issued | {"step": (21 + (0 if fused else ADAM_OPERATORS)) * tensors}
    visited = 2 * tensors if stage == 3 else (16 if check_overflow else 2) * tensors / ranks
    return issued | {"step": round(visited + 50 + (1 if fused else ADAM_OPERATORS))}


def step_messages(
    parameters: float,
    layers: int,
    config: ZeroConfig | dict | None,
    ranks: int,
    accumulation: int = 1,
    dtype: str = "bf16",
    modules: int | None = None,
) -> list[tuple[str, str, float, int]]:
    """What a rank sends in a step: [(pass in which it is sent, collective, bytes of all its tensors, number
    of them)]; empty with one rank.

    Plain torch (`config` None, in `dtype`): gradients, all-reduced in buckets of 25 MiB.  Stage 0: the same
    after the backward pass, in buckets of 5e8 elements.  Stages 1 and 2: gradients all-reduced in whole
    buckets (DeepSpeed's default), at stage 2 in each micro-batch, and updated parameters gathered.  Stage 3,
    in each micro-batch: parameters gathered twice, a message per module that has some (`modules`, by default
    a GPT's, `GPTSize.modules`; but DeepSpeed keeps what it needs again within `stage3_max_reuse_distance`,
    and gathers small ones together), and gradients reduce-scattered (the ZeRO paper,
    arXiv 1910.02054, section 7).
    """
    whole(ranks, "ranks")
    whole(accumulation, "accumulation")
    if ranks == 1:
        return []
    config = ZeroConfig.of(config) if config is not None else None
    tensors = (config.element_bytes if config else ELEMENT_BYTES[dtype]) * parameters
    if config is None:
        return [("backward", "all_reduce", tensors, math.ceil(tensors / DDP_BUCKET))]
    if config.stage == 0:
        return [("backward", "all_reduce", tensors, math.ceil(parameters / STAGE_0_BUCKET))]
    times = accumulation if config.stage > 1 else 1
    buckets = math.ceil(parameters / max(config.reduce_bucket_size, 1))
    if config.stage < 3:
        reduced = ("backward", "all_reduce", times * tensors, times * buckets)
        return [reduced, ("step", "all_gather", tensors, 1)]
    gathers = times * (6 * layers + 4 if modules is None else modules)
    return [
        ("forward", "all_gather", times * tensors, gathers),
        ("backward", "all_gather", times * tensors, gathers),
        ("backward", "reduce_scatter", times * tensors, times * buckets),
    ]
