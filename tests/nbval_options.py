"""Print nbval's options: strict in the pinned environment, lax elsewhere (losses differ there, and words of
other versions).
"""

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement

PYTHON = (3, 11)  # the version whose outputs are stored
# takes pictures out of what is compared; the sentences stay
PICTURES = "--nbval-sanitize-with=tests/nbval_pictures.cfg"
DECISIVE = ("torch", "deepspeed", "transformers", "numpy", "ipython", "ipykernel")


def pinned():
    """{package: version} of constraints.txt, as far as they are for this Python."""
    lines = (Path(__file__).parent.parent / "constraints.txt").read_text().splitlines()
    rows = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        row.name.lower(): next(iter(row.specifier)).version
        for row in rows
        if row.marker is None or row.marker.evaluate()
    }


def is_strict():
    pins = pinned()
    return sys.version_info[:2] == PYTHON and all(
        importlib.metadata.version(name).split("+")[0] == pins[name] for name in DECISIVE
    )


if __name__ == "__main__":
    print(
        "--nbval" if is_strict() else "--nbval-lax", "--nbval-current-env --nbval-cell-timeout=600", PICTURES
    )
    if not is_strict():
        print("not the pinned environment: notebooks run in the lax lane", file=sys.stderr)
