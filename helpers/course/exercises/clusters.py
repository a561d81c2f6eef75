"""Answers of lesson 16: what crosses the cable, a restart on the ranks that are left, a checkpoint named when
it is whole, how often to save."""

import math
import os
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from helpers.course.exercises.engine import Build, Exercise
from helpers.course.exercises.guesses import guess
from helpers.tools import theory

__all__ = ["cable_bytes", "guess", "restart", "save_interval", "save_safely"]


def _random(seed):
    """The trial's random numbers, other ones on every rank."""
    import deepspeed.comm as comm

    return random.Random(1000 * seed + comm.get_rank())


def _places(numbers):
    """Placements to try: neighbours together, dealt out, unequal, by chance, all on one machine, a machine
    for each rank."""
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
            raise TypeError(
                "return a list with a number for each machine, not "
                f"{'nothing' if got is None else f'a {type(got).__name__}'}"
            )
        found[f"bytes from each machine, ranks on {place} ({words}), each sends {sent:,}"] = [
            float(bytes_sent) for bytes_sent in got
        ]
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
    return [
        sent * sum(place[a] == m and place[b] != m for a in range(ranks) for b in range(ranks)) / (ranks - 1)
        for m in range(max(place) + 1)
    ]


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
        "these are all bytes that a machine's ranks send; only hops to "
        "another machine cross the cable": _all_hops,
        "these are the hops that stay inside; the others cross the cable": _inside,
        "that is one hop per machine, which is right for neighbours "
        "together alone: look at every hop": _one_hop,
        "these are the bytes of all machines together; each card sends those of its own ranks": _total,
        "that is twice as much: count a hop where it is sent alone, and `sent` holds an "
        "all-reduce's factor 2 already": _twice,
        "that is half of it: nothing is shared between the two directions of a cable": _halves,
        "in a ring a rank sends everything to its one neighbour, not a part to every rank": _all_to_all,
        "a hop to a machine with a smaller number crosses the cable too": _even_odd,
        "there may be more than two machines: `max(place) + 1`": _two_machines,
    },
    praise="a ring crosses the cable as often as two neighbours in it are on different machines",
)


def _restart(function, seed):
    numbers, found = _random(seed), {}
    cases = [
        (8, 4, 2),
        (8, 4, 3),
        (24, 4, 10),
        (30, 4, 7),
        (64, 3, 5),
        (7, 8, 4),
        (12, 1, 5),
        (96, 8, 64),
        (16, 4, 4),
        (36, 6, 8),
    ]
    # with a sequence for each rank, at least, as every batch has that was trained on
    cases += [
        (numbers.choice([48, 60, 72, 84, 90, 120]), numbers.randint(1, 9), numbers.randint(2, 48))
        for _ in range(6)
    ]
    for batch, largest, left in cases:
        got = function(batch, largest, left)
        if not isinstance(got, dict):
            raise TypeError(
                "return a dict with ranks, micro_batch and accumulation, not "
                f"{'nothing' if got is None else f'a {type(got).__name__}'}"
            )
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
        ranks = next(
            left // 2**times
            for times in range(10)
            if left // 2**times == 1 or batch % (left // 2**times) == 0
        )
    each = batch // ranks
    if how == "rounded up":
        return _settings(
            left, min(largest, -(-batch // left)), -(-batch // (left * min(largest, -(-batch // left))))
        )
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
        "not all ranks that are left can share the batch equally: take the "
        "largest number that divides it": _mistaken("all ranks"),
        "the number of ranks need not be a power of two": _mistaken("power of two"),
        "the greatest common divisor is too strict: a number of ranks below those left may "
        "divide the batch too": _mistaken("common divisor"),
        "halving the ranks leaves some idle that could work: try every number": _mistaken("half"),
        "a rank cannot hold more than `largest` sequences at once: accumulate": _mistaken("no limit"),
        "micro_batch x accumulation must be a rank's part of the batch exactly, not more: the "
        "micro-batch must divide it": _mistaken("limit"),
        "micro_batch x accumulation must be a rank's part of the batch exactly, not less: the "
        "micro-batch must divide it": _mistaken("rounded down"),
        "that learns from more sequences than the batch has: ranks x micro_batch x accumulation "
        "must be the batch": _mistaken("rounded up"),
        "one sequence at a time is right but slow: take the largest "
        "micro-batch that fits and divides": _mistaken("one at a time"),
        "`largest` sequences themselves fit": _mistaken("below"),
        "each rank accumulates its own part of the batch, not all of it": _mistaken("of the batch"),
    },
    praise="the same batch on other ranks, so that learning goes on as it was",
)


def _text(file):
    return file.read_text() if file.exists() else "nothing: there is no such file"


class _Pretended:
    """An engine that saves as DeepSpeed does: a file of each rank; `latest`, by rank 0 after its own file; a
    barrier.

    The last rank writes late, and looks at `latest` just before.  With `fails`, it never writes: it and, as a
    barrier without it, all others raise."""

    def __init__(self, fails):
        import deepspeed.comm as comm

        self.fails, self.global_rank, self.last, self.seen = (
            fails,
            comm.get_rank(),
            comm.get_world_size() - 1,
            "",
        )

    def save_checkpoint(
        self, save_dir, tag=None, client_state=None, save_latest=True, exclude_frozen_parameters=False
    ):
        import deepspeed.comm as comm

        folder, tag = Path(save_dir), str(tag)
        (folder / tag).mkdir(parents=True, exist_ok=True)
        if self.global_rank < self.last:
            (folder / tag / f"rank-{self.global_rank}").touch()
        if save_latest and self.global_rank == 0:
            (folder / "latest").write_text(tag)
        comm.barrier()
        if self.global_rank == self.last:
            self.seen = _text(folder / "latest")
        comm.barrier()
        if self.fails:
            raise ConnectionError("the last rank has ended before its file was written")
        if self.global_rank == self.last:
            (folder / tag / f"rank-{self.global_rank}").touch()
        comm.barrier()


def _save_safely(function, seed):
    """Two saves into a folder whose `latest` names an older checkpoint, and in which a second name of that
    file shows whether it is written into."""
    import deepspeed.comm as comm
    import torch.distributed as dist

    numbers, found = random.Random(seed), {}
    for fails in (False, True):
        given = [tempfile.mkdtemp()] if comm.get_rank() == 0 else [None]
        dist.broadcast_object_list(given)
        folder, tag = Path(given[0]), f"after-{numbers.randint(3, 999)}"
        if comm.get_rank() == 0:
            (folder / "latest").write_text("after-2")
            os.link(folder / "latest", folder / "the same file")
        comm.barrier()
        engine = _Pretended(fails)
        before = []  # what `latest` said when a file was renamed
        rename, replace = (
            _noting(function_of_os, folder / "latest", before) for function_of_os in (os.rename, os.replace)
        )
        with mock.patch("os.replace", replace), mock.patch("os.rename", rename):
            try:
                function(engine, str(folder), tag)
            except ConnectionError:
                if not fails:
                    raise
        comm.barrier()
        case = "when the last rank dies in the save" if fails else "when all goes well"
        if engine.global_rank:
            found[f"how many files this rank renames, {case}"] = len(before)
        elif not fails:
            found[f"what `latest` says just before a file is renamed to it, {case}"] = (
                before[-1] if before else "nothing was renamed"
            )
        if engine.global_rank == engine.last:
            found[f"what `latest` says while the last rank has not written its file, {case}"] = engine.seen
        found[f"what `latest` says in the end, {case}"] = _text(folder / "latest")
        found[f"what the file that was `latest` before holds, {case}"] = (
            folder / "the same file"
        ).read_text()
        comm.barrier()
        if comm.get_rank() == 0:
            shutil.rmtree(folder)
    return found


def _noting(function, file, texts):
    """A function of `os` that first appends the file's text to a list."""

    def noting(*names, **options):
        texts.append(_text(file))
        return function(*names, **options)

    return noting


def _renamed(engine, folder, tag):
    """Rank 0 writes `latest` beside, and renames it."""
    if engine.global_rank == 0:
        new = Path(folder, "latest.new")
        new.write_text(tag)
        os.replace(new, Path(folder, "latest"))


def _as_deepspeed(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag)


def _never(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag, save_latest=False)


def _written_into(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag, save_latest=False)
    if engine.global_rank == 0:
        Path(folder, "latest").write_text(tag)


def _named_first(engine, folder, tag):
    _renamed(engine, folder, tag)
    engine.save_checkpoint(folder, tag=tag, save_latest=False)


def _everybody(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag, save_latest=False)
    new = Path(folder, "latest.new")
    try:
        new.write_text(tag)
        os.replace(new, Path(folder, "latest"))
    except FileNotFoundError:  # another rank was faster
        pass


def _in_any_case(engine, folder, tag):
    try:
        engine.save_checkpoint(folder, tag=tag, save_latest=False)
    finally:
        _renamed(engine, folder, tag)


def _removed(engine, folder, tag):
    if engine.global_rank == 0:
        Path(folder, "latest").unlink()
        Path(folder, "latest").write_text("")
    engine.save_checkpoint(folder, tag=tag, save_latest=False)
    _renamed(engine, folder, tag)


def _unlinked(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag, save_latest=False)
    if engine.global_rank == 0:
        new = Path(folder, "latest.new")
        new.write_text(tag)
        Path(folder, "latest").unlink()
        new.rename(Path(folder, "latest"))


def _written_anew(engine, folder, tag):
    engine.save_checkpoint(folder, tag=tag, save_latest=False)
    if engine.global_rank == 0:
        Path(folder, "latest").unlink()
        Path(folder, "latest").write_text(tag)


save_safely = Build(
    "save_safely",
    _save_safely,
    mistakes={
        "DeepSpeed's rank 0 writes `latest` after its own files, not after everybody's: "
        "save_latest=False, and name it afterwards": _as_deepspeed,
        "in the end `latest` must name the new checkpoint: rename the file to it, "
        "`os.replace(new, latest)`": _never,
        "who dies while it writes into `latest` leaves it empty: write a file beside it, then "
        "`os.replace`": _written_into,
        "the checkpoint is named before it is saved: first save_checkpoint, which returns when "
        "all ranks have written": _named_first,
        "all ranks write the same file at the same time: let rank 0 do it": _everybody,
        "a save that failed must not be named: let its error pass": _in_any_case,
        "until the new checkpoint is whole `latest` must name the old one: "
        "do not empty or remove it": _removed,
        "who dies between the two finds no `latest` at all: `os.replace` "
        "needs no unlink before it": _unlinked,
        "a new `latest` is empty until it is written, and before that there is none: write a "
        "file beside it, then `os.replace`": _written_anew,
    },
    praise="named when it is whole, by one rename",
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
        "an hour has 3,600 seconds, and `save` is in seconds": lambda save, unit_hours, units: (
            theory.young_interval(save, unit_hours / units)
        ),
        "the 2 is missing: half an interval is lost on average": lambda save, unit_hours, units: (
            (save * 3600 * unit_hours / units) ** 0.5
        ),
        "the root is missing": lambda save, unit_hours, units: 2 * save * 3600 * unit_hours / units,
        "that is the time between two failures": lambda save, unit_hours, units: 3600 * unit_hours / units,
        "that is in hours: asked for are seconds": lambda save, unit_hours, units: (
            theory.young_interval(save, 3600 * unit_hours / units) / 3600
        ),
    },
    praise="four times the machines, and the interval is half as long",
)
