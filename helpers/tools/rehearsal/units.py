"""Sizes of memory, as people write and read them."""

from __future__ import annotations

import re

from .refusing import BadQuestion


def size(text: str) -> int:
    """Bytes from "80GB", "80 GiB" or "80e9"."""
    parts = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kKMGT]?)(i?)B?\s*", text)
    if not parts or float(parts[1]) <= 0:
        raise BadQuestion(f"a size of memory is written as 80GB, 80GiB or 80e9, not {text!r}")
    return int(float(parts[1]) * (1024 if parts[3] else 1000) ** " KMGT".index(parts[2].upper() or " "))


def gigabytes(size: float) -> str:
    """GB of 10^9 bytes, with two decimals."""
    return f"{size / 1e9:,.2f}"
