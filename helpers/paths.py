"""Where things lie in a checkout of the course."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
RECORDED = ROOT / "recorded"  # runs on GPUs that the course shows
WORK = ROOT / "work"  # what is the learner's own: copies of the lessons, recordings, progress; ignored by git
MORE = "more"  # the folder of the companions, within that of the lessons and within that of their copies


def in_work(work: Path = WORK) -> bool:
    """Whether this process runs where the learner's copies are, of lessons or of companions."""
    return Path.cwd().resolve() in (work.resolve(), (work / MORE).resolve())


def replace(path: Path, content: str | bytes) -> None:
    """Write a file that a reader sees as it was or as it will be, never a part; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
