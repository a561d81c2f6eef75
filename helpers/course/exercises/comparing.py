"""Are two answers the same, and where do they differ first?  And numbers as a learner reads them."""

from __future__ import annotations

import math
import numbers
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy import ndarray


def kind(value: object) -> str:
    """What a value is, in a learner's words."""
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return "number"
    return "tensor" if is_array(value) else type(value).__name__


def is_array(value: object) -> bool:
    """A tensor; it comes from a rank as a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def same(got: object, expected: object, tolerance: float = 1e-9) -> bool:
    return difference(got, expected, tolerance) is None


def difference(
    got: object, expected: object, tolerance: float = 1e-9, place: str = "", scale: float = 0.0
) -> tuple[str, str, str] | None:
    """Where two values differ first, as (place, what is there, what should be) in words; None where they are
    the same.

    Args:
        tolerance: how far a float may be off, relative to the largest number of its tensor or list; whole
            numbers must be equal.
        place: what comes before the place in words, such as the value's name.
        scale: the largest number of the list that the value is an element of.
    """
    if kind(got) != kind(expected):
        return place, described(got), article(kind(expected))
    if is_array(expected):
        return array_difference(got, expected, tolerance, place)
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return place, counted(len(got), "element"), str(len(expected))
        scale = max(
            (abs(value) for value in expected if kind(value) == "number" and math.isfinite(value)),
            default=0.0,
        )
        pairs = enumerate(zip(got, expected))
        return first(
            difference(one, other, tolerance, f"{place}[{index}]", scale) for index, (one, other) in pairs
        )
    if isinstance(expected, dict):
        if missing := [key for key in expected if key not in got]:
            return place, f"without {missing[0]!r}", "with it"
        if extra := [key for key in got if key not in expected]:
            return place, f"with {extra[0]!r}", "without it"
        return first(difference(got[key], expected[key], tolerance, f"{place}[{key!r}]") for key in expected)
    if kind(expected) == "number":
        return None if near(got, expected, tolerance, scale) else (place, *shown_apart(got, expected))
    return None if got == expected else (place, repr(got), repr(expected))


def first(found: Iterable[tuple[str, str, str] | None]) -> tuple[str, str, str] | None:
    return next((one for one in found if one is not None), None)


def near(got: float, expected: float, tolerance: float, scale: float = 0.0) -> bool:
    """Equal; floats within the tolerance."""
    if got == expected or (got != got and expected != expected):
        return True
    if isinstance(got, numbers.Integral) and isinstance(expected, numbers.Integral):
        return False
    return abs(got - expected) <= tolerance * max(abs(expected), scale)


def array_difference(
    got: ndarray, expected: ndarray, tolerance: float, place: str
) -> tuple[str, str, str] | None:
    import numpy

    if got.shape != expected.shape:
        return place, f"of shape {got.shape}", str(expected.shape)
    a, b = (array.astype("float64") if array.dtype.kind == "f" else array for array in (got, expected))
    exact = "f" not in (a.dtype.kind, b.dtype.kind)
    finite = numpy.abs(b[numpy.isfinite(b)])
    room = 0 if exact else tolerance * (finite.max() if finite.size else 0)
    with numpy.errstate(invalid="ignore"):
        differ = (
            ~((a == b) | (numpy.isnan(a) & numpy.isnan(b)) | (numpy.abs(a - b) <= room))
            if not exact
            else a != b
        )
    if not differ.any():
        return None
    index = numpy.unravel_index(int(numpy.argmax(differ)), differ.shape)
    at = f"[{', '.join(str(int(number)) for number in index)}]" if index else ""
    return f"{place}{at}", *shown_apart(got[index].item(), expected[index].item())


def article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def described(value: object) -> str:
    """A value of the wrong kind, short."""
    if is_array(value):
        return f"a tensor of shape {value.shape}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def shown(value: object, digits: int = 6) -> str:
    """A number as it is read: whole ones with separators and never as a power, others with `digits`
    significant digits."""
    if kind(value) == "list":
        return f"[{', '.join(shown(one, digits) for one in value)}]"
    if kind(value) != "number" or not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def shown_apart(a: object, b: object) -> tuple[str, str]:
    """Two different values with as many digits as make them read differently."""
    for digits in range(6, 18):
        texts = shown(a, digits), shown(b, digits)
        if texts[0] != texts[1]:
            return texts
    return repr(a), repr(b)
