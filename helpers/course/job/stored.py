"""What the rehearsals of the plans gave: `peak`, `states` and `moments` of a plan by its name."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from helpers.course.job.plans import plan
from helpers.paths import RECORDED
from helpers.tools.measure.held import MODEL_STATES
from helpers.tools.measure.operations import OPERATIONS
from helpers.tools.theory.hardware import HOST, reference_cluster
from helpers.tools.theory.step_time import PassTime, StepTime

FOLDER = RECORDED / "job"


def path(name: str) -> Path:
    """The file of a plan."""
    return FOLDER / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


@cache
def stored(name: str) -> dict:
    """All that was stored of a plan; a LookupError where there is no such plan, or no file."""
    plan(name)
    if not path(name).exists():
        raise LookupError(f"the plan {name!r} was not rehearsed yet: make job PLAN={name!r}")
    return json.loads(path(name).read_text())


def moments(name: str) -> dict[str, dict[str, int]]:
    """{phase: {what: bytes on the fullest GPU at the phase's highest moment}}, rehearsed."""
    return stored(name)["moments"]


def highest(name: str) -> tuple[str, dict[str, int]]:
    """The phase in which most is held, and {what: bytes} there; among equals, to the MB, the last."""
    phases = reversed(moments(name).items())
    return max(phases, key=lambda moment: round(sum(moment[1].values()) / 1e6))


def peak(name: str) -> int:
    """Bytes of all tensors on the fullest GPU at the highest moment, rehearsed."""
    return sum(highest(name)[1].values())


def step_times(name: str, network: float | None = None) -> tuple[StepTime, StepTime]:
    """A step of a plan at the fastest and at the slowest, for `step_timeline`: rehearsed work by a card's
    constants.

    Args:
        network: bytes per second, one way, of a slower network between hosts, from a host to all others; by
            default the one of `reference`.

    Raises:
        LookupError: no seconds are known.
        ValueError: the plan is of one host, or the network is no slower than the hosts' own links.
    """
    told = stored(name)["seconds"]
    if "unknown" in told:
        raise LookupError(f"no seconds are known of the plan {name!r}: {told['unknown']}")
    each = zip((told["fastest"], told["slowest"]), told["passes"], told["hidden"], told["host"])
    fastest, slowest = (
        StepTime(
            {place: pass_time(**time) for place, time in passes.items()},
            parts,
            hidden,
            told["operators"],
            host,
        )
        for parts, passes, hidden, host in each
    )
    if network is None:
        return fastest, slowest
    longer = longer_over(network, plan(name).gpus, stored(name)["sent"])
    return slowed(fastest, longer), slowed(slowest, longer)


def longer_over(network: float, gpus: int, sent: dict[str, float]) -> dict[str, float]:
    """{collective: seconds that a step's messages take longer} where a host's GPUs share a network of so many
    bytes per second: their rings leave a host once, so that it carries what one rank sends."""
    cluster = reference_cluster(-(-gpus // HOST))
    usual = cluster.bandwidth(gpus)
    if gpus <= HOST or not 0 < network < usual:
        raise ValueError(
            f"give bytes per second below {usual:g}, for a plan on several hosts: not {network!r} on {gpus} "
            "GPUs"
        )
    found = Counter()
    for operation, size in sent.items():
        found[collective_of(operation)] += size / network - size / usual
    return found


def slowed(step: StepTime, longer: dict[str, float]) -> StepTime:
    """A step whose messages take so much longer, each pass its share of them."""
    whole, passes = Counter(), {}
    for taken in step.passes.values():
        whole.update(taken.sent)
    for place, taken in step.passes.items():
        sent = {kind: time * (1 + longer[kind] / whole[kind]) for kind, time in taken.sent.items()}
        passes[place] = replace(taken, messages=sum(sent.values()), sent=sent)
    more = {
        what: sum(getattr(one, what) for one in passes.values())
        - sum(getattr(one, what) for one in step.passes.values())
        for what in ("exposed", "hidden")
    }
    parts = step.parts | {"messages": step.parts["messages"] + more["exposed"]}
    return replace(step, passes=passes, parts=parts, hidden=step.hidden + more["hidden"])


def collective_of(operation: str) -> str:
    """What DeepSpeed's operation is; where a plan has several groups, theirs follows: "all_reduce, data"."""
    return OPERATIONS[operation.partition(", ")[0]][0]


def pass_time(sent: dict[str, float], **more: object) -> PassTime:
    """A pass as it was stored; `sent` has DeepSpeed's operations, and a `PassTime` collectives."""
    found = Counter()
    for operation, seconds in sent.items():
        found[collective_of(operation)] += seconds
    return PassTime(sent=dict(found), **more)


def states(name: str) -> dict[str, int]:
    """{category: bytes} of the model states on the fullest GPU between two micro-batches, rehearsed."""
    return {category: stored(name)["states"][category] for category in MODEL_STATES}
