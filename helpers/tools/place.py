"""Where these tools lie and what they are called: `helpers.tools` in a checkout of the course, and
`distributed_training_measured` where they are installed without it."""

import os
from pathlib import Path

NAME = __package__
OURS = NAME.partition(".")[0]  # the package that is imported with them
ROOT = Path(os.path.abspath(__file__)).parents[NAME.count(".") + 1]  # the folder on `sys.path`


def run_main(module: str) -> str:
    """Python code that runs the `main` of one of these modules in a process that knows nothing of them."""
    return f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {NAME}.{module} import main; main()"
