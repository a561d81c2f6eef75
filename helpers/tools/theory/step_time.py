"""The time of one optimizer step, predicted from the model's structure and a machine's few measured
constants.

Work is counted, and each kind of it divided by the one constant that limits it: the products of blocks by the
matrix rate of their size (a roofline each); attention's scores by the rate of fused attention; all else by
memory bandwidth, as bytes: "elementwise" (norms, residuals, GELU, and the gradients of biases and of the view
of q, k, v), "embedding and loss" (with the head's products), "gradients" (what DeepSpeed copies from buckets
to partitions and back, and gathers) and "optimizer" (Adam's bytes, and DeepSpeed's around it).  "messages"
are the alpha-beta time of each collective, as far as no work hides it; "launches" what the device waits for
while the host issues operators, on a CPU the time that issuing takes.

The bytes are those of an *eager* model: each operator reads its arguments from memory and writes its result
there.  They were read from the operators that torch dispatches for the course's GPT under DeepSpeed 0.19, and
the tests count them again.  Of times, only the price of DeepSpeed's hooks, which are Python, was taken from
runs (`GRADIENT_HOOK`, `MODULE_HOOK`); nothing is fitted to a single one.

Symbols are those of `helpers.tools.theory.layers`; U = e s b h bytes is one tensor of the residual stream, N
the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from helpers.tools.theory.checks import whole
from helpers.tools.theory.communication import Pass, collective_seconds
from helpers.tools.theory.deepspeed_config import read
from helpers.tools.theory.layers import Size, gpt_parameters
from helpers.tools.theory.roofline import MachineConstants, matrix_seconds
from helpers.tools.theory.zero_config import ELEMENT_BYTES, ZeroConfig

PARTS = ("matrix products", "attention", "elementwise", "embedding and loss")
PARTS += ("gradients", "optimizer", "messages", "launches")
BUSY = 0.8  # the part of a step in which the device must work for its time to say something about the device
PASSES = ("forward", "backward", "step")

# Bytes of a block's operators in units of U, matrix products and attention left out.
NORM, ADD, GELU = {"forward": 2, "backward": 3}, {"forward": 3, "backward": 3}, {"forward": 8, "backward": 12}
BIASES = {"forward": 0, "backward": 9}  # the product adds them; their gradients read 3 + 1 + 4 + 1 widths
VIEW = {"forward": 0, "backward": 12}  # gradients of q, k, v: stacked, then copied into their product's order
BLOCK = {name: 2 * NORM[name] + 2 * ADD[name] + GELU[name] + BIASES[name] + VIEW[name] for name in NORM}
ZERO_3_BIASES = 18  # DeepSpeed's linear layer adds the bias by itself: reads and writes 3 + 1 + 4 + 1 widths

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
# Hooks of DeepSpeed are Python alone; in units of an operator inside a model's passes they take the host
# about: for each parameter's gradient at stages 1 to 3 (1.5 to 2.5 where it was looked at), and for each
# visit to a module at stage 3, which gathers and releases (12 to 25).
GRADIENT_HOOK, MODULE_HOOK = 2, 15


@dataclass(frozen=True)
class StepTime:
    """The predicted time of an optimizer step on one rank.

    Attributes:
        parts: {part: seconds}, the names in `PARTS`; they sum to `total`.
        hidden: seconds of messages that go on behind the work, beside those in `parts`.
        operators: that the host issues, hooks counted as operators.
        host: seconds that issuing them takes.
    """

    parts: dict[str, float]
    hidden: float
    operators: int
    host: float

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(self.parts.values())

    @property
    def work_share(self) -> float:
        """The part of the step in which the device works; a message with no work beside it is not work."""
        return 1 - (self.parts["launches"] + self.parts["messages"]) / self.total

    @property
    def launch_bound(self) -> bool:
        """Whether the device does not work for a fifth of the step or more, and rather for its host than for
        messages: then the step's time says little about the device."""
        return self.work_share < BUSY and self.parts["launches"] > self.parts["messages"]


def block_elementwise_bytes(
    batch: int, sequence: int, width: int, element_bytes: int, zero_3: bool = False
) -> dict[str, int]:
    """Bytes that a block's operators read and write, matrix products and attention left out: {"forward": 18
    U, "backward": 45 U}.

    Forward: two norms (2 U each), two residual additions (3 U), GELU on four widths (8 U).  Backward: norms
    (3 U), the sum of gradients at each of the two forks (3 U), GELU (12 U), the gradients of biases (9 U),
    and of the view of q, k and v (12 U).  At DeepSpeed's stage 3 (`zero_3`), whose linear layers add their
    biases separately, 18 U more in the forward pass.
    """
    unit = element_bytes * batch * sequence * width
    return {
        "forward": (BLOCK["forward"] + (ZERO_3_BIASES if zero_3 else 0)) * unit,
        "backward": BLOCK["backward"] * unit,
    }


def ends_elementwise_bytes(size: Size, batch: int, sequence: int, element_bytes: int) -> dict[str, int]:
    """Bytes of embedding, final norm and loss, the head's product left out.

    With X = s b V logits: forward a copy in fp32 (bf16 only), its log-softmax, 8 X; backward the gradient of
    the chosen scores, 4 X, of the softmax, 12 X, and the copy back; 36 X in all in bf16.  The tables: 4 U and
    a norm's 2 U; backward 2 U, a norm's 3 U, and 4 e V h for the gradient of the table, which has two
    sources.
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
    """Bytes that DeepSpeed 0.19 moves inside a rank's memory for gathering and reducing, in one step:
    {"forward", "backward"}.

    Per element of e bytes.  Stage 0, once: flattened, divided (several ranks) and copied back, 2 e each.
    Stages 1 (once) and 2 (in each micro-batch): into the bucket, divided, flattened (several ranks), 2 e
    each, and twice copied for the partition, 4 e / N.  Stage 3, in each micro-batch: the same; and 2 e + 3 e
    / N each time parameters are gathered, in the forward and in the backward pass.  Stages 0 and 1 add
    the gradients of each further micro-batch, 3 e.
    """
    config = ZeroConfig.of(config)
    e, several = config.element_bytes, ranks > 1
    gathered = accumulation * (2 * e + 3 * e / ranks) if config.stage == 3 and several else 0
    if config.stage == 0:
        reduced = (6 if several else 4) * e if config.dtype == "bf16" or several else 0
    else:
        times = 1 if config.stage == 1 else accumulation
        reduced = times * ((6 if several or config.stage == 3 else 4) * e + 4 * e / ranks)
    added = 3 * e * (accumulation - 1) if config.stage < 2 else 0
    return {"forward": gathered * parameters, "backward": (gathered + reduced + added) * parameters}


def optimizer_bytes(
    parameters: float,
    config: ZeroConfig | dict,
    ranks: int = 1,
    fused: bool = False,
    check_overflow: bool = True,
) -> float:
    """Bytes that `engine.step()` of DeepSpeed 0.19 reads and writes on a rank, with torch's AdamW and without
    clipping.

    Adam moves 28 bytes per fp32 element of what the rank updates if it is `fused`, one kernel for all of it,
    84 in separate operators.  Around it, per element of e bytes (bf16): gradients cast to fp32, parameters
    cast back, gradients unscaled, their norm, and a look for infinities at stages 0 to 2.  Stage 0: 34 bytes
    for each element in bf16, none in fp32; stages 1 and 2: 46 for each of the partition's; stage 3: 42.

    Args:
        parameters: of the whole model.
        check_overflow: `bf16.check_grad_overflow`, DeepSpeed's default; matters at stages 1 and 2.
    """
    config = ZeroConfig.of(config)
    e, adam = config.element_bytes, ADAM_BYTES["fused" if fused else "unfused"]
    if config.stage == 0:
        return (adam + (0 if config.dtype == "fp32" else 2 * (e + 4) + 8 + (4 + e) + 4 + 2 * e)) * parameters
    norm = (e + 8) + 8  # in fp64
    cast = (e + 4) if config.dtype == "bf16" else 0
    looked_at = 2 * e if check_overflow and config.stage < 3 else 0
    return (adam + norm + cast + 8 + (4 + e) + 2 * e + looked_at) * parameters / ranks


def operators(
    size: Size,
    config: ZeroConfig | dict | None,
    ranks: int = 1,
    accumulation: int = 1,
    checkpointing: bool = False,
    fused: bool = False,
    check_overflow: bool = True,
) -> dict[str, int]:
    """Operators that the host issues in a step, {pass: number}; each is about one kernel on a GPU, views left
    out.

    A block issues 10 forward and 20 backward (8 more where it is computed again, 13 at stage 3).  DeepSpeed
    copies each parameter's gradient at stage 0, and visits it by a hook in each micro-batch at stages 1 to 3,
    which counts as `GRADIENT_HOOK`; at stage 3 hooks visit every module in each pass too, and each visit
    counts as `MODULE_HOOK`.  Its step issues 21 operators for each parameter at stage 0, 16 for each in the
    partition at stages 1 and 2 (2 without `check_overflow`), and 2 for each at stage 3, Adam's own left out.
    Arguments as in `step_seconds`; `config` None is plain torch.
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
    adam = 1 if fused else ADAM_OPERATORS
    if stage is None or (stage == 0 and config.dtype == "fp32"):
        return issued | {"step": 1 if fused else adam * tensors}
    issued["backward"] += tensors if stage == 0 else GRADIENT_HOOK * tensors * accumulation
    if stage < 2:
        issued["backward"] += tensors * (accumulation - 1)  # gradients are added up
    if stage == 0:
        return issued | {"step": (21 + (0 if fused else adam)) * tensors}
    visited = 2 * tensors if stage == 3 else (16 if check_overflow else 2) * tensors / ranks
    return issued | {"step": round(visited + 50 + adam)}


def step_messages(
    parameters: float,
    layers: int,
    config: ZeroConfig | dict | None,
    ranks: int,
    accumulation: int = 1,
    dtype: str = "bf16",
) -> list[tuple[str, str, float, int]]:
    """What a rank sends in a step: [(pass in which it is sent, collective, bytes of all its tensors, number
    of them)]; empty with one rank.

    Plain torch (DDP): gradients, all-reduced in buckets of 25 MiB.  Stage 0: the same after the backward
    pass, in buckets of 5e8 elements.  Stages 1 and 2: gradients all-reduced in whole buckets (DeepSpeed's
    default), at stage 2 in each micro-batch, and updated parameters gathered.  Stage 3, in each micro-batch:
    parameters gathered twice, a message per module that has some, and gradients reduce-scattered.  (DeepSpeed
    gathers once what it needs again within `stage3_max_reuse_distance`, by default 1e9 elements: all of a
    small model.)  Rajbhandari et al., ZeRO, arXiv 1910.02054, section 7, and DeepSpeed 0.19's source.

    Args:
        config: None is plain torch, in `dtype`.
    """
    whole(ranks=ranks, accumulation=accumulation)
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
        return [
            ("backward", "all_reduce", times * tensors, times * buckets),
            ("step", "all_gather", tensors, 1),
        ]
    gathers = times * (6 * layers + 4)  # of a block: two norms, four linear layers
    return [
        ("forward", "all_gather", times * tensors, gathers),
        ("backward", "all_gather", times * tensors, gathers),
        ("backward", "reduce_scatter", times * tensors, times * buckets),
    ]


def step_seconds(
    size: Size,
    machine: MachineConstants,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    config: ZeroConfig | dict | None = None,
    ranks: int = 1,
    accumulation: int | None = None,
    checkpointing: bool = False,
    fused: bool | None = None,
    check_overflow: bool | None = None,
    dtype: str = "bf16",
) -> StepTime:
    """The time of one optimizer step of the course's GPT on each of `ranks` ranks, with torch's AdamW.

    Device and host work at the same time on a GPU: of the forward passes, the backward passes and the step
    each takes as long as the slower of the two, and what the device waits is the part "launches".  On a CPU
    the two add up.  Messages are hidden behind the pass that they belong to (`Pass`): with DDP behind the
    backward pass, and with `overlap_comm` at stages 1 and 2; at stage 3, where parameters are gathered ahead,
    behind both passes.

    Args:
        machine: its `MachineConstants`.
        batch: b, sequences of a micro-batch on each rank; by default the configuration's.
        sequence: s, tokens of each; by default the model's context.
        config: a `ZeroConfig` or DeepSpeed's configuration, a dict; None is plain torch, with DDP where there
            are several ranks, all in `dtype`.
        accumulation: micro-batches of a step; by default the configuration's, or 1.
        checkpointing: every block is computed again in the backward pass, but for its last product (not so at
            stage 3); the head is not.
        fused, check_overflow: as in `optimizer_bytes`; by default what the configuration says, or False and
            True.
        dtype: "bf16" or "fp32", without a `config`.

    Raises:
        ValueError: where the constants lack what is asked for, a rate for the dtype or a bandwidth for
            several ranks; for a configuration that the formulas do not cover (offload, fp16).
    """
    if config is not None and not isinstance(config, ZeroConfig):
        known = read(config, ranks=ranks, micro_batch=batch, accumulation=accumulation)
        batch, accumulation = known.micro_batch, known.accumulation
        params = known.deepspeed.optimizer_params or {}
        fused = bool(params.get("fused")) if fused is None else fused
        if check_overflow is None:
            check_overflow = known.deepspeed.bfloat16_config.check_grad_overflow
        config = ZeroConfig.of(known)
    if batch is None:
        raise ValueError(
            "say how large a micro-batch is: batch=, or train_micro_batch_size_per_gpu in "
            "DeepSpeed's configuration"
        )
    accumulation = 1 if accumulation is None else accumulation
    check_overflow = True if check_overflow is None else check_overflow
    if min(batch, ranks, accumulation) < 1:
        raise ValueError(
            f"batch, ranks and accumulation must be at least 1, not {batch!r}, {ranks!r} and {accumulation!r}"
        )
    machine.check_bandwidth(ranks)
    sequence = sequence or size.context
    dtype = config.dtype if config else dtype
    parameters = gpt_parameters(size)
    zero_3 = config is not None and config.stage == 3
    work = _passes(size, machine, batch, sequence, dtype, accumulation, checkpointing, zero_3)
    if config is None:
        copies = {"backward": 3 * ELEMENT_BYTES[dtype] * parameters * (accumulation - 1)}
        adam = ADAM_BYTES["fused" if fused else "unfused"] * ELEMENT_BYTES[dtype] / 4 * parameters
    else:
        copies = gradient_copy_bytes(parameters, config, ranks, accumulation)
        adam = optimizer_bytes(parameters, config, ranks, fused, check_overflow)
    for name, moved in copies.items():
        work[name]["gradients"] = moved / machine.memory
    work["step"]["optimizer"] = adam / machine.memory
    sent = step_messages(parameters, size.layers, config, ranks, accumulation, dtype)
    issued = operators(size, config, ranks, accumulation, checkpointing, fused, check_overflow)
    each = dict.fromkeys(("forward", "backward"), machine.call or machine.launch) | {"step": machine.launch}
    waiting, hidden, host = 0.0, 0.0, {name: issued[name] * each[name] for name in PASSES}
    for name in PASSES:
        messages = _message_seconds([of_pass for of_pass in sent if of_pass[0] == name], machine, ranks)
        done = Pass(sum(work[name].values()), messages, hides=name in _overlaps(config))
        work[name]["messages"] = done.exposed
        hidden += done.hidden
        waiting += max(0.0, host[name] - done.total) if machine.asynchronous else host[name]
    parts = {part: sum(work[name].get(part, 0.0) for name in PASSES) for part in PARTS[:-1]}
    return StepTime({**parts, "launches": waiting}, hidden, sum(issued.values()), sum(host.values()))


def _passes(size, machine, batch, sequence, dtype, accumulation, checkpointing, zero_3):
    """{pass: {part: seconds}} of the model's own work on one rank; what is computed again belongs to the
    backward pass.

    torch's checkpointing stops computing again where the last tensor is saved: before a block's last product,
    whose result is added and not kept. DeepSpeed's linear layer at stage 3 saves its arguments only after
    that product.
    """
    tokens, h, element = batch * sequence, size.width, ELEMENT_BYTES[dtype]
    shapes = ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))
    layers = [matrix_seconds(tokens, inner, columns, machine, dtype) for inner, columns in shapes]
    products, repeated = sum(layers), sum(layers if zero_3 else layers[:-1])
    head = matrix_seconds(tokens, h, size.vocabulary, machine, dtype)
    # half of the scores; backward five products instead of two (arXiv 2205.14135)
    scores = 2 * batch * sequence**2 * h / machine.attention_rate(dtype)
    moved = block_elementwise_bytes(batch, sequence, h, element, zero_3)
    ends = ends_elementwise_bytes(size, batch, sequence, element)
    moved_again = moved["forward"] - ADD["forward"] * element * tokens * h
    blocks, work = accumulation * size.layers, {"step": {}}
    for name, times, attentions in (("forward", 1, 1), ("backward", 2, 2.5)):
        again = checkpointing and name == "backward"
        work[name] = {
            "matrix products": blocks * (times * products + again * repeated),
            "attention": blocks * (attentions + again) * scores,
            "elementwise": blocks * (moved[name] + again * moved_again) / machine.memory,
            "embedding and loss": accumulation * (times * head + ends[name] / machine.memory),
        }
    return work


def _overlaps(config):
    """The passes behind whose work messages are hidden."""
    if config is None:
        return ("backward",)
    if config.stage == 3:
        return () if config.overlap_comm is False else ("forward", "backward")
    return ("backward",) if config.stage and config.overlap_comm else ()


def _message_seconds(sent, machine, ranks):
    """Seconds of messages, as `step_messages` gives them, one after another."""
    return sum(
        number * collective_seconds(collective, size / number, ranks, machine.latency, machine.bandwidth)
        for _, collective, size, number in sent
    )
