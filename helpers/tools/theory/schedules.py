"""Pipeline schedules as plain lists, and what they cost.

An *action* is (kind, stage, micro): "F" forward, "B" backward; or, where the backward pass is split, "I" the
gradient of the stage's input and "W" those of its weights.  An *order* is what one rank does, one action
after another.  A *timeline* is an order with times: (kind, stage, micro, start, end).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..measure.clock import Clock

Action = tuple[str, int, int]
INSTRUCTIONS = {"ForwardPass": "F", "BackwardPass": "B"}  # DeepSpeed's names of what a rank computes


def actions(instructions: Iterable[str], stage: int) -> list[Action]:
    """The order of DeepSpeed's instructions (class names): each kind takes micro-batch after micro-batch."""
    counts = dict.fromkeys(INSTRUCTIONS.values(), 0)
    order = []
    for name in instructions:
        if kind := INSTRUCTIONS.get(name):
            order.append((kind, stage, counts[kind]))
            counts[kind] += 1
    return order


def deepspeed_orders(stages: int, micro_batches: int) -> list[list[Action]]:
    """What DeepSpeed's own `TrainSchedule` generates, for every stage."""
    from deepspeed.runtime.pipe.schedule import TrainSchedule

    orders = []
    for stage in range(stages):
        schedule = TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage)
        orders.append(actions((type(command).__name__ for step in schedule for command in step), stage))
    return orders


def _needs(action, last):
    """The actions of this micro-batch that must have ended before."""
    kind, stage, micro = action
    if kind == "F":
        return [{("F", stage - 1, micro)}] if stage else []
    if kind == "W":
        return [{("I", stage, micro)}]
    before = [{("F", stage, micro)}]
    if stage < last:
        before.append({(name, stage + 1, micro) for name in "BI"})  # either of the two
    return before


def replay(orders: list[list[Action]], seconds: dict[str | tuple[str, int], float]) -> list[list[tuple]]:
    """Every rank's timeline if each kind of action took `seconds`, {(kind, stage): seconds} or {kind:
    seconds}, and messages took none.  A ValueError where ranks wait for each other for ever."""
    last = max(stage for order in orders for _, stage, _ in order)
    timelines, ended = [[] for _ in orders], {}
    waiting = [list(order) for order in orders]
    moved = True
    while any(waiting):
        if not moved:
            stuck = ", ".join(f"rank {rank} before {order[0]}" for rank, order in enumerate(waiting) if order)
            raise ValueError(f"the orders wait for each other for ever: {stuck}")
        moved = False
        for order, timeline in zip(waiting, timelines):
            while order:
                before = [
                    [ended[need] for need in either if need in ended] for either in _needs(order[0], last)
                ]
                if not all(before):
                    break
                action, moved = order.pop(0), True
                start = max([timeline[-1][-1] if timeline else 0.0, *(times[0] for times in before)])
                ended[action] = start + seconds[action[:2] if action[:2] in seconds else action[0]]
                timeline.append((*action, start, ended[action]))
    return timelines


def by_the_clock(clocks: Sequence[Clock]) -> list[list[tuple]]:
    """Every rank's timeline as its `Clock` noted it of a pipeline's engine, stage after stage: forward and
    backward passes of one step, in ms since the first began."""
    kinds, timelines = {"forward": "F", "backward": "B"}, []
    begin = min(start for clock in clocks for kind, _, start, _ in clock.boxes if kind in kinds)
    for stage, clock in enumerate(clocks):
        boxes = sorted((start, end, kind, label) for kind, label, start, end in clock.boxes if kind in kinds)
        timeline = []
        for start, end, kind, label in boxes:
            timeline.append((kinds[kind], stage, int(label) - 1, 1e3 * (start - begin), 1e3 * (end - begin)))
        timelines.append(timeline)
    return timelines


def idle_fraction(timelines: list[list[tuple]]) -> float:
    """The part of all ranks' time, from the first start to the last end, in which a rank does nothing."""
    events = [event for timeline in timelines for event in timeline]
    span = max(end for *_, end in events) - min(start for *_, start, _ in events)
    return 1 - sum(end - start for *_, start, end in events) / (span * len(timelines))


def held_over_time(timeline: list[tuple]) -> list[tuple[float, float]]:
    """[(time, micro-batches)] that a rank holds from that time on: each from the start of its "F" to the end
    of its "B", or "W" where it is split.  On one of the rank's v stages a micro-batch counts as 1/v."""
    release = _release(timeline)
    stages = len({stage for _, stage, *_ in timeline})
    changes = [(start, 1) for kind, *_, start, _ in timeline if kind == "F"]
    changes += [(end, -1) for kind, *_, end in timeline if kind == release]
    changes.sort()
    held = accumulate(change for _, change in changes)
    return [(time, count / stages) for (time, _), count in zip(changes, held)]


def most_in_flight(order: list[Action]) -> int:
    """Most micro-batches (of a stage) that a rank holds activations of at once: from "F" until "B", or until
    "W" where it is split."""
    release = _release(order)
    return max(accumulate(((kind == "F") - (kind == release) for kind, *_ in order), initial=0))


def _release(actions):
    """The kind of action that releases a micro-batch."""
    return "W" if any(kind == "W" for kind, *_ in actions) else "B"
