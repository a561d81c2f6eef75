"""Answers of lesson 13: the ranks of several axes, their groups, what crosses a cable, and a norm over axes;
and the mistakes that people make."""

from __future__ import annotations

import random
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.course.exercises.telling import tell
from helpers.tools.theory import combined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import EllipsisType

__all__ = ["cable_bytes", "coordinates", "global_norm", "groups_along", "guess", "order"]


# --- coordinates and groups


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
        given = dict(axes)
        for rank in range(prod(axes.values())):
            found[f"coordinates({rank}, {axes})"] = function(rank, given)
        found[f"the axes after all calls, {axes}"] = list(given.items())
    return found


def _wrong_place(kind):
    """`coordinates` with the mistake that is named; without one it is right."""

    def coordinates(rank, axes):
        names, found = list(axes), {}
        for name in names if kind == "first axis innermost" else reversed(names):
            later = prod(axes[other] for other in names[names.index(name) + 1 :])
            if kind == "own size":
                found[name] = rank // axes[name] % axes[name]
            elif kind == "no remainder":
                found[name] = rank // later
            elif kind == "no quotient":
                found[name] = rank % axes[name]
            elif kind == "swapped":
                found[name], rank = divmod(rank, axes[name])
            elif kind == "later remainder":
                found[name] = rank % later if later > 1 else rank % axes[name]
            else:
                rank, found[name] = divmod(rank, axes[name])
        found = {name: found[name] for name in names}
        return {"tuple": tuple(found.values()), "list": list(found.values())}.get(kind, found)

    return coordinates


coordinates = Build(
    "coordinates",
    _coordinated,
    mistakes={
        "the *last* axis is innermost: its coordinate changes from each rank to the next": _wrong_place(
            "first axis innermost"
        ),
        "a coordinate is smaller than its axis' size: take the remainder, `% axes[name]`": _wrong_place(
            "no remainder"
        ),
        "one step along an axis is as many ranks as all later axes have together": _wrong_place(
            "no quotient"
        ),
        "divide by the product of the *later* axes' sizes, not by the axis' own": _wrong_place("own size"),
        "divide by the product of the later axes' sizes, `//`; what "
        "remains, `%`, belongs to those": _wrong_place("later remainder"),
        "`divmod` gives the quotient first: the remainder is the "
        "coordinate, and the quotient goes on": _wrong_place("swapped"),
        "return a dict, as `{'pipe': 1, 'data': 0}`, whose keys are the names of the axes": _wrong_place(
            "tuple"
        ),
    },
    praise="a rank is a number whose digits are its coordinates, and each axis is the base of one",
)


def _grouped(function, seed):
    """Groups of some shapes; where those of the shape that has these ranks are right, the ranks add up
    numbers in real groups made of them."""
    import deepspeed.comm as comm
    import torch

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


def _wrong_groups(kind):
    """`groups_along` with the mistake that is named; without one it is right."""

    def groups_along(name, axes):
        ranks = list(range(prod(axes.values())))
        if kind == "blocks":
            return [ranks[start : start + axes[name]] for start in range(0, len(ranks), axes[name])]
        if kind == "strided":
            count = len(ranks) // axes[name]
            return [ranks[start::count] for start in range(count)]
        if kind == "all in one":
            return [ranks]
        found = {}
        for rank in ranks:
            place = combined.coordinates(rank, axes)
            fixed = tuple(at for axis, at in place.items() if (axis == name) == (kind == "same coordinate"))
            found.setdefault(fixed, []).append(rank)
        lists = list(found.values())
        if kind == "first":
            return lists[:1]
        return [group[::-1] for group in lists] if kind == "backwards" else lists

    return groups_along


groups_along = Build(
    "groups_along",
    _grouped,
    mistakes={
        "those ranks *share* the coordinate along this axis; a group along it has every one of "
        "its coordinates, and shares all others": _wrong_groups("same coordinate"),
        "neighbours in the group are consecutive ranks along the last axis only": _wrong_groups("blocks"),
        "along an inner axis a group's ranks lie closer together: compare their coordinates": _wrong_groups(
            "strided"
        ),
        "that is one group; return all of them, so that every rank is in one": _wrong_groups("first"),
        "all ranks are no group along one axis: the other coordinates must be the same": _wrong_groups(
            "all in one"
        ),
        "in a group, ranks stand in the order of their coordinate": _wrong_groups("backwards"),
    },
    praise="each rank is in one group along every axis, and these groups are all that a combined job needs",
)


# --- what crosses the cable


def _cable(kind):
    """`cable_bytes` with the mistake that is named; without one it is right."""

    def cable_bytes(groups, sent, each, line):
        crossings, machines = 0, max(rank for group in groups for rank in group) // each + 1
        for group in groups[:1] if kind == "one group" else groups:
            forward, closing = list(pairwise(group)), [(group[-1], group[0])]
            pairs = (
                forward + [pair[::-1] for pair in forward]
                if line and kind != "line is a ring"
                else forward + closing
            )
            if kind == ("one way" if line else "no closing"):
                pairs = forward
            if kind == "both ways" and not line:
                pairs = pairs + [pair[::-1] for pair in pairs]
            across = sum(here // each != there // each for here, there in pairs)
            crossings += {"inside": len(pairs) - across, "every": len(pairs)}.get(kind, across)
        return {"crossings": crossings, "of one machine": crossings * sent / machines}.get(
            kind, crossings * sent
        )

    return cable_bytes


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
    mistakes={
        "count the pairs whose ranks are on *different* machines; rank r is on machine `r // each`": _cable(
            "inside"
        ),
        "not every pair crosses: rank r is on machine `r // each`": _cable("every"),
        "a pipeline is a line: its last stage sends nothing to its first": _cable("line is a ring"),
        "a pipeline's neighbours send in both directions, activations forward and gradients back": _cable(
            "one way"
        ),
        "a ring is closed: the last rank of a group sends to the first": _cable("no closing"),
        "in a ring a rank sends to the next one only": _cable("both ways"),
        "add up all groups along the axis": _cable("one group"),
        "asked are the bytes of all machines together": _cable("of one machine"),
        "these are the crossings: multiply by what a rank sends along this axis": _cable("crossings"),
    },
    praise="only pairs on different machines cross, and the order of the axes says which pairs those are",
)


# --- an order of the axes


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
            verdict = (
                f"correct: {mine:,} bytes, and no order sends less; only the outermost axis crosses "
                "between two machines"
            )
        else:
            verdict = (
                f"not yet: {mine:,} bytes, {mine / least:.3g} times as many as the best order; along "
                f"{self.chosen[0]} ranks send more"
            )
            verdict += ", and with that axis outermost all of it crosses"
        tell(verdict)


order = Order()


# --- a norm over axes


def _shapes(ranks):
    """Axes of so many ranks, with other groups in each."""
    two = [{"pipe": 1, "data": 1, "model": 1} | {name: 2} for name in ("pipe", "data", "model")]
    return {2: two, 4: [axes | {"model": 2} for axes in two[:2]]}[ranks]


def _normed(function, seed):
    """Random gradients as combined parallelism leaves them: each sharded one is a rank's own, replicated ones
    are alike on tensor-parallel ranks."""
    import deepspeed.comm as comm
    import torch

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


def _norm(kind):
    """`global_norm` with the mistake that is named; without one it is right."""

    def global_norm(sharded, replicated, place, groups):
        import deepspeed.comm as comm
        import torch

        once = place["model"] == 0 or kind in ("replicated on all", "all of all")
        total = sum(tensor.square().sum() for tensor in sharded) + once * sum(
            tensor.square().sum() for tensor in replicated
        )
        if kind == "sharded once":
            total = total if place["model"] == 0 else 0 * total
        if kind == "no replicated":
            total = sum(tensor.square().sum() for tensor in sharded)
        total = total.sqrt() if kind == "sum of norms" else total.clone()
        names = {
            "model only": ["model"],
            "pipe only": ["pipe"],
            "own": [],
            "data too": ["pipe", "model", "data"],
            "all of all": ["pipe", "model", "data"],
        }.get(kind, ["pipe", "model"])
        for name in names:
            comm.all_reduce(total, group=groups[name])
        if kind == "maximum":
            comm.all_reduce(total, op=torch.distributed.ReduceOp.MAX)
        return total if kind in ("sum of norms", "no root") else total.sqrt()

    return global_norm


global_norm = Build(
    "global_norm",
    _normed,
    mistakes={
        "what is replicated on tensor-parallel ranks counts once: on the rank whose place along "
        '"model" is 0': _norm("replicated on all"),
        "each rank's sharded gradients are its own: all of them count": _norm("sharded once"),
        "replicated gradients belong to the norm too, once": _norm("no replicated"),
        'other stages have other parameters: sum over "pipe" too': _norm("model only"),
        'tensor-parallel ranks have other shards: sum over "model" too': _norm("pipe only"),
        'that is the norm of this rank\'s part: add up the *squares* over "model" and "pipe"': _norm("own"),
        'replicas hold the same gradients (they are reduced already): do not sum over "data"': _norm(
            "data too"
        ),
        "replicas, and what is replicated on tensor-parallel ranks, count once: that sum over "
        "all ranks counts them several times": _norm("all of all"),
        "squares add up, norms do not: take the root at the end": _norm("sum of norms"),
        "that is the square of the norm": _norm("no root"),
    },
    praise="that is what the attribute `model_parallel` is for",
)
