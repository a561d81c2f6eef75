"""What somebody gives as an argument, a number above all: refused in words where it means nothing."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Collection
from numbers import Real


def whole(value: object, name: str, least: int = 1, most: int | None = None) -> int:
    """A number from `least` to `most` as a plain int; numpy's too, but no truth values and no floats.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is out of bounds.
    """
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be {bounds}, not {shown(value)}, which is no whole number")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be {bounds}, not {shown(value)}")
    return number


def positive(**numbers: float) -> None:
    """Raise a ValueError for what is not above 0 (NaN is not)."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or not number > 0:
            raise ValueError(f"{name} must be positive, not {shown(number)}")


def not_negative(**numbers: float) -> None:
    """Raise a ValueError for what is below 0, or NaN."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or not number >= 0:
            raise ValueError(f"{name} must not be negative, not {shown(number)}")


def shared(ranks: int, **numbers: int) -> None:
    """Raise a ValueError for numbers that so many ranks cannot share equally."""
    for name, number in numbers.items():
        if ranks < 1 or number % ranks:
            refusal = f"{number!r} {name} cannot be divided among {ranks!r} ranks"
            raise ValueError(f"{refusal}: use a multiple of the ranks, or use a divisor of {number!r}")


def check_choice(name: str, value: object, choices: Collection[str | None]) -> None:
    """Raise a ValueError for what is none of the choices."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        *first, last = ["None" if choice is None else f'"{choice}"' for choice in choices]
        raise ValueError(f"{name} must be {', '.join(first)} or {last}, not {shown(value)}")


def shown(value: object) -> str:
    """A value for an error, shortened where it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write down thousands of digits
        return "a number of thousands of digits"
