"""Answers of lesson 15: ranks of several axes, their groups, what crosses a cable, a norm over axes."""

import json
import random
from collections.abc import Iterable
from math import prod

import torch
from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions import combining_parallelism as solutions
from helpers.course.exercises.telling import tell
from helpers.course.exercises.trials import build, formula
from helpers.tools.theory import combined

NAMES = ("pipe", "data", "model")


def _axes(seed):
    """Some shapes, none of which reads the same backwards, one of as many ranks as there are here."""
    numbers, ranks = random.Random(seed), dist.get_world_size()
    names = numbers.sample(NAMES, 3)
    first, second, third = numbers.sample([2, 3, 4], 3)
    here = {2: (2, 1, 1), 4: (2, 1, 2)}.get(ranks, (ranks, 1, 1))
    return [
        dict(zip(names, here)),
        {"pipe": 2, "data": 2, "model": 2},
        dict(zip(names, (first, second, third))),
        {"data": first, "model": second},
        {"pipe": third},
    ]


def _group_of_this_rank(lists):
    """Every rank calls this with the same lists of ranks, and gets the group that it is in."""
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in lists}
    return next(group for ranks, group in groups.items() if dist.get_rank() in ranks)


def _coordinated(function, seed):
    seen, (here, *others) = {}, _axes(seed)
    for axes in (*others, here):
        handed = dict(axes)
        for rank in range(prod(axes.values())):
            seen[f"coordinates({rank}, {axes})"] = function(rank, handed)
        seen[f"the axes after all calls, {axes}"] = list(handed.items())
    return seen


def _later(name, axes):
    """How many ranks one step along an axis is: the product of the sizes of all later ones."""
    return prod([*axes.values()][[*axes].index(name) + 1 :])


COORDINATES_MISTAKES = """
the *last* axis is innermost: its coordinate changes from each rank to the next
    reversed(axes) -> axes
a coordinate is smaller than its axis' size: take the remainder, `% axes[name]`
    divmod(rank, axes[name]) -> rank, rank // _later(name, axes)
one step along an axis is as many ranks as all later axes have together
    divmod(rank, axes[name]) -> rank, rank % axes[name]
divide by the product of the *later* axes' sizes, not by the axis' own
    divmod(rank, axes[name]) -> rank, rank // axes[name] % axes[name]
divide by the product of the later axes' sizes, `//`; what remains, `%`, belongs to those
    divmod(rank, axes[name]) -> rank, rank % (_later(name, axes) if _later(name, axes) > 1 else axes[name])
`divmod` gives the quotient first: the remainder is the coordinate, and the quotient goes on
    rank, found[name] = -> found[name], rank =
return a dict, as `{'pipe': 1, 'data': 0}`, whose keys are the names of the axes
    return found -> return tuple(found[name] for name in axes)
"""
coordinates = build(
    solutions.coordinates_solution,
    _coordinated,
    COORDINATES_MISTAKES,
    praise="a rank is a number whose digits are its coordinates, and each axis is the base of one",
)


def _grouped(function, seed):
    """Groups of some shapes; where they are right, the ranks add up numbers in real groups."""
    seen, shapes = {}, _axes(seed)
    for axes in shapes:
        for name in axes:
            lists = [list(group) for group in function(name, dict(axes))]
            seen[f"groups_along({name!r}, {axes})"] = sorted(lists, key=lambda group: group[:1])
    for name in (axes := shapes[0]):
        lists = seen[f"groups_along({name!r}, {axes})"]
        if lists == combined.groups_along(name, axes):
            total = torch.tensor([10.0 ** dist.get_rank()])
            dist.all_reduce(total, group=_group_of_this_rank(lists))
            seen[f"the sum of 10^rank over this rank's group along {name!r} of {axes}"] = total
    return seen


GROUPS_ALONG_MISTAKES = """
those ranks *share* the coordinate along this axis; a group along it has every one of its coordinates, and
shares all others
    axis != name -> axis == name
neighbours in the group are consecutive ranks along the last axis only
    tuple(place[axis] for axis in axes if axis != name) -> rank // axes[name]
along an inner axis a group's ranks lie closer together: compare their coordinates
    tuple(place[axis] for axis in axes if axis != name) -> rank % (prod(axes.values()) // axes[name])
that is one group; return all of them, so that every rank is in one
    found.values()) -> found.values())[:1]
all ranks are no group along one axis: the other coordinates must be the same
    tuple(place[axis] for axis in axes if axis != name) -> ()
in a group, ranks stand in the order of their coordinate
    .append(rank) -> .insert(0, rank)
"""
groups_along = build(
    solutions.groups_along_solution,
    _grouped,
    GROUPS_ALONG_MISTAKES,
    rungs=[coordinates],
    praise="each rank is in one group along every axis, and these groups are all that a combined job needs",
)


def _case(name, sent, each, **axes):
    return combined.groups_along(name, axes), sent, each, name == "pipe"


CABLE_BYTES_MISTAKES = """
count the pairs whose ranks are on *different* machines; rank r is on machine `r // each`
    here // each != there // each -> here // each == there // each
not every pair crosses: rank r is on machine `r // each`
    here // each != there // each -> True
a pipeline is a line: its last stage sends nothing to its first
    if line else -> if False else
a pipeline's neighbours send in both directions, activations forward and gradients back
    [(there, here) for here, there in pairs] -> []
a ring is closed: the last rank of a group sends to the first
    [(group[-1], group[0])] -> []
in a ring a rank sends to the next one only
    [(group[-1], group[0])] -> [(group[-1], group[0]), (group[0], group[-1]), *zip(group[1:], group)]
add up all groups along the axis
    in groups: -> in groups[:1]:
asked are the bytes of all machines together
    crossings * sent -> crossings * sent / (max(map(max, groups)) // each + 1)
these are the crossings: multiply by what a rank sends along this axis
    crossings * sent -> crossings
"""
cable_bytes = formula(
    solutions.cable_bytes_solution,
    (
        _case("data", 700, 1, data=4, model=3),
        _case("data", 300, 2, data=4, model=2),
        _case("model", 900, 3, data=1, model=6),
        _case("pipe", 1000, 2, data=2, pipe=5),
        _case("pipe", 500, 4, pipe=2, data=2, model=2),
    ),
    CABLE_BYTES_MISTAKES,
    reference=combined.cable_bytes,
    praise="only pairs on different machines cross, and the order of the axes says which pairs those are",
)


class Order:
    """A choice with consequences: the lesson runs the learner's order, and says what it has cost."""

    def __init__(self):
        self.chosen = None

    def choose(self, order: object, axes: Iterable[str]) -> tuple[str, ...]:
        """The order that the lesson goes on with, from the outermost: the learner's, or that of `axes`."""
        self.chosen, course = None, tuple(axes)
        names = order.replace(" ", "").split(",") if isinstance(order, str) else order
        names = tuple(names) if isinstance(names, (tuple, list)) else (names,)
        if all(name is ... for name in names):
            tell(f"not written yet. The lesson uses the course's order, {', '.join(course)}.")
        elif sorted(map(str, names)) != sorted(course):
            due = f"an order names each of {', '.join(map(json.dumps, course))} once, from the outermost"
            tell(f"not yet: {due}, and {order!r} does not. The lesson uses the course's order")
        else:
            self.chosen = names
            tell(f"{', '.join(names)}: this order goes onto the machines")
        return self.chosen or course

    def compare(self, counted: dict[str, int]) -> None:
        """Say what the chosen order has sent beside the least, of {"pipe, data, model": bytes sent}."""
        if self.chosen is None:
            return tell("no order of yours to judge")
        mine, least = counted[", ".join(self.chosen)], min(counted.values())
        if mine < 1.02 * least:
            why = "no order sends less; only the outermost axis crosses between two machines"
            return tell(f"correct: {mine:,} bytes, and {why}")
        why = f"along {self.chosen[0]} ranks send more, and with that axis outermost all of it crosses"
        tell(f"not yet: {mine:,} bytes, {mine / least:.3g} times as many as the best order; {why}")


order = Order()


def _normed(function, seed):
    """Random gradients as combined parallelism leaves them: each sharded one is a rank's own, replicated ones
    are alike on tensor-parallel ranks."""
    seen, shapes = {}, [dict.fromkeys(NAMES, 1) | {name: 2} for name in NAMES]
    if dist.get_world_size() == 4:
        shapes = [axes | {"model": 2} for axes in shapes[:2]]

    def drawn(*numbers):
        return torch.randn(5, generator=torch.Generator().manual_seed(hash((seed, *numbers)) % 2**31))

    for axes in shapes:
        place = combined.coordinates(dist.get_rank(), axes)
        groups = {name: _group_of_this_rank(combined.groups_along(name, axes)) for name in axes}
        sharded = [drawn(place["pipe"], place["model"], index) for index in range(2)]
        replicated = [drawn(place["pipe"], 9, index) for index in range(3)]
        before = torch.cat([*sharded, *replicated])
        norm = function(list(sharded), list(replicated), dict(place), groups)
        seen[f"the norm with {axes}"] = float(norm)
        unchanged = torch.cat([*sharded, *replicated]).equal(before)
        seen[f"the gradients, which are only to be read, with {axes}"] = unchanged
    return seen


GLOBAL_NORM_MISTAKES = """
what is replicated on tensor-parallel ranks counts once: on the rank whose place along "model" is 0
    (replicated if place["model"] == 0 else []) -> replicated
each rank's sharded gradients are its own: all of them count
    (replicated if place["model"] == 0 else []) -> replicated if place["model"] == 0 else []
replicated gradients belong to the norm too, once
    (replicated if place["model"] == 0 else []) -> []
other stages have other parameters: sum over "pipe" too
    ("model", "pipe") -> ("model",)
tensor-parallel ranks have other shards: sum over "model" too
    ("model", "pipe") -> ("pipe",)
that is the norm of this rank's part: add up the *squares* over "model" and "pipe"
    ("model", "pipe") -> ()
replicas hold the same gradients (they are reduced already): do not sum over "data"
    ("model", "pipe") -> ("model", "pipe", "data")
replicas, and what is replicated on tensor-parallel ranks, count once: that sum over all ranks counts them
several times
    (replicated if place["model"] == 0 else []) -> replicated
    ("model", "pipe") -> ("model", "pipe", "data")
squares add up, norms do not: take the root at the end
    torch.zeros(())) -> torch.zeros(())).sqrt()
    return total.sqrt() -> return total
that is the square of the norm
    total.sqrt() -> total
"""
global_norm = build(
    solutions.global_norm_solution,
    _normed,
    GLOBAL_NORM_MISTAKES,
    praise="a replicated gradient counts once; the attribute `model_parallel` marks those that are sharded",
)
