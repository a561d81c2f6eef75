"""Answers of lesson 18: what crosses the cable, a restart on fewer ranks, saving safely, and how often."""

import contextlib
import functools
import os
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import own_group
from helpers.course.exercises.solutions import clusters as solutions
from helpers.course.exercises.trials import build, complete, formula, random_of_rank, returned
from helpers.tools import theory


def _places(numbers):
    """Placements to try, each with its name."""
    ranks = 2 * dist.get_world_size() + 2
    by_chance = [numbers.randrange(3) for _ in range(ranks - 3)] + [0, 1, 2]
    numbers.shuffle(by_chance)
    return {
        "neighbours together": [rank // (ranks // 2) for rank in range(ranks)],
        "dealt out": [rank % 2 for rank in range(ranks)],
        "three and the others": [0] * 3 + [1] * (ranks - 3),
        "three machines, by chance": by_chance,
        "all on machine 0": [0] * ranks,
        "a machine for each rank": list(range(ranks)),
    }


def _cable_bytes(function, seed):
    numbers, seen = random_of_rank(seed), {}
    for words, place in _places(numbers).items():
        sent = 1000 * numbers.randint(1, 9999)
        due = "return a list with a number for each machine"
        cards = returned(function(sent, list(place)), (list, tuple), due)
        case = f"ranks on {place} ({words}), each sends {sent:,}"
        seen[f"bytes from each machine, {case}"] = [float(bytes_sent) for bytes_sent in cards]
    return seen


CROSSES, ADDS = "if neighbour != machine:", "cards[machine] += sent"
cable_bytes = build(solutions.cable_bytes_solution, _cable_bytes, mistakes={
    ("enumerate(place)", "enumerate(place[:-1])"): "the ring closes: the last rank sends to rank 0",
    (CROSSES, "if True:"):
        "these are all bytes that a machine's ranks send; only hops to another machine cross the cable",
    (CROSSES, "if neighbour == machine:"): "these are the hops that stay inside; the others cross the cable",
    (ADDS, "cards[machine] = sent"):
        "that is one hop per machine, which is right for neighbours together alone: look at every hop",
    ("return cards", "return [sum(cards)] * len(cards)"):
        "these are the bytes of all machines together; each card sends those of its own ranks",
    (ADDS, f"{ADDS} * 2"): "that is twice as much: count a hop only where it is sent, and `sent` holds an "
        "all-reduce's factor 2 already",
    (ADDS, f"{ADDS} / 2"): "that is half of it: nothing is shared between the two directions of a cable",
    (CROSSES, "for other in place:", ADDS, f"{ADDS} * (other != machine) / (len(place) - 1)"):
        "in a ring a rank sends everything to its one neighbour, not a part to every rank",
    (CROSSES, "if neighbour > machine:"): "a hop to a machine with a smaller number crosses the cable too",
    ("return cards", "return cards[:2]"): "there may be more than two machines: `max(place) + 1`",
}, praise="a ring crosses the cable as often as two neighbours in it are on different machines")  # fmt: skip


def _restart(function, seed):
    """Cases (batch, largest, left): every batch has at least a sequence for each rank, as it had before."""
    numbers, seen, names = random_of_rank(seed), {}, ("ranks", "micro_batch", "accumulation")
    batches = (48, 60, 72, 84, 90, 120)
    cases = [(8, 4, 2), (8, 4, 3), (24, 4, 10), (30, 4, 7), (64, 3, 5), (7, 8, 4), (12, 1, 5), (96, 8, 64)]
    cases += [(16, 4, 4), (36, 6, 8)]
    cases += [(numbers.choice(batches), numbers.randint(1, 9), numbers.randint(2, 48)) for _ in range(6)]
    for batch, largest, left in cases:
        settings = complete(function(batch, largest, left), names)
        case = f"{batch} sequences, {left} ranks left, at most {largest} at once"
        seen |= {f"{name}: {case}": settings[name] for name in names}
    return seen


RANKS = "next(ranks for ranks in range(left, 0, -1) if batch % ranks == 0)"
MICRO, REST = "next(size for size in range(largest, 0, -1) if part % size == 0)", "part // micro_batch"
restart = build(solutions.restart_solution, _restart, mistakes={
    (RANKS, "left"):
        "not all ranks that are left can share the batch equally: take the largest number that divides it",
    ("range(left, 0, -1) if", "(64, 32, 16, 8, 4, 2, 1) if ranks <= left and"):
        "the number of ranks need not be a power of two",
    ("if batch % ranks == 0", "if batch % ranks == left % ranks == 0"): "the greatest common divisor is too "
        "strict: a number of ranks below those left may divide the batch too",
    ("range(left, 0, -1)", "(left // 2**times for times in range(10))"):
        "halving the ranks leaves some idle that could work: try every number",
    (MICRO, "part"): "a rank cannot hold more than `largest` sequences at once: accumulate",
    (MICRO, "min(largest, part)", REST, "-(-part // micro_batch)"): "micro_batch x accumulation must be a "
        "rank's part of the batch exactly, not more: the micro-batch must divide it",
    (MICRO, "min(largest, part)"): "micro_batch x accumulation must be a rank's part of the batch exactly, "
        "not less: the micro-batch must divide it",
    (RANKS, "left", "part = batch // ranks", "part = -(-batch // ranks)", MICRO, "min(largest, part)", REST,
        "-(-part // micro_batch)"): "that learns from more sequences than the batch has: ranks x micro_batch "
        "x accumulation must be the batch",
    (MICRO, "1"):
        "one sequence at a time is right but slow: take the largest micro-batch that fits and divides",
    ("range(largest, 0, -1)", "range(max(largest - 1, 1), 0, -1)"): "`largest` sequences themselves fit",
    (REST, "batch // micro_batch"): "each rank accumulates its own part of the batch, not all of it",
}, praise="fewer ranks train on the same batch, so learning goes on as before")  # fmt: skip


def _text(file):
    return file.read_text() if file.exists() else "nothing: there is no such file"


def _noted(rename, latest, renames, old, new, **options):
    """A rename; notes what `latest` says just before, and the folder that the renamed file comes from."""
    renames.append((_text(latest), Path(old).parent))
    return rename(old, new, **options)


class _Pretended:
    """An engine that saves as DeepSpeed does: each rank's file; `latest`, by rank 0 after its own; a barrier.
    The last rank writes late, and looks at `latest` just before.  If it `fails`, all ranks raise."""

    def __init__(self, fails):
        self.fails, self.global_rank, self.last = fails, dist.get_rank(), dist.get_world_size() - 1
        self.seen = "nothing: it was not asked to save"

    def save_checkpoint(
        self, save_dir, tag=None, client_state=None, save_latest=True, exclude_frozen_parameters=False
    ):
        folder, tag = Path(save_dir), str(tag)
        (folder / tag).mkdir(parents=True, exist_ok=True)
        if self.global_rank < self.last:
            (folder / tag / f"rank-{self.global_rank}").touch()
        if save_latest and self.global_rank == 0:
            (folder / "latest").write_text(tag)
        dist.barrier()
        self.seen = _text(folder / "latest")
        dist.barrier()
        if self.fails:
            raise ConnectionError("the last rank has ended before its file was written")
        if self.global_rank == self.last:
            (folder / tag / f"rank-{self.global_rank}").touch()
        dist.barrier()


def _save_safely(function, seed):
    """Two saves beside an older checkpoint; a second name of `latest` shows whether it is written into."""
    numbers, seen = random.Random(seed), {}
    for fails in (False, True):
        shared = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(shared, group=own_group())
        folder, tag = Path(shared[0]), f"after-{numbers.randint(3, 999)}"
        latest, old_file = folder / "latest", folder / "the same file"
        if dist.get_rank() == 0:
            latest.write_text("after-2")
            os.link(latest, old_file)
        dist.barrier(group=own_group())
        engine, renames = _Pretended(fails), []
        with contextlib.ExitStack() as stack:
            for rename in (os.rename, os.replace):
                noted = functools.partial(_noted, rename, latest, renames)
                stack.enter_context(mock.patch.object(os, rename.__name__, noted))
            if fails:
                stack.enter_context(contextlib.suppress(ConnectionError))
            function(engine, str(folder) if fails else folder, tag)
        dist.barrier(group=own_group())
        case = "when the last rank dies in the save" if fails else "when all goes well"
        if engine.global_rank:
            seen[f"how many files this rank renames, {case}"] = len(renames)
        elif not fails:
            said = renames[-1][0] if renames else "nothing was renamed"
            seen[f"what `latest` says just before a file is renamed to it, {case}"] = said
            in_folder = all(source == folder for _, source in renames)
            seen[f"the renamed file comes from the folder of `latest`, {case}"] = in_folder
        if engine.global_rank == engine.last:
            seen[f"what `latest` says while the last rank has not written its file, {case}"] = engine.seen
        seen[f"what `latest` says in the end, {case}"] = _text(latest)
        seen[f"what the file that was `latest` before holds, {case}"] = old_file.read_text()
        dist.barrier(group=own_group())
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
    return seen


SAVING = "engine.save_checkpoint(folder, tag=tag, save_latest=False)"
ON_RANK_0, WRITING = "if engine.global_rank == 0:", "new.write_text(tag)"
RENAMING = 'os.replace(new, Path(folder, "latest"))'
UNLINKED = 'Path(folder, "latest").unlink()\n        '
save_safely = build(solutions.save_safely_solution, _save_safely, together=True, mistakes={
    (", save_latest=False", "", ON_RANK_0, "if False:"): "DeepSpeed's rank 0 writes `latest` after its own "
        "files, not after everybody's: save_latest=False, and name it afterwards",
    (ON_RANK_0, "if False:"):
        "in the end `latest` must name the new checkpoint: rename the file to it, `os.replace(new, latest)`",
    (RENAMING, "pass", "latest.new", "latest"): "a job that dies while it writes into `latest` leaves it "
        "empty: write a file beside it, then `os.replace`",
    (RENAMING, f"{RENAMING}\n    engine.save", SAVING, "pass", "engine.save  #", f"{SAVING}  #"):
        "the checkpoint is named before it is saved: first save_checkpoint, which returns when all ranks "
        "have written",
    (ON_RANK_0, "import contextlib\n\n    with contextlib.suppress(FileNotFoundError):"):
        "all ranks write the same file at the same time: let rank 0 do it",
    (SAVING, f"import contextlib\n\n    with contextlib.suppress(ConnectionError):\n        {SAVING}"):
        "a save that failed must not be named: let its error pass",
    (SAVING, f'{ON_RANK_0}\n        {UNLINKED}Path(folder, "latest").write_text("")\n    {SAVING}'):
        "until the new checkpoint is whole `latest` must name the old one: do not empty or remove it",
    (RENAMING, f'{UNLINKED}new.rename(Path(folder, "latest"))'):
        "a job that dies between the two leaves no `latest` at all: `os.replace` needs no unlink before it",
    (RENAMING, "pass", WRITING, f'{UNLINKED}Path(folder, "latest").write_text(tag)'):
        "a new `latest` is empty until it is written, and before that there is none: write a file beside "
        "it, then `os.replace`",
    ('Path(folder, "latest.new")', 'Path(tempfile.mkdtemp(), "latest.new")'):
        "a rename works inside one file system: write the file beside `latest`, not in another folder",
}, praise="the checkpoint gets its name when it is whole, by one rename")  # fmt: skip


def _interval(save, unit_hours, units):
    return theory.young_interval(save, 3600 * unit_hours / units)


save_interval = formula(solutions.save_interval_solution, reference=_interval, cases=[
    (60, 50_000, 1000), (30, 20_000, 16), (300, 50_000, 16_384), (1, 10_000, 1),
], mistakes={
    (" / units", ""):
        "all units can fail, and the first one ends the job: divide their hours by their number",
    (" * 3600", ""): "an hour has 3,600 seconds, and `save` is in seconds",
    ("2 * save", "save"): "the 2 is missing: half an interval is lost on average",
    (" ** 0.5", ""): "the root is missing",
    ("(2 * save * 3600 * unit_hours / units) ** 0.5", "3600 * unit_hours / units"):
        "that is the time between two failures",
    (" ** 0.5", " ** 0.5 / 3600"): "that is in hours: asked for are seconds",
}, praise="with four times the machines the interval is half as long")  # fmt: skip
