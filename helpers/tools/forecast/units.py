"""Sizes of memory and other numbers, as people write and read them."""

from __future__ import annotations

import re

from ..rehearsal.refusing import BadQuestion


def size(text: str) -> int:
    """Bytes from "80GB", "80 GiB" or "80e9"."""
    parts = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kKMGT]?)(i?)B?\s*", text)
    if not parts or float(parts[1]) <= 0:
        raise BadQuestion(f"a size of memory is written as 80GB, 80GiB or 80e9, not {text!r}")
    return int(float(parts[1]) * (1024 if parts[3] else 1000) ** " KMGT".index(parts[2].upper() or " "))


def rate(text: str) -> int:
    """Bytes per second from "400GB/s"."""
    try:
        return size(text.removesuffix("/s"))
    except BadQuestion:
        raise BadQuestion(f"a bandwidth is written as 400GB/s, in bytes, not {text!r}") from None


LETTERS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def number_of(text: str) -> float:
    """Tokens from "1T", "15B", "300M" or "3e11"."""
    text = text.strip()
    letter = text[-1:].upper() if text[-1:].isalpha() else ""
    if letter not in LETTERS or not (number := _positive(text[: -1 if letter else None])):
        raise BadQuestion(f"a number of tokens is written as 1T, 15B or 3e11, not {text!r}")
    return number * LETTERS[letter]


def counted(number: float) -> str:
    """ "1T" from 1e12."""
    letter = max((name for name in LETTERS if LETTERS[name] <= number), key=LETTERS.get, default="")
    return f"{number / LETTERS[letter]:g}{letter}"


def amount(text: str) -> float:
    """Dollars from "2.5"."""
    if not (number := _positive(text.strip().removeprefix("$"))):
        raise BadQuestion(f"a price is dollars above 0, as 2.5, not {text!r}")
    return number


def _positive(text):
    """A number above 0 that is finite, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def gigabytes(size: float) -> str:
    """GB of 10^9 bytes, with two decimals."""
    return f"{size / 1e9:,.2f}"
