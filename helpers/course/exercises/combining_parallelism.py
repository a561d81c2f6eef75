"""Answers of lesson 15: ranks of several axes, their groups, what crosses a cable, a norm over axes."""

import json
import random
from collections.abc import Iterable
from math import prod

import torch
from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.telling import tell
from helpers.tools.theory import combined

stubs = Stubs("combining_parallelism")

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


coordinates = stubs.build("coordinates", Returning(_coordinated))


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


groups_along = stubs.build("groups_along", Returning(_grouped), rungs=[coordinates])


def _case(name, sent, each, **axes):
    return combined.groups_along(name, axes), sent, each, name == "pipe"


cable_bytes = stubs.formula(
    "cable_bytes",
    (
        _case("data", 700, 1, data=4, model=3),
        _case("data", 300, 2, data=4, model=2),
        _case("model", 900, 3, data=1, model=6),
        _case("pipe", 1000, 2, data=2, pipe=5),
        _case("pipe", 500, 4, pipe=2, data=2, model=2),
    ),
    reference=combined.cable_bytes,
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


global_norm = stubs.build("global_norm", Returning(_normed))
