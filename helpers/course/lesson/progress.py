"""Which checks this learner has passed: a small file in `work/`, `{"04": ["ring_all_reduce", ...]}`.

The first edition kept it in another file, under its own numbers of lessons; that one is read until the first
check is passed in this edition, and stays as it is.

Only copies of lessons that run in `work/`, and of their companions in `work/more/`, write it, so neither the
tests nor a reader of `notebooks/` do.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from helpers import paths
from helpers.course.syllabus.numbers import today

NAME = "passed.json"
FIRST_EDITIONS = "progress.json"


def record(name: str, lesson: str, work: Path | None = None) -> bool:
    """Keep that the check `name` of a lesson ("04") is passed; returns whether it was kept.

    Nothing happens outside of `work/`, and a folder that cannot be written is no error: a verdict does not
    depend on it.
    """
    work = work or paths.WORK
    try:
        if not paths.in_work(work):
            return False
        with open(work / f".{NAME}.lock", "w") as lock:
            # One kernel at a time reads, adds and writes; a kernel that dies gives the lock back.
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = passed(work)
            if name not in known.setdefault(lesson, []):
                known[lesson].append(name)
                paths.replace(work / NAME, json.dumps(known, indent=1, sort_keys=True) + "\n")
    except OSError:
        return False
    return True


def passed(work: Path | None = None) -> dict[str, list[str]]:
    """{lesson: names of the checks passed, in the order of passing}; what cannot be read counts as
    nothing."""
    work = work or paths.WORK
    if (work / NAME).exists():
        return read(work / NAME)
    return {today(number): names for number, names in read(work / FIRST_EDITIONS).items()}


def read(file: Path) -> dict[str, list[str]]:
    """What one such file says, under its own numbers."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    lessons = kept.items() if isinstance(kept, dict) else ()
    return {
        lesson: [name for name in names if isinstance(name, str)]
        for lesson, names in lessons
        if isinstance(names, list)
    }
