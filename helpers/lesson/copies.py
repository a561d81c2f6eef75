"""The learner's copies of the lessons: `python -m helpers.lesson.copies open | copy | reset 02`.

JupyterLab saves as you work, so lessons are opened as copies in `work/`, which git ignores.  A copy is never overwritten unless asked for.
"""

from __future__ import annotations

import os
import shutil
import sys

from helpers.paths import ROOT


def lessons(root=ROOT):
    """The course's notebooks in order."""
    return sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def copy(root=ROOT):
    """Copy every lesson that has no copy yet; returns the folder."""
    work = root / "work"
    work.mkdir(exist_ok=True)
    for lesson in lessons(root):
        if not (work / lesson.name).exists():
            shutil.copyfile(lesson, work / lesson.name)
    return work


def reset(number, root=ROOT):
    """Replace the copy of one lesson; the old one is kept as `.bak`.  Returns the new copy's path."""
    found = [lesson for lesson in lessons(root) if lesson.name.startswith(f"{number}_")] if number else []
    if not found:
        known = ", ".join(lesson.name[:2] for lesson in lessons(root))
        raise ValueError(f"no lesson {number!r}: name one with LESSON=, of {known}")
    target = root / "work" / found[0].name
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        target.replace(target.with_suffix(".ipynb.bak"))
    shutil.copyfile(found[0], target)
    return target


def open_lab(root=ROOT):
    """Replace this process by JupyterLab at the first lesson."""
    work = copy(root)
    options = ["--allow-root"] if os.geteuid() == 0 else []  # root: in a container
    os.chdir(work)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options, lessons(root)[0].name])


def main(verb="open", number=""):
    if verb == "open":
        open_lab()
    elif verb == "copy":
        print(copy())
    elif verb == "reset":
        print("fresh:", reset(number).relative_to(ROOT))
    else:
        raise ValueError(f"{verb!r} is not one of open, copy, reset")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except ValueError as error:
        sys.exit(str(error))
