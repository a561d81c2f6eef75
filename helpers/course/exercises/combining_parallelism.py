"""Answers of lesson 13: the ranks of several axes, their groups, what crosses a cable, and a norm over axes;
and the mistakes that people make."""

from __future__ import annotations

import random
from math import prod
from typing import TYPE_CHECKING

import torch
from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.telling import tell
from helpers.tools.theory import combined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import EllipsisType

__all__ = ["cable_bytes", "coordinates", "global_norm", "groups_along", "guess", "order"]


def _axes(seed):
    """Some shapes, none of which reads the same backwards, one of as many ranks as there are here."""
    import deepspeed.comm as comm

    numbers, ranks = random.Random(seed), comm.get_world_size()
    names = numbers.sample(["pipe", "data", "model"], 3)
    first, second, third = numbers.sample([2, 3, 4], 3)
    here = {2: (2, 1, 1), 4: (2, 1, 2)}.get(ranks, (ranks, 1, 1))
    return [
        dict(zip(names, here)),
        {"pipe": 2, "data": 2, "model": 2},
        dict(zip(names, (first, second, third))),
        {"data": first, "model": second},
        {"pipe": third},
    ]


def _coordinated(function, seed):
    found, (here, *others) = {}, _axes(seed)
    for axes in (*others, here):
        handed = dict(axes)
        for rank in range(prod(axes.values())):
            found[f"coordinates({rank}, {axes})"] = function(rank, handed)
        found[f"the axes after all calls, {axes}"] = list(handed.items())
    return found


def coordinates_solution(rank, axes):
    found = {}
    for name in reversed(axes):  # the innermost changes from each rank to the next
        rank, found[name] = divmod(rank, axes[name])
    return found


STEP = "rank, found[name] = divmod(rank, axes[name])"
LATER = "prod([*axes.values()][[*axes].index(name) + 1 :])"
coordinates = Build(
    "coordinates",
    _coordinated,
    mistakes=edits(
        coordinates_solution,
        {
            (
                "reversed(axes)",
                "axes",
            ): "the *last* axis is innermost: its coordinate changes from each rank to the next",
            (
                STEP,
                f"found[name] = rank // {LATER}",
            ): "a coordinate is smaller than its axis' size: take the remainder, `% axes[name]`",
            (
                STEP,
                "found[name] = rank % axes[name]",
            ): "one step along an axis is as many ranks as all later axes have together",
            (
                STEP,
                "found[name] = rank // axes[name] % axes[name]",
            ): "divide by the product of the *later* axes' sizes, not by the axis' own",
            (
                STEP,
                f"found[name] = rank % ({LATER} if {LATER} > 1 else axes[name])",
            ): "divide by the product of the later axes' sizes, `//`; what remains, `%`, belongs to those",
            (
                STEP,
                "found[name], rank = divmod(rank, axes[name])",
            ): "`divmod` gives the quotient first: the remainder is the coordinate, and the quotient goes on",
            (
                "return found",
                "return tuple(found[name] for name in axes)",
            ): "return a dict, as `{'pipe': 1, 'data': 0}`, whose keys are the names of the axes",
        },
    ),
    praise="a rank is a number whose digits are its coordinates, and each axis is the base of one",
)


def _grouped(function, seed):
    """Groups of some shapes; where those of the shape that has these ranks are right, the ranks add up
    numbers in real groups made of them."""
    import deepspeed.comm as comm

    found, shapes = {}, _axes(seed)
    for axes in shapes:
        for name in axes:
            lists = function(name, dict(axes))
            found[f"groups_along({name!r}, {axes})"] = sorted(
                (list(group) for group in lists), key=lambda group: group[:1]
            )
    for name in (axes := shapes[0]):
        lists, right = found[f"groups_along({name!r}, {axes})"], combined.groups_along(name, axes)
        if lists == right:
            groups = {tuple(ranks): comm.new_group(ranks) for ranks in lists}
            mine = next(ranks for ranks in groups if comm.get_rank() in ranks)
            total = torch.tensor([10.0 ** comm.get_rank()])
            comm.all_reduce(total, group=groups[mine])
            found[f"the sum of 10^rank over this rank's group along {name!r} of {axes}"] = total
    return found


def groups_along_solution(name, axes):
    from math import prod

    found = {}
    for rank in range(prod(axes.values())):
        place = coordinates_solution(rank, axes)
        others = tuple(place[axis] for axis in axes if axis != name)  # who shares these is in one group
        found.setdefault(others, []).append(rank)
    return list(found.values())


OTHERS = "tuple(place[axis] for axis in axes if axis != name)"
groups_along = Build(
    "groups_along",
    _grouped,
    mistakes=edits(
        groups_along_solution,
        {
            ("axis != name", "axis == name"): (
                "those ranks *share* the coordinate along this axis; a group along it has every one of "
                "its coordinates, and shares all others"
            ),
            (
                OTHERS,
                "rank // axes[name]",
            ): "neighbours in the group are consecutive ranks along the last axis only",
            (
                OTHERS,
                "rank % (prod(axes.values()) // axes[name])",
            ): "along an inner axis a group's ranks lie closer together: compare their coordinates",
            (
                "found.values())",
                "found.values())[:1]",
            ): "that is one group; return all of them, so that every rank is in one",
            (OTHERS, "()"): "all ranks are no group along one axis: the other coordinates must be the same",
            (".append(rank)", ".insert(0, rank)"): "in a group, ranks stand in the order of their coordinate",
        },
    ),
    praise="each rank is in one group along every axis, and these groups are all that a combined job needs",
)


def cable_bytes_solution(groups, sent, each, line):
    crossings = 0
    for group in groups:
        pairs = list(zip(group, group[1:]))  # of a line; a ring has one pair more, a pipeline sends both ways
        pairs += [(there, here) for here, there in pairs] if line else [(group[-1], group[0])]
        crossings += sum(here // each != there // each for here, there in pairs)
    return crossings * sent


CROSSES, CLOSING = "here // each != there // each", "[(group[-1], group[0])]"
BACKWARDS = "[(there, here) for here, there in pairs]"


def _case(name, sent, each, **axes):
    return {"groups": combined.groups_along(name, axes), "sent": sent, "each": each, "line": name == "pipe"}


cable_bytes = Exercise(
    reference=combined.cable_bytes,
    cases=(
        _case("data", 700, 1, data=4, model=3),
        _case("data", 300, 2, data=4, model=2),
        _case("model", 900, 3, data=1, model=6),
        _case("pipe", 1000, 2, data=2, pipe=5),
        _case("pipe", 500, 4, pipe=2, data=2, model=2),
    ),
    mistakes=edits(
        cable_bytes_solution,
        {
            (
                CROSSES,
                CROSSES.replace("!=", "=="),
            ): "count the pairs whose ranks are on *different* machines; rank r is on machine `r // each`",
            (CROSSES, "True"): "not every pair crosses: rank r is on machine `r // each`",
            (
                f"{BACKWARDS} if line else ",
                "",
            ): "a pipeline is a line: its last stage sends nothing to its first",
            (
                BACKWARDS,
                "[]",
            ): "a pipeline's neighbours send in both directions, activations forward and gradients back",
            (CLOSING, "[]"): "a ring is closed: the last rank of a group sends to the first",
            (
                CLOSING,
                f"{CLOSING} + [(group[0], group[-1])] + {BACKWARDS}",
            ): "in a ring a rank sends to the next one only",
            ("in groups:", "in groups[:1]:"): "add up all groups along the axis",
            (
                "crossings * sent",
                "crossings * sent / (max(map(max, groups)) // each + 1)",
            ): "asked are the bytes of all machines together",
            (
                "crossings * sent",
                "crossings",
            ): "these are the crossings: multiply by what a rank sends along this axis",
        },
    ),
    praise="only pairs on different machines cross, and the order of the axes says which pairs those are",
)


class Order:
    """A choice with consequences: the lesson runs the order that the learner names, and says what it has
    cost."""

    def __init__(self):
        self.chosen = None

    def choose(
        self, order: Sequence[str | EllipsisType] | str | EllipsisType, axes: Iterable[str]
    ) -> tuple[str, ...]:
        """The order that the lesson goes on with, a tuple of names from the outermost: the learner's if it is
        one, else that of `axes`."""
        self.chosen, course = None, tuple(axes)
        if isinstance(order, str):
            order = tuple(name.strip() for name in order.split(","))
        given = tuple(order) if isinstance(order, (tuple, list)) else (order,)
        if all(name is ... for name in given):
            tell(f"not written yet: what follows uses the course's order, {', '.join(course)}")
        elif sorted(map(str, given)) != sorted(course):
            listed = ", ".join(f'"{name}"' for name in course)
            tell(
                f"not yet: an order names each of {listed} once, from the outermost, and "
                f"{order!r} does not. What follows uses the course's order"
            )
        else:
            self.chosen = given
            tell(f"{', '.join(given)}: this order goes onto the machines")
        return self.chosen or course

    def compare(self, counted: dict[str, int]) -> None:
        """Say what the chosen order has sent beside the least of all.

        Args:
            counted: {order, as "pipe, data, model": bytes over the cable}.
        """
        least = min(counted.values())
        if self.chosen is None:
            tell("no order of yours to judge")
            return
        mine = counted[", ".join(self.chosen)]
        if mine < 1.02 * least:
            tell(
                f"correct: {mine:,} bytes, and no order sends less; only the outermost axis crosses "
                "between two machines"
            )
        else:
            tell(
                f"not yet: {mine:,} bytes, {mine / least:.3g} times as many as the best order; along "
                f"{self.chosen[0]} ranks send more, and with that axis outermost all of it crosses"
            )


order = Order()


def _shapes(ranks):
    """Axes of so many ranks, with other groups in each."""
    two = [{"pipe": 1, "data": 1, "model": 1} | {name: 2} for name in ("pipe", "data", "model")]
    return {2: two, 4: [axes | {"model": 2} for axes in two[:2]]}[ranks]


def _normed(function, seed):
    """Random gradients as combined parallelism leaves them: each sharded one is a rank's own, replicated ones
    are alike on tensor-parallel ranks."""
    import deepspeed.comm as comm

    rank, found = comm.get_rank(), {}

    def drawn(*numbers):
        return torch.randn(5, generator=torch.Generator().manual_seed(hash((seed, *numbers)) % 2**31))

    for axes in _shapes(comm.get_world_size()):
        place, own = combined.coordinates(rank, axes), {}
        for name in axes:
            groups = {tuple(ranks): comm.new_group(ranks) for ranks in combined.groups_along(name, axes)}
            own[name] = next(group for ranks, group in groups.items() if rank in ranks)
        sharded = [drawn(place["pipe"], place["model"], index) for index in range(2)]
        replicated = [drawn(place["pipe"], 9, index) for index in range(3)]
        before = torch.cat([*sharded, *replicated])
        said = f"with {axes}"
        found[f"the norm {said}"] = float(function(list(sharded), list(replicated), dict(place), own))
        found[f"the gradients, which are only to be read, {said}"] = torch.cat([*sharded, *replicated]).equal(
            before
        )
    return found


def global_norm_solution(sharded, replicated, place, groups):
    import deepspeed.comm as comm

    counted = sharded + (replicated if place["model"] == 0 else [])  # all model ranks have these: once
    total = sum((gradient.square().sum() for gradient in counted), torch.zeros(()))
    for name in ("model", "pipe"):  # not over data: replicas have the same gradients
        comm.all_reduce(total, group=groups[name])
    return total.sqrt()


ONCE, AXES = '(replicated if place["model"] == 0 else [])', '("model", "pipe")'
global_norm = Build(
    "global_norm",
    _normed,
    mistakes=edits(
        global_norm_solution,
        {
            (
                ONCE,
                "replicated",
            ): "what is replicated on tensor-parallel ranks counts once: on the rank whose place "
            'along "model" is 0',
            (ONCE, ONCE[1:-1]): "each rank's sharded gradients are its own: all of them count",
            (f" + {ONCE}", ""): "replicated gradients belong to the norm too, once",
            (AXES, '("model",)'): 'other stages have other parameters: sum over "pipe" too',
            (AXES, '("pipe",)'): 'tensor-parallel ranks have other shards: sum over "model" too',
            (
                AXES,
                "()",
            ): 'that is the norm of this rank\'s part: add up the *squares* over "model" and "pipe"',
            (
                AXES,
                '("model", "pipe", "data")',
            ): 'replicas hold the same gradients (they are reduced already): do not sum over "data"',
            (ONCE, "replicated", AXES, '("model", "pipe", "data")'): (
                "replicas, and what is replicated on tensor-parallel ranks, count once: that sum over "
                "all ranks counts them several times"
            ),
            (
                "torch.zeros(()))",
                "torch.zeros(())).sqrt()",
                "return total.sqrt()",
                "return total",
            ): "squares add up, norms do not: take the root at the end",
            ("total.sqrt()", "total"): "that is the square of the norm",
        },
    ),
    praise="that is what the attribute `model_parallel` is for",
)
