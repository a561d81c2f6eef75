"""Where things lie in a checkout of the course."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
RECORDED = ROOT / "recorded"  # runs on GPUs that the course shows
WORK = ROOT / "work"  # what is the learner's own: copies of the lessons, recordings, progress; ignored by git
