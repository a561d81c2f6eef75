"""Refuse, in words, numbers that no formula can use."""

from __future__ import annotations

from numbers import Integral, Real


def whole(least: int = 1, **numbers: object) -> None:
    """Raise a ValueError for what is not a whole number from `least` on."""
    for name, number in numbers.items():
        if not isinstance(number, Integral) or number < least:
            raise ValueError(f"{name} must be at least {least} and whole, not {number!r}")


def positive(**numbers: float) -> None:
    """Raise a ValueError for what is not above 0 (NaN is not)."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or not number > 0:
            raise ValueError(f"{name} must be positive, not {number!r}")


def not_negative(**numbers: float) -> None:
    """Raise a ValueError for what is below 0, or NaN."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or not number >= 0:
            raise ValueError(f"{name} must not be negative, not {number!r}")


def zero_stage(stage: object) -> None:
    """Raise a ValueError for what is no stage of ZeRO."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0, 1, 2 or 3, not {stage!r}")


def shared(ranks: int, **numbers: int) -> None:
    """Raise a ValueError for numbers that so many ranks cannot share equally."""
    for name, number in numbers.items():
        if not isinstance(ranks, Integral) or ranks < 1 or number % ranks:
            words = f"{number!r} {name} cannot be divided among {ranks!r} ranks"
            raise ValueError(f"{words}: use a multiple of the ranks, or use a divisor of {number!r}")
