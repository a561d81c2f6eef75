"""How long a step takes that was rehearsed, as a range; what so many tokens take and cost.

Work was counted operator by operator (`working`); the constants of a card and the account of time are
theory's (`MACHINES`, `StepTime`).  At the fastest every operator reaches its constant, messages hide behind
work as far as DeepSpeed lets them, and the host issues operators as quickly as in a loop of nothing else.  At
the slowest a GPU reaches `REACHED` of its constants, nothing hides, and the host is as slow as in a model's
passes, DeepSpeed's hooks included.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..measure.operations import OPERATIONS, Message
from ..theory.communication import Pass, collective_seconds
from ..theory.deepspeed_config import read
from ..theory.hardware import HARDWARE, Cluster
from ..theory.known_machines import MACHINES
from ..theory.roofline import MachineConstants, matrix_seconds
from ..theory.step_counts import MOST_OF_GRADIENT_HOOK, MOST_OF_MODULE_HOOK
from ..theory.step_time import PASSES, PassTime, StepTime, hiding_passes
from .cards import card
from .refusing import BadQuestion
from .working import ATTENTION, ISSUED, MOVED, PRODUCT, VISITED

if TYPE_CHECKING:
    from .question import Question

# What GPUs at work reached of their constants in recorded steps: 0.83 (stage 3 on two H200) to 0.99.
REACHED = 0.83
NEEDED = 3  # units of a forward pass: backward is two
OFFLOADED = "seconds are not told with offload: what passes between GPU and host was not recorded"


@dataclass(frozen=True)
class Seconds:
    """A step's seconds on the rank that was rehearsed.

    Attributes:
        fastest, slowest: the step by its parts.
        computing: of the GPU's work, every operator at its constant.
        messages: {operation, and with several axes along which, as "all_reduce, tensor": seconds}, by
            themselves.
        needed: FLOPs that the step needs, what is computed again left out; None where a part is frozen.
        constants: the name of those that were taken.
    """

    fastest: StepTime
    slowest: StepTime
    computing: float
    messages: dict[str, float]
    needed: float | None
    constants: str

    @property
    def both(self) -> tuple[float, float]:
        """Seconds at the fastest and at the slowest."""
        return self.fastest.total, self.slowest.total

    def as_data(self) -> dict:
        """Plain data, times in seconds; "may_hide" are messages, "host" is waiting for the host at most."""
        return {
            **{"fastest": self.fastest.total, "slowest": self.slowest.total, "computing": self.computing},
            **{"messages": self.messages, "may_hide": self.fastest.hidden},
            **{"host": self.slowest.parts["launches"], "constants": self.constants},
        }


def seconds(
    asked: Question, report: Mapping, gpu: str, gpus_per_host: int = 8, host_network: float | None = None
) -> Seconds:
    """The seconds of a step of a rehearsed rank.

    Args:
        asked, report: the question, and what `fitting.two_steps` returned for it.
        gpu: a card's name, as `cards.card` takes it.
        host_network: bytes per second, one way, from a host to others; by default each GPU's card of
            `HARDWARE`.

    Raises:
        BadQuestion, UnknownCard: no constants are known for this GPU, or a part of the training is offloaded.
    """
    name, work = known_as(gpu), report["work"]
    if asked.is_offloaded:
        raise BadQuestion(OFFLOADED)
    machine = MACHINES[name]
    link = host_network / gpus_per_host if host_network else HARDWARE[name]["card"].value
    cluster = Cluster(
        **{"gpus": asked.ranks, "memory": card(gpu).memory, "rate": machine.peak(), "link": link},
        **{"inside": machine.bandwidth, "host": gpus_per_host},
    )
    sent = {place: message_seconds(asked, work[place], cluster, machine) for place in PASSES}
    done = {place: computing(work[place], machine) for place in PASSES}
    less = {place: {part: time / REACHED for part, time in done[place].items()} for place in PASSES}
    issued = {place: work[place].get((ISSUED,), 0) for place in PASSES}
    hooked = hooks(asked, report)
    quick = {place: machine.launch * issued[place] for place in PASSES}
    slow = {place: machine.call * (issued[place] + hooked[place]) for place in PASSES}
    hiding = hiding_passes(asked.stage, read(asked.config).zero.overlap_comm)
    messages = Counter()
    for (operation, _), time in itertools.chain(*(sent[place].items() for place in PASSES)):
        messages[operation] += time
    return Seconds(
        fastest=step(done, sent, quick, sum(issued.values()), hiding),
        slowest=step(less, sent, slow, sum(issued.values()), ()),
        computing=sum(sum(parts.values()) for parts in done.values()),
        messages=dict(messages),
        needed=None if report["kinds"]["frozen"] else NEEDED * flops(work["forward"]),
        constants=machine.name,
    )


def known_as(gpu: str) -> str:
    """The name in `MACHINES` of a card; a BadQuestion where there are no constants of it."""
    found = card(gpu).name
    for name in MACHINES:
        if found.startswith(name):
            return name
    known = ", ".join(card(name).name for name in MACHINES)
    raise BadQuestion(f"seconds are unknown: no constants are known of {found}, only of {known}")


def computing(counts: Mapping, machine: MachineConstants) -> dict[str, float]:
    """{part: seconds} of a pass in which a GPU works, every operator at its constant."""
    parts = dict.fromkeys(("matrix products", "attention", "elementwise"), 0.0)
    for what, number in counts.items():
        if isinstance(what, Message):
            continue
        kind, *of = what
        if kind == PRODUCT:
            *sides, dtype = of
            parts["matrix products"] += number * matrix_seconds(*sides, machine, dtype)
        elif kind == ATTENTION:
            size, dtype, causal = of
            parts["attention"] += number / (2 if causal else 1) / machine.attention_rate(dtype, size)
        elif kind == MOVED:
            parts["elementwise"] += number / machine.memory
    return parts


def flops(counts: Mapping) -> float:
    """FLOPs of a pass: products and attention, all scores, as `theory.flops_per_token` counts them."""
    found = 0.0
    for what, number in counts.items():
        if not isinstance(what, Message) and what[0] in (PRODUCT, ATTENTION):
            found += number * (2 * math.prod(what[1:4]) if what[0] == PRODUCT else 1)
    return found


def message_seconds(
    asked: Question, counts: Mapping, cluster: Cluster, machine: MachineConstants
) -> dict[tuple[str, bool], float]:
    """{(operation, and with several axes along which; whether ZeRO sends it, which may hide it): seconds} of
    the messages of a pass.

    A message takes what `collective_seconds` says of its bytes over the links that its ranks have, and the
    latency once for each level of a tree, as NCCL sends where ranks are many.
    """
    found = Counter()
    for message, times in counts.items():
        if not isinstance(message, Message) or message.ranks == 1 or not message.ideal:
            continue
        collective, is_part = OPERATIONS[message.operation]
        if collective in ("broadcast", "reduce"):  # NCCL passes pieces on, and each rank sends all of it once
            collective = "send"
        ranks, (first, second, *_) = message.ranks, message.group
        size = message.bytes * (ranks if is_part else 1)
        takes = collective_seconds(collective, size, ranks, 0.0, cluster.bandwidth(ranks, second - first))
        takes += machine.latency * math.ceil(math.log2(ranks))
        along = asked.axes.along(message)
        name = f"{message.operation}, {along}" if asked.axes.has_others else message.operation
        found[name, along.startswith(("data", "all"))] += times * takes
    return found


def hooks(asked: Question, report: Mapping) -> dict[str, float]:
    """{pass: what DeepSpeed's hooks take the host at most, in units of an operator}."""
    found, gradients = dict.fromkeys(PASSES, 0.0), len(report["sizes"]) + len(report["expert_sizes"])
    if asked.stage:
        found["backward"] += MOST_OF_GRADIENT_HOOK * gradients * asked.accumulation
    if asked.stage == 3:
        visits, again = (report["work"][place].get((VISITED,), 0) for place in ("forward", "backward"))
        found["forward"] += MOST_OF_MODULE_HOOK * visits
        found["backward"] += MOST_OF_MODULE_HOOK * (visits + again)
    return found


def step(
    done: Mapping[str, dict[str, float]],
    sent: Mapping[str, Mapping[tuple[str, bool], float]],
    issuing: Mapping[str, float],
    operators: float,
    hiding: Sequence[str],
) -> StepTime:
    """A step by its parts; in each pass the GPU waits where the host takes longer.

    Args:
        done: {pass: {part: seconds}} of work.
        sent: {pass: what `message_seconds` returns}.
        issuing: {pass: seconds of the host}.
        hiding: passes behind whose work messages hide.
    """
    parts, passes = Counter(), {}
    for place in PASSES:
        own = sum(time for (_, hides), time in sent[place].items() if not hides)
        zero = {name: time for (name, hides), time in sent[place].items() if hides}
        work = Pass(sum(done[place].values()), sum(zero.values()), hides=place in hiding)
        waiting = max(0.0, issuing[place] - work.total - own)
        passes[place] = PassTime(work.work, work.messages, work.hides, zero, waiting + own)
        parts.update(done[place])
        parts["messages"] += work.exposed + own
        parts["launches"] += waiting
    hidden = sum(each.hidden for each in passes.values())
    return StepTime(passes, dict(parts), hidden, round(operators), sum(issuing.values()))
