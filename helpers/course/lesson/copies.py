"""The learner's copies of the lessons and of their companions: `python -m helpers.course.lesson.copies
open | reset 02 | reset more/02`.

JupyterLab saves as you work, so lessons are opened as copies in `work/`, which git ignores.  They come
without the stored outputs, so that no answer stands under a question.  A copy that was edited or run is never
overwritten; `work/.copies.json` remembers which lesson it was made from.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import sys
from itertools import count
from typing import TYPE_CHECKING

from helpers.course.lesson import lab
from helpers.course.syllabus.numbers import FIRST_EDITION
from helpers.course.syllabus.outline import beside, notebooks, number_of
from helpers.paths import MORE, NOTEBOOKS, ROOT, replace

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "index.ipynb"
PICTURES = "map"  # beside it
DATES = ".copies.json"  # {path of a copy within work/: digest of the page that it was made from}
MAKEFILE = """# JupyterLab's terminal starts here: what is asked for is passed on to the course's Makefile.
.DEFAULT_GOAL := help
help .DEFAULT:
	@$(MAKE) --no-print-directory -C {course} $@
"""
RELOAD = "A tab that has it open still shows the old one: choose File, Reload Notebook from Disk there"
REASONS = {  # why nothing can be written
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your share of the disk is used up",
    errno.EROFS: "the folder is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
}
LANGUAGE = {  # what JupyterLab adds where it is missing, and then calls the notebook modified
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


def pages(root: Path) -> dict[str, Path]:
    """What is copied: {path within work/: lesson, companion or page beside them}."""
    folder = root / "notebooks"
    found = [*notebooks(folder), *beside(folder), folder / INDEX]
    return {page.relative_to(folder).as_posix(): page for page in found}


def copy(root: Path = ROOT) -> Path:
    """Copy every page that has no copy yet, and renew untouched copies of older pages; returns the folder."""
    work = root / "work"
    dates = read_dates(work)
    if INDEX not in dates and (work / INDEX).exists():
        dates[INDEX] = digest(work / INDEX)  # it was always written anew, and had no date
    take_new_names(work, dates)
    for name, page in pages(root).items():
        is_older = is_untouched(work, name, dates) and dates[name] != digest(page)
        if is_older or not (work / name).exists():
            write_copy(page, work, name, dates)
    return work


def copy_pictures(work: Path) -> None:
    """Bring the pictures beside the start page up to date."""
    for picture in (NOTEBOOKS / PICTURES).iterdir():
        replace(work / PICTURES / picture.name, picture.read_bytes())


def take_new_names(work: Path, dates: dict[str, str | None]) -> None:
    """Give copies of lessons of the first edition, and of their companions, the names of today."""
    for old, new in FIRST_EDITION.items():
        for folder in (work, work / MORE):
            former, target = folder / f"{old}.ipynb", folder / f"{new}.ipynb"
            if former.exists() and not target.exists():
                former.rename(target)
                date = dates.pop(former.relative_to(work).as_posix(), None)
                dates[target.relative_to(work).as_posix()] = date
                save_dates(work, dates)


def reset(number: str, root: Path = ROOT) -> tuple[Path, Path | None]:
    """Make a fresh copy of one page ("02", "more/02").  Returns its path, and where the old one went: None
    when it was untouched."""
    numbered = {number_of(page): (name, page) for name, page in pages(root).items()}
    if number not in numbered:
        raise ValueError(f"no lesson {number!r}: name one with LESSON=, of {', '.join(numbered)}")
    (name, page), kept, work = numbered[number], None, root / "work"
    target, dates = work / name, read_dates(work)
    if target.exists() and not is_untouched(work, name, dates):
        kept = free_name(target)
        target.rename(kept)
    try:
        write_copy(page, work, name, dates)
    except OSError:
        if kept:
            kept.rename(target)
        raise
    return target, kept


def older(root: Path = ROOT) -> list[Path]:
    """Pages of the course that are newer than the learner's copies of them."""
    work = root / "work"
    dates = read_dates(work)
    return [
        page
        for name, page in pages(root).items()
        if (work / name).exists() and digest(page) not in (dates.get(name), digest(work / name))
    ]


def free_name(path: Path) -> Path:
    """`02_training_memory.mine-1.ipynb`, or the next number that no file has."""
    names = (path.with_name(f"{path.stem}.mine-{number}.ipynb") for number in count(1))
    return next(mine for mine in names if not mine.exists())


def write_copy(page: Path, work: Path, name: str, dates: dict[str, str | None]) -> None:
    """Write a copy without outputs, as JupyterLab would save it, and remember it: it is whole and known, or
    is not there."""
    notebook, target = json.loads(page.read_text(encoding="utf-8")), work / name
    notebook["metadata"]["language_info"] = {**LANGUAGE, "version": platform.python_version()}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    replace(target, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    dates[name] = digest(page)
    try:
        save_dates(work, dates)
    except OSError:
        target.unlink()
        raise


def digest(path: Path) -> str | None:
    """A digest of the kinds and texts of a notebook's cells, whatever its outputs and metadata; None when it
    cannot be read."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = json.dumps([(cell["cell_type"], "".join(cell["source"])) for cell in cells])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return hashlib.sha256(texts.encode()).hexdigest()


def is_untouched(work: Path, name: str, dates: dict[str, str | None]) -> bool:
    """Whether a copy was neither edited nor run; what shows progress may have been run."""
    if name not in dates or digest(work / name) != dates[name]:
        return False
    cells = json.loads((work / name).read_text(encoding="utf-8"))["cells"]
    return not any(
        cell.get("outputs") and "progress" not in cell["metadata"].get("tags", ()) for cell in cells
    )


def read_dates(work: Path) -> dict[str, str | None]:
    try:
        return json.loads((work / DATES).read_text())
    except (OSError, ValueError):
        return {}


def save_dates(work: Path, dates: dict[str, str | None]) -> None:
    replace(work / DATES, json.dumps(dates, indent=1) + "\n")


def open_course() -> None:
    """Bring the copies up to date, say which are older than the course's, and open JupyterLab."""
    before = read_dates(ROOT / "work")
    work = copy()
    if not (work / "Makefile").exists():
        replace(work / "Makefile", MAKEFILE.format(course=os.pardir))
    copy_pictures(work)
    now = read_dates(work)
    if renewed := [name for name in before if now[name] != before[name]]:
        print(f"renewed, since the course has changed: {', '.join(renewed)}. {RELOAD}")
    for page in older():
        print(
            f"work/{page.relative_to(NOTEBOOKS)} is older than the course's; for the new one `make reset "
            f"LESSON={number_of(page)}`, which keeps yours beside it"
        )
    lab.open_lab(work, INDEX)


def main(verb: str = "open", number: str = "") -> None:
    if verb == "reset":
        fresh, kept = reset(number)
        print("fresh:", fresh.relative_to(ROOT), f"(yours is now {kept.relative_to(ROOT)})" if kept else "")
        print(RELOAD)
    elif verb == "open":
        open_course()
    else:
        raise ValueError(f"{verb!r} is neither open nor reset")


def run(*words: str) -> str | None:
    """`main`, and in a sentence why it could not do what was asked."""
    try:
        main(*words)
    except ValueError as error:
        return str(error)
    except OSError as error:
        why = REASONS.get(error.errno, str(error))
        return (
            f"work/ cannot be written: {why}. Nothing is half written: mend that, and type the command again"
        )
    return None


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:3]))
