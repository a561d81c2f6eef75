"""The job's step by data parallelism on 8 to 64 GPUs: passes and update rehearsed, messages computed.

We pretend that it fits on a card, which it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from helpers.course.job.reference import EACH, MODELS, SEQUENCES
from helpers.course.job.stored import states, step_times
from helpers.tools import theory

NVLINK = 300e9  # bytes per second, one way: of the reference host, by its whole path
ADDS_ROWS = 0.01  # of a backward pass: the embedding's, which only adds rows up


@dataclass(frozen=True)
class Pass:
    """A backward pass whose gradients leave layer by layer.

    Attributes:
        work: seconds of the pass.
        layers: (name, begin and end of its work, begin and end of its message), in order.
    """

    work: float
    layers: tuple[tuple[str, float, float, float, float], ...]

    @property
    def ready(self) -> list[float]:
        """When each layer's gradients are finished, in seconds since the pass began."""
        return [ready for _, _, ready, _, _ in self.layers]

    @property
    def sending(self) -> list[float]:
        """Seconds of each layer's message."""
        return [end - begin for *_, begin, end in self.layers]

    @property
    def message(self) -> float:
        """Seconds of all messages."""
        return sum(self.sending)

    @property
    def exposed(self) -> float:
        """Seconds of messages after the work."""
        return max(0.0, self.layers[-1][-1] - self.work)


def gradient_bytes() -> float:
    """Of the whole model, in bf16."""
    return states("stage 0")["gradients"]


def layers() -> list[tuple[str, float]]:
    """(name, bytes of its gradients) in the order in which a backward pass finishes them."""
    shape = MODELS["8 B"]
    table, count = 2 * shape["vocab_size"] * shape["hidden_size"], shape["num_hidden_layers"]
    block = (gradient_bytes() - 2 * table) / count
    return [("head", table), *((str(at), block) for at in range(count, 0, -1)), ("embedding", table)]


@cache
def step_parts() -> dict[str, float]:
    """Seconds of one micro-batch's passes, of one sequence, and of the update, at the fastest."""
    passes = step_times("stage 0")[0].passes
    each = {name: passes[name].work / (SEQUENCES // EACH) for name in ("forward", "backward")}
    return each | {"update": passes["step"].work}


def last_pass(ranks: int, bandwidth: float) -> Pass:
    """The last backward pass on so many GPUs, whose slowest link carries so many bytes per second.

    Each layer's gradients leave when they are finished and the link is free.  Layers take time by their
    parameters and FLOPs, except the embedding; the head is not computed again, as the blocks are.
    """
    work, sizes = step_parts()["backward"], layers()
    flops = {name: size * (4 if name == "head" else 6) for name, size in sizes[:-1]}
    share = {name: (1 - ADDS_ROWS) * one / sum(flops.values()) for name, one in flops.items()}
    now, free, found = 0.0, 0.0, []
    for name, size in sizes:
        ready = now + share.get(name, ADDS_ROWS) * work
        begin = max(ready, free)
        free = begin + theory.wire_bytes("all_reduce", size, ranks) / bandwidth
        found.append((name, now, ready, begin, free))
        now = ready
    return Pass(work, tuple(found))


def replicated_step(
    gpus: int, bandwidth: float = NVLINK, way: str = "in buckets", sequences: int = SEQUENCES
) -> dict[str, float]:
    """Seconds of a step by part: "work", "update", "exposed" and "hidden" messages.

    Args:
        bandwidth: of the slowest link in a GPU's ring, in bytes per second; on one host it is NVLink's.
        way: "at the end" of the step, "in buckets" during its last backward pass, or "in every micro-batch".
        sequences: of a step, one in each micro-batch.
    """
    found, passes = step_parts(), last_pass(gpus, NVLINK if gpus <= EACH else bandwidth)
    count = sequences / gpus
    late, sent = {
        "at the end": (passes.message, passes.message),
        "in buckets": (passes.exposed, passes.message),
        "in every micro-batch": (count * passes.exposed, count * passes.message),
    }[way]
    work = count * (found["forward"] + found["backward"])
    return {"work": work, "update": found["update"], "exposed": late, "hidden": sent - late}
