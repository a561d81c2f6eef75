"""The time of one optimizer step, predicted from the model's structure and a machine's few measured
constants.

Work is counted (`step_counts`), and each kind of it divided by the one constant that limits it: the products
of blocks by the matrix rate of their size (a roofline each); attention's scores by the rate of fused
attention; all else by memory bandwidth: "elementwise" (norms, residuals, GELU, gradients of biases and of the
view of q, k, v), "embedding and loss" (with the head's products), "gradients" (what DeepSpeed copies and
gathers) and "optimizer".  "messages" are the alpha-beta time of each collective, as far as no work hides it;
"launches" what the device waits for while the host issues operators, on a CPU the time that issuing takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..whole import whole
from .communication import Pass, collective_seconds
from .deepspeed_config import read
from .gpt_size import GPTSize, of_gpts
from .layers import gpt_parameters
from .roofline import MachineConstants, matrix_seconds
from .step_counts import (
    ADAM_BYTES,
    ADD,
    block_elementwise_bytes,
    ends_elementwise_bytes,
    gradient_copy_bytes,
    operators,
    optimizer_bytes,
    step_messages,
)
from .zero_config import ELEMENT_BYTES, ZeroConfig

PARTS = ("matrix products", "attention", "elementwise", "embedding and loss")
PARTS += ("gradients", "optimizer", "messages", "launches")
BUSY = 0.8  # the part of a step in which the device must work for its time to say something about the device
PASSES = ("forward", "backward", "step")


@dataclass(frozen=True)
class PassTime(Pass):
    """A pass of a step on one rank, in seconds: its messages by collective, and what the device waits for."""

    sent: dict[str, float] = field(default_factory=dict)  # {collective: seconds}, which sum to `messages`
    # beside these: for the host to issue operators, and for messages of other axes, which never hide
    waiting: float = 0.0


@dataclass(frozen=True)
class StepTime:
    """The predicted time of an optimizer step on one rank."""

    passes: dict[str, PassTime]  # {"forward", "backward", "step": its time}
    parts: dict[str, float]  # {part: seconds}, the names in `PARTS`; they sum to `total`
    hidden: float  # seconds of messages that go on behind the work, beside those in `parts`
    operators: int  # that the host issues, hooks counted as operators
    host: float  # seconds that issuing them takes

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
        """Whether the device waits for a fifth of the step or more, and for its host more than for messages:
        then the step's time says little about the device."""
        return self.work_share < BUSY and self.parts["launches"] > self.parts["messages"]


@of_gpts
def step_seconds(
    size: GPTSize,
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
    """The time of one optimizer step of the course's GPT on each rank, with torch's AdamW.

    Device and host work at the same time on a GPU: of the forward passes, the backward passes and the step
    each takes as long as the slower of the two.  On a CPU the two add up.  Messages are hidden behind the
    pass that they belong to (`Pass`): with DDP behind the backward pass, and with `overlap_comm` at stages 1
    and 2; at stage 3, where parameters are gathered ahead, behind both passes.

    Args:
        batch: sequences of a micro-batch on each rank; by default the configuration's.
        sequence: tokens of each; by default the model's context.
        config: None is plain torch in `dtype`, with DDP where there are several ranks.
        accumulation: micro-batches of a step; by default the configuration's, or 1.
        checkpointing: every block is computed again in the backward pass, but for its last product (not so at
            stage 3); the head is not.
        fused, check_overflow: as in `optimizer_bytes`; by default the configuration's, or False and True.
    """
    if config is not None and not isinstance(config, ZeroConfig):
        known = read(config, ranks=ranks, micro_batch=batch, accumulation=accumulation)
        batch, accumulation = known.micro_batch, known.accumulation
        params = known.deepspeed.optimizer_params or {}
        fused = bool(params.get("fused")) if fused is None else fused
        looks = known.deepspeed.bfloat16_config.check_grad_overflow
        check_overflow = looks if check_overflow is None else check_overflow
        config = ZeroConfig.of(known)
    if batch is None:
        key = "train_micro_batch_size_per_gpu in DeepSpeed's configuration"
        raise ValueError(f"say how large a micro-batch is: batch=, or {key}")
    accumulation = 1 if accumulation is None else accumulation
    for name, number in {"batch": batch, "ranks": ranks, "accumulation": accumulation}.items():
        whole(number, name)
    machine.check_bandwidth(ranks)
    dtype, parameters = config.dtype if config else dtype, gpt_parameters(size)
    zero_3 = config is not None and config.stage == 3
    shape, check_overflow = (batch, sequence or size.context), check_overflow is not False
    work = _passes(size, machine, *shape, dtype, accumulation, checkpointing, zero_3)
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
    passes, host = {}, 0.0
    for name in PASSES:
        taken: dict[str, float] = {}
        for _, collective, moved, number in (message for message in sent if message[0] == name):
            each = collective_seconds(collective, moved / number, ranks, machine.latency, machine.bandwidth)
            taken[collective] = taken.get(collective, 0.0) + number * each
        done = Pass(sum(work[name].values()), sum(taken.values()), hides=name in _hiding(config))
        issuing = issued[name] * (machine.launch if name == "step" else machine.call or machine.launch)
        waiting = max(0.0, issuing - done.total) if machine.asynchronous else issuing
        passes[name] = PassTime(done.work, done.messages, done.hides, taken, waiting)
        host += issuing
    parts = {part: sum(work[name].get(part, 0.0) for name in PASSES) for part in PARTS[:-2]}
    parts["messages"] = sum(one.exposed for one in passes.values())
    parts["launches"] = sum(one.waiting for one in passes.values())
    hidden = sum(one.hidden for one in passes.values())
    return StepTime(passes, parts, hidden, sum(issued.values()), host)


def _passes(size, machine, batch, sequence, dtype, accumulation, checkpointing, zero_3):
    """{pass: {part: seconds}} of a rank's own work; what is computed again belongs to the backward pass.

    torch's checkpointing stops where the last tensor is saved: before a block's last product, whose result is
    added and not kept. DeepSpeed's linear layer at stage 3 saves its arguments only after that product.
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


def _hiding(config):
    return ("backward",) if config is None else hiding_passes(config.stage, config.overlap_comm)


def hiding_passes(stage: int, overlap_comm: bool) -> tuple[str, ...]:
    """The passes behind whose work DeepSpeed's ZeRO hides messages, with its key `overlap_comm`."""
    if not stage or not overlap_comm:
        return ()
    return ("forward", "backward") if stage == 3 else ("backward",)
