"""Print nbval's options: strict in the pinned environment, lax elsewhere (losses differ there, and words of other versions)."""

import importlib.metadata
import sys
from pathlib import Path

PYTHON = (3, 11)  # the version whose outputs are stored
DECISIVE = ("torch", "deepspeed", "transformers", "numpy", "ipython", "ipykernel")


def pinned():
    """{package: version} of constraints.txt."""
    lines = (Path(__file__).parent.parent / "constraints.txt").read_text().splitlines()
    rows = [line.split(";")[0].strip().lower() for line in lines if "==" in line and not line.startswith("#")]
    return dict(row.split("==") for row in rows)


def is_strict():
    pins = pinned()
    return sys.version_info[:2] == PYTHON and all(importlib.metadata.version(name).split("+")[0] == pins[name] for name in DECISIVE)


if __name__ == "__main__":
    print("--nbval" if is_strict() else "--nbval-lax", "--nbval-current-env --nbval-cell-timeout=300")
    if not is_strict():
        print("not the pinned environment: notebooks run in the lax lane", file=sys.stderr)
