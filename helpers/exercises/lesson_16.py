"""Answers of lesson 16: what crosses the cable, a restart on the ranks that are left, the checkpoint that is complete, and how often to save."""

import math
import random

from helpers import theory
from helpers.exercises.engine import Build, Exercise
from helpers.exercises.guesses import guess

__all__ = ["cable_bytes", "guess", "restart", "safe_tag", "save_interval"]


def _random(seed):
    """The trial's random numbers, other ones on every rank."""
    import deepspeed.comm as comm

    return random.Random(1000 * seed + comm.get_rank())


def _places(numbers):
    """Placements to try: neighbours together, dealt out, unequal, by chance, all on one machine, a machine for each rank."""
    import deepspeed.comm as comm

    ranks = 2 * comm.get_world_size() + 2
    by_chance = [numbers.randrange(3) for _ in range(ranks - 3)] + [0, 1, 2]
    numbers.shuffle(by_chance)
    yield "neighbours together", [rank // (ranks // 2) for rank in range(ranks)]
    yield "dealt out", [rank % 2 for rank in range(ranks)]
    yield "three and the others", [0] * 3 + [1] * (ranks - 3)
    yield "three machines, by chance", by_chance
    yield "all on machine 0", [0] * ranks
    yield "a machine for each rank", list(range(ranks))


def _cable_bytes(function, seed):
    numbers, found = _random(seed), {}
    for words, place in _places(numbers):
        sent = 1000 * numbers.randint(1, 9999)
        got = function(sent, list(place))
        if not isinstance(got, (list, tuple)):
            raise TypeError(f"return a list with a number for each machine, not {'nothing' if got is None else f'a {type(got).__name__}'}")
        found[f"bytes from each machine, ranks on {place} ({words}), each sends {sent:,}"] = [float(bytes_sent) for bytes_sent in got]
    return found


def _hops(place, around=True):
    """Every hop of the ring: (machine of the sender, machine of the receiver)."""
    return list(zip(place, place[1:] + place[:1] if around else place[1:]))


def _counted(chosen, sent, place):
    """`sent` for each hop of a list of machines that send."""
    return [sent * chosen.count(machine) for machine in range(max(place) + 1)]


def _no_way_back(sent, place):
    return _counted([here for here, there in _hops(place, around=False) if here != there], sent, place)


def _all_hops(sent, place):
    return _counted(place, sent, place)


def _inside(sent, place):
    return _counted([here for here, there in _hops(place) if here == there], sent, place)


def _one_hop(sent, place):
    return [sent if len(set(place)) > 1 else 0] * (max(place) + 1)


def _total(sent, place):
    return [sent * sum(here != there for here, there in _hops(place))] * (max(place) + 1)


def _twice(sent, place):
    return [2 * bytes_sent for bytes_sent in _right(sent, place)]


def _halves(sent, place):
    return [bytes_sent / 2 for bytes_sent in _right(sent, place)]


def _all_to_all(sent, place):
    """As if each rank sent an equal part to every other."""
    ranks = len(place)
    return [sent * sum(place[a] == m and place[b] != m for a in range(ranks) for b in range(ranks)) / (ranks - 1) for m in range(max(place) + 1)]


def _even_odd(sent, place):
    return _counted([here for here, there in _hops(place) if here < there], sent, place)


def _two_machines(sent, place):
    return _right(sent, place)[:2]


def _right(sent, place):
    return _counted([here for here, there in _hops(place) if here != there], sent, place)


cable_bytes = Build(
    "cable_bytes",
    _cable_bytes,
    mistakes={
        "the ring closes: the last rank sends to rank 0": _no_way_back,
        "these are all bytes that a machine's ranks send; only hops to another machine cross the cable": _all_hops,
        "these are the hops that stay inside; the others cross the cable": _inside,
        "that is one hop per machine, which is right for neighbours together alone: look at every hop": _one_hop,
        "these are the bytes of all machines together; each card sends those of its own ranks": _total,
        "that is twice as much: count a hop where it is sent alone, and `sent` holds an all-reduce's factor 2 already": _twice,
        "that is half of it: nothing is shared between the two directions of a cable": _halves,
        "in a ring a rank sends everything to its one neighbour, not a part to every rank": _all_to_all,
        "a hop to a machine with a smaller number crosses the cable too": _even_odd,
        "there may be more than two machines: `max(place) + 1`": _two_machines,
    },
    praise="a ring crosses the cable as often as two neighbours in it are on different machines",
)


def _restart(function, seed):
    numbers, found = _random(seed), {}
    cases = [(8, 4, 2), (8, 4, 3), (24, 4, 10), (30, 4, 7), (64, 3, 5), (7, 8, 4), (12, 1, 5), (96, 8, 64), (16, 4, 4), (36, 6, 8)]
    cases += [(numbers.choice([48, 60, 72, 84, 90, 120]), numbers.randint(1, 9), numbers.randint(2, 50)) for _ in range(6)]
    for batch, largest, left in cases:
        got = function(batch, largest, left)
        if not isinstance(got, dict):
            raise TypeError(f"return a dict with ranks, micro_batch and accumulation, not {'nothing' if got is None else f'a {type(got).__name__}'}")
        if missing := [name for name in ("ranks", "micro_batch", "accumulation") if name not in got]:
            raise KeyError(f"{', '.join(missing)} is missing")
        words = f"{batch} sequences, {left} ranks left, at most {largest} at once"
        found |= {f"{name}: {words}": got[name] for name in ("ranks", "micro_batch", "accumulation")}
    return found


def _largest_divisor(number, most):
    return max(divisor for divisor in range(1, most + 1) if number % divisor == 0)


def _settings(ranks, micro_batch, accumulation):
    return {"ranks": ranks, "micro_batch": micro_batch, "accumulation": accumulation}


def _restarted(batch, largest, left, how=""):
    """`restart` with the mistake that is named; without one it is right."""
    ranks = _largest_divisor(batch, left)
    if how == "all ranks":
        ranks = left
    if how == "power of two":
        ranks = next(power for power in (64, 32, 16, 8, 4, 2, 1) if power <= left and batch % power == 0)
    if how == "common divisor":
        ranks = math.gcd(batch, left)
    if how == "half":
        ranks = next(left // 2**times for times in range(10) if left // 2**times == 1 or batch % (left // 2**times) == 0)
    each = batch // ranks
    if how == "rounded up":
        return _settings(left, min(largest, -(-batch // left)), -(-batch // (left * min(largest, -(-batch // left)))))
    if how == "no limit":
        return _settings(ranks, each, 1)
    if how == "limit":
        return _settings(ranks, min(largest, each), -(-each // min(largest, each)))
    if how == "rounded down":
        return _settings(ranks, min(largest, each), each // min(largest, each))
    if how == "one at a time":
        return _settings(ranks, 1, each)
    if how == "below":
        micro = _largest_divisor(each, max(1, largest - 1))
        return _settings(ranks, micro, each // micro)
    if how == "of the batch":
        micro = _largest_divisor(each, min(largest, each))
        return _settings(ranks, micro, batch // micro)
    micro = _largest_divisor(each, min(largest, each))
    return _settings(ranks, micro, each // micro)


def _mistaken(how):
    return lambda batch, largest, left: _restarted(batch, largest, left, how)


restart = Build(
    "restart",
    _restart,
    mistakes={
        "not all ranks that are left can share the batch equally: take the largest number that divides it": _mistaken("all ranks"),
        "the number of ranks need not be a power of two": _mistaken("power of two"),
        "the greatest common divisor is too strict: a number of ranks below those left may divide the batch too": _mistaken("common divisor"),
        "halving the ranks leaves some idle that could work: try every number": _mistaken("half"),
        "a rank cannot hold more than `largest` sequences at once: accumulate": _mistaken("no limit"),
        "micro_batch x accumulation must be a rank's part of the batch exactly, not more: the micro-batch must divide it": _mistaken("limit"),
        "micro_batch x accumulation must be a rank's part of the batch exactly, not less: the micro-batch must divide it": _mistaken("rounded down"),
        "that learns from more sequences than the batch has: ranks x micro_batch x accumulation must be the batch": _mistaken("rounded up"),
        "one sequence at a time is right but slow: take the largest micro-batch that fits and divides": _mistaken("one at a time"),
        "`largest` sequences themselves fit": _mistaken("below"),
        "each rank accumulates its own part of the batch, not all of it": _mistaken("of the batch"),
    },
    praise="the same batch on other ranks, so that learning goes on as it was",
)


def _files(*ranks, model=True):
    """Names in a tag's folder, with the files of these ranks."""
    return ["mp_rank_00_model_states.pt"] * model + [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks]


def _complete(names, ranks):
    return set(_files(*range(ranks))) <= set(names)


def _last(saved, good):
    """The newest tag whose names are good; "" if there is none."""
    return next((tag for tag, names in reversed(saved.items()) if good(names)), "")


safe_tag = Exercise(
    reference=lambda saved, ranks: _last(saved, lambda names: _complete(names, ranks)),
    cases=(
        {"saved": {"after-2": _files(0, 1), "after-4": _files(0, 1)}, "ranks": 2},
        {"saved": {"after-2": _files(0, 1), "after-4": _files(0)}, "ranks": 2},
        {"saved": {"a": _files(0, 1), "b": _files(0, 1, model=False), "c": _files(0)}, "ranks": 2},
        {"saved": {"after-4": _files(0, 1), "after-8": _files(0, 1), "after-10": _files(1, 0), "after-12": _files(0)}, "ranks": 2},
        {"saved": {"a": _files(0, 1, 2), "b": [*_files(0, 1), "notes.txt"], "c": _files(2)}, "ranks": 3},
    ),
    mistakes={
        "that is the tag in `latest`, or the last one: look whether each rank's file is there": lambda saved, ranks: list(saved)[-1],
        "that one is complete, but not the newest: look from the end, so that little work is lost": (
            lambda saved, ranks: next((tag for tag, names in saved.items() if _complete(names, ranks)), "")
        ),
        "the weights count too: mp_rank_00_model_states.pt": lambda saved, ranks: _last(
            saved, lambda names: set(_files(*range(ranks))[1:]) <= set(names)
        ),
        "as texts, after-8 comes behind after-10: keep to the order of `saved`": (
            lambda saved, ranks: max((tag for tag, names in saved.items() if _complete(names, ranks)), default="")
        ),
        "the number of files does not say whose they are: there may be others": lambda saved, ranks: _last(saved, lambda names: len(names) > ranks),
    },
    praise="what is complete, of that the newest",
)


save_interval = Exercise(
    reference=lambda save, unit_hours, units: theory.young_interval(save, 3600 * unit_hours / units),
    cases=(
        {"save": 60, "unit_hours": 50_000, "units": 1000},
        {"save": 30, "unit_hours": 20_000, "units": 16},
        {"save": 300, "unit_hours": 50_000, "units": 16_384},
        {"save": 1, "unit_hours": 10_000, "units": 1},
    ),
    mistakes={
        "all units can fail, and the first one ends the job: divide their hours by their number": (
            lambda save, unit_hours, units: theory.young_interval(save, 3600 * unit_hours)
        ),
        "an hour has 3,600 seconds, and `save` is in seconds": lambda save, unit_hours, units: theory.young_interval(save, unit_hours / units),
        "the 2 is missing: half an interval is lost on average": lambda save, unit_hours, units: (save * 3600 * unit_hours / units) ** 0.5,
        "the root is missing": lambda save, unit_hours, units: 2 * save * 3600 * unit_hours / units,
        "that is the time between two failures": lambda save, unit_hours, units: 3600 * unit_hours / units,
        "that is in hours: asked for are seconds": lambda save, unit_hours, units: theory.young_interval(save, 3600 * unit_hours / units) / 3600,
    },
    praise="four times the machines, and the interval is half as long",
)
