"""A step of the job by formulas: bytes of the fullest GPU at each moment that competes for the peak, by the
names of `job_bars`, and seconds by part.

Bytes are those of `theory`, with DeepSpeed's own Adam and the job's bucket.  A test compares bytes and
seconds with every rehearsed plan of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from helpers import theory
from helpers.course.job.reference import SEQUENCE
from helpers.course.play.llama_seconds import COUNTS, MACHINE, SIZE, TOKENS, configured, passes
from helpers.course.plots.budget import OUTSIDE
from helpers.tools.rehearsal.reserving import OUTSIDE as OUTSIDE_BYTES
from helpers.tools.rehearsal.seconds import REACHED
from helpers.tools.theory.layers import BF16, FP32
from helpers.tools.theory.model_states import partition
from helpers.tools.theory.plan import AT_ONCE

MOMENTS = ("at the loss", "at the end of the backward pass", "in the optimizer's step")
PARTS = ("work", "computed again", "messages")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A way to take the step: `checkpointed` blocks keep their input alone, `sums` are of gradients."""

    stage: int
    gpus: int
    micro: int
    checkpointed: int
    sums: str
    sequence: int

    @property
    def micro_batches(self) -> int:
        """Of a step, on each GPU; 0 where the tokens of a step are not a whole number of them."""
        whole, rest = divmod(TOKENS, self.gpus * self.micro * self.sequence)
        return 0 if rest else whole

    @property
    def config(self) -> theory.ZeroConfig:
        return configured(self.stage, self.sums)

    @property
    def share(self) -> float:
        """Of blocks that are checkpointed."""
        return self.checkpointed / SIZE.layers

    def moments(self) -> list[dict[str, float]]:
        """{name: bytes} at each of `MOMENTS`; a later micro-batch holds most where there are several."""
        at_loss = "between micro-batches" if self.micro_batches > 1 else "after step"
        loss = states(self.stage, self.gpus, self.sums, at_loss) | self.activations()
        if self.stage == 3:
            loss |= {"gathered weights": gathered(self.gpus)}
        after = states(self.stage, self.gpus, self.sums, "after backward")
        backward = dict(after)
        if self.stage == 1 and self.sums == "fp32" and self.gpus > 1:
            backward["copy to be sent"] = BF16 * sum(COUNTS)  # of all gradients, in bf16 beside the sums
        return [loss, backward, after | self.stepping(after)]

    def activations(self) -> dict[str, float]:
        """What the forward pass keeps, and the logits three times, in fp32, as the loss runs backward."""
        shape = SIZE, self.micro, self.sequence, BF16
        logits = FP32 * self.micro * self.sequence * SIZE.vocabulary
        every = theory.gpt_activation_bytes(*shape, device="cuda")
        least = theory.checkpointed_activation_bytes(*shape, device="cuda")
        return {"activations": every - self.share * (every - least) - logits, "logits": 3 * logits}

    def stepping(self, held: dict[str, float]) -> dict[str, float]:
        """What the optimizer's step makes of gradients before Adam's one kernel."""
        if self.stage == 0:
            return {"gradients in fp32": FP32 * sum(COUNTS), "flattened gradients": FP32 * sum(COUNTS)}
        part, pieces = partition(COUNTS, self.gpus, theory.fullest_rank(COUNTS, self.gpus))
        at_once = part if self.stage < 3 else min(part, AT_ONCE)
        if self.sums == "bf16":
            return {"flattened gradients": BF16 * at_once, "gradients in fp32": FP32 * at_once}
        if self.stage == 3:
            return {"flattened gradients": FP32 * at_once}
        return {"norm in fp64": 8 * max(pieces.values())}

    def seconds(self) -> dict[str, float]:
        """{part: seconds} of a step at the fastest: at stage 3 messages hide behind work.  Work that takes
        1 / `REACHED` as long, with nothing hidden, is the slowest."""
        tokens, times = self.micro * self.sequence, self.micro_batches
        once, again = (times * time for time in passes(tokens, self.sequence, self.stage == 3))
        copies = theory.gradient_copy_bytes(sum(COUNTS), self.config, self.gpus, times)
        moved = sum(copies.values()) + theory.optimizer_bytes(sum(COUNTS), self.config, self.gpus, fused=True)
        work = once + moved / MACHINE.memory
        sent = self.messages()
        hidden = min(sent, work) if self.stage == 3 else 0.0
        return {"work": work, "computed again": self.share * again, "messages": sent - hidden}

    def slowest(self) -> float:
        """Seconds."""
        fastest = self.seconds()
        return (fastest["work"] + fastest["computed again"]) / REACHED + self.messages()

    def messages(self) -> float:
        """Seconds of all, by themselves."""
        cluster = theory.reference_cluster(max(1, self.gpus // 8), inside=MACHINE.bandwidth)
        sent = theory.step_messages(
            sum(COUNTS), SIZE.layers, self.config, self.gpus, self.micro_batches, modules=SIZE.modules
        )
        link = cluster.bandwidth(self.gpus) if self.gpus > 1 else 0.0
        return sum(theory.wire_bytes(how, size, self.gpus) / link for _, how, size, _ in sent)


@cache
def states(stage: int, gpus: int, sums: str, moment: str) -> dict[str, float]:
    """Of the fullest rank, and what lies outside of the allocator."""
    job = {"ranks": gpus, "rank": theory.fullest_rank(COUNTS, gpus), "moment": moment, "device": "cuda"}
    held = theory.deepspeed_bytes(COUNTS, configured(stage, sums), **job)
    return {"bucket" if name == "buffers" else name: size for name, size in held.items()} | {
        OUTSIDE: OUTSIDE_BYTES
    }


@cache
def gathered(gpus: int) -> float:
    """Bytes of parameters that ZeRO-3 has gathered at the loss."""
    own = states(3, gpus, "bf16", "between micro-batches")["parameters"]
    place = {"ranks": gpus, "micro_batches": 2, "checkpointed": True}
    return theory.llama_moments(SIZE, 1, SEQUENCE, configured(3, "bf16"), **place)["loss"]["parameters"] - own
