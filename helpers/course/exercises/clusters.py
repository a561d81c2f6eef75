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
from helpers.course.exercises.meeting import own_group
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.stubs import Returning, Stubs
from helpers.course.exercises.trials import complete, random_of_rank
from helpers.tools import theory

stubs = Stubs("clusters")


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


cable_bytes = stubs.build("cable_bytes", Returning(_cable_bytes))


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


restart = stubs.build("restart", Returning(_restart))


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


save_safely = stubs.build("save_safely", Returning(_save_safely), together=True)


def _interval(save, unit_hours, units):
    return theory.young_interval(save, 3600 * unit_hours / units)


save_interval = stubs.formula(
    "save_interval",
    reference=_interval,
    cases=[
        (60, 50_000, 1000),
        (30, 20_000, 16),
        (300, 50_000, 16_384),
        (1, 10_000, 1),
    ],
)
