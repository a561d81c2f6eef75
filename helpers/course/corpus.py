"""The training text: the source code of the installed DeepSpeed, byte by byte.

It is real text, it is on every learner's machine without a download, and in the pinned environment it is the
same for everyone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from helpers.paths import WORK, replace
from helpers.tools.whole import whole

# DeepSpeed's version and the SHA-256 of its text
TESTED = "0.19.8", "f47dfa001cbbdeb6ec25d9b88f0c98328e620c2cb4d90c7f48c88a242541dd30"
LONGEST = 1_000_000  # tokens of a row; the text has 5.9 million
WRITTEN_AT_BUILD = "git_version_info_installed.py"


def files() -> list[Path]:
    """DeepSpeed's Python files in sorted order, without what its build wrote on this machine."""
    root = Path(importlib.util.find_spec("deepspeed").origin).parent
    paths = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    return [path for path in paths if path.name != WRITTEN_AT_BUILD]


@functools.cache
def text() -> bytes:
    """All of it, as bytes (5.9 MB).  Warns where it is not the tested text, which is kept in one file: to
    read 750 takes longer than a step."""
    kept = WORK / f".text-of-deepspeed-{importlib.metadata.version('deepspeed')}"
    with suppress(OSError):
        if not difference(content := kept.read_bytes()):
            return content
    content = b"".join(path.read_bytes() for path in files())
    if problem := difference(content):
        warnings.warn(problem, stacklevel=2)
    else:
        with suppress(OSError):  # a checkout that may not be written to
            replace(kept, content)
    return content


def difference(content: bytes) -> str | None:
    """A sentence where the text is not the one that the stored outputs were made with, else None."""
    if hashlib.sha256(content).hexdigest() == TESTED[1]:
        return None
    return (
        "the training text differs from the tested one (DeepSpeed "
        f"{importlib.metadata.version('deepspeed')} is installed, {TESTED[0]} was tested; "
        f"{len(content):,} bytes): losses will not equal the stored ones, byte counts of memory and "
        "traffic will"
    )


def batch(
    step: int, sequences: int, length: int, rank: int = 0, ranks: int = 1, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pieces of the text: token ids and the ids one place further, both int64 of shape (sequences /
    ranks, length).

    The global batch of a step, `sequences` rows of `length` tokens, is the same for any number of ranks; each
    data-parallel rank gets its own consecutive rows.  A TypeError or ValueError says which number cannot be
    used.
    """
    ranks = whole(ranks, "ranks", 1, 10**6)
    sequences, length = whole(sequences, "sequences", 1, 10**9), whole(length, "length", 1, LONGEST)
    if sequences % ranks:
        raise ValueError(
            f"a global batch of {sequences} sequences cannot be divided among {ranks} ranks: use "
            f"a multiple of {ranks}"
        )
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, not {rank}")
    source = text()
    random = torch.Generator().manual_seed(step)
    starts = torch.randint(len(source) - length - 1, (sequences,), generator=random).tolist()
    mine = starts[rank * sequences // ranks : (rank + 1) * sequences // ranks]
    rows = torch.tensor([list(source[start : start + length + 1]) for start in mine])
    return rows[:, :-1].to(device).contiguous(), rows[:, 1:].to(device).contiguous()
