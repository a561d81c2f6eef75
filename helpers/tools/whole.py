"""Whole numbers that somebody gives as an argument."""

from __future__ import annotations

import operator
import reprlib


def whole(value: object, name: str, least: int, most: int) -> int:
    """A number as a plain int; numpy's whole numbers are welcome, truth values and floats are not.

    Args:
        name: what the number is, for the error.
        least, most: the bounds; both are allowed.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is out of bounds.
    """
    refusal = f"{name} must be from {least} to {most}, not {shown(value)}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{refusal}, which is no whole number") from None
    if isinstance(value, bool):
        raise TypeError(f"{refusal}, which is no whole number")
    if not least <= number <= most:
        raise ValueError(refusal)
    return number


def shown(value: object) -> str:
    """A value for an error, shortened where it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write down thousands of digits
        return "a number of thousands of digits"
