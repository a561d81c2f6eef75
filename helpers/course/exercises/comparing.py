"""Values as plain data: are two the same, where do they differ first, and how are they read?"""

from __future__ import annotations

import math
import numbers
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy import ndarray

DEEPEST = 12  # lists within lists
MOST_SHOWN = 8  # elements of a list
LONGEST = 200  # characters of a text that is shown


class Odd(str):
    """In the place of a value that cannot be compared: what it is, in words.  It equals nothing."""


def plain(value: object, depth: int = DEEPEST) -> object:
    """A copy of a value in Python's own types, so that no class of the learner's has a say in a comparison.

    Returns:
        None, dots, bool, int, float, str, dict; lists, for tuples too; numpy arrays for tensors; else `Odd`.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if value is None or value is ... or type(value) in (bool, int, float, str, Odd):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if depth == 0:
        return Odd("something nested too deeply")
    if isinstance(value, (list, tuple)):
        parts = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [plain(part, depth - 1) for part in parts]
    if isinstance(value, dict):
        pairs = [(plain(key, depth - 1), plain(part, depth - 1)) for key, part in dict.items(value)]
        return {tuple(key) if isinstance(key, list) else key: part for key, part in pairs}
    if numpy and isinstance(value, numpy.bool_):
        return bool(value)
    if torch and isinstance(value, torch.Tensor):
        return plain_tensor(value)
    if numpy and isinstance(value, numpy.ndarray):
        copied = numpy.array(value, subok=False)
        return copied if copied.dtype.kind in "biufc" else plain(copied.tolist(), depth - 1)
    return Odd(article(type(value).__name__))


def plain_tensor(value: object) -> ndarray | Odd:
    """A tensor as a numpy array; half precision as fp32, since numpy has no bf16."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return Odd(f"a tensor of the class {type(value).__name__}")
    if value.is_meta:
        return Odd("a tensor on the meta device, which has no values")
    value = value.detach().cpu().to_dense().resolve_conj().resolve_neg()
    is_narrow = value.is_floating_point() and value.dtype not in (torch.float32, torch.float64)
    return (value.float() if is_narrow else value).numpy().copy()


def kind(value: object) -> str:
    """What a value is, in a learner's words."""
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return "number"
    return "tensor" if is_array(value) else type(value).__name__


def is_array(value: object) -> bool:
    """A tensor; `plain` makes a numpy array of it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def same(got: object, expected: object, tolerance: float = 1e-9) -> bool:
    return difference(got, expected, tolerance) is None


def difference(
    got: object, expected: object, tolerance: float = 1e-9, place: str = "", scale: float = 0.0
) -> tuple[str, str, str] | None:
    """Where two values of `plain` differ first, as (place, what is there, what should be) in words; None
    where they are the same.

    Args:
        tolerance: how far a float may be off, relative to the largest number of its tensor or list; whole
            numbers must be equal.
        place: what comes before the place in words, such as the value's name.
        scale: the largest number of the list that the value is an element of.
    """
    if kind(got) != kind(expected) or isinstance(expected, Odd):
        return place, described(got), article(kind(expected))
    if is_array(expected):
        return array_difference(got, expected, tolerance, place)
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return place, counted(len(got), "element"), f"{len(expected):,}"
        sizes = [abs(value) for value in expected if kind(value) == "number" and is_finite(value)]
        scale = max(sizes, default=0.0)
        pairs = enumerate(zip(got, expected))
        return first(
            difference(part, right, tolerance, f"{place}[{index}]", scale) for index, (part, right) in pairs
        )
    if isinstance(expected, dict):
        if missing := [key for key in expected if key not in got]:
            return place, f"without {missing[0]!r}", "with it"
        if extra := [key for key in got if key not in expected]:
            return place, f"with {extra[0]!r}", "without it"
        return first(difference(got[key], expected[key], tolerance, f"{place}[{key!r}]") for key in expected)
    if kind(expected) == "number":
        return None if near(got, expected, tolerance, scale) else (place, *shown_apart(got, expected))
    return None if got == expected else (place, described(got), described(expected))


def differing(got: object, expected: object, tolerance: float = 1e-9) -> str:
    """What is there and what is right: short lists as they are, else the first place that differs; "" where
    none does."""
    place, there, right = difference(got, expected, tolerance) or ("", "", "")
    if place and len(expected) > MOST_SHOWN:
        return f"a list whose element {place} is {there} where {right} is right"
    if place:
        there, right = shown_apart(got, expected)
    return there and f"{there} where {right} is right"


def first(differences: Iterable[tuple[str, str, str] | None]) -> tuple[str, str, str] | None:
    return next((found for found in differences if found is not None), None)


def near(got: float, expected: float, tolerance: float, scale: float = 0.0) -> bool:
    """Equal; floats within the tolerance."""
    if got == expected or (got != got and expected != expected):
        return True
    if isinstance(got, int) and isinstance(expected, int) or not (is_finite(got) and is_finite(expected)):
        return False
    return abs(got - expected) <= tolerance * max(abs(expected), scale)


def is_finite(value: float) -> bool:
    """Whether a number is within the range of floats, which whole numbers can leave."""
    return abs(value) <= sys.float_info.max


def array_difference(
    got: ndarray, expected: ndarray, tolerance: float, place: str
) -> tuple[str, str, str] | None:
    import numpy

    if got.shape != expected.shape:
        return place, f"of shape {got.shape}", str(expected.shape)
    kinds = got.dtype.kind + expected.dtype.kind
    if kinds.count("b") == 1:
        return place, *(f"of {'bools' if kind == 'b' else 'numbers'}" for kind in kinds)
    wide = [array.astype("float64") if array.dtype.kind == "f" else array for array in (got, expected)]
    differ = wide[0] != wide[1]
    if set(kinds) & set("fc"):
        finite = numpy.abs(wide[1][numpy.isfinite(wide[1])])
        room = tolerance * (finite.max() if finite.size else 0)
        with numpy.errstate(invalid="ignore"):
            is_near = numpy.abs(wide[0] - wide[1]) <= room
        differ &= ~(is_near | (numpy.isnan(wide[0]) & numpy.isnan(wide[1])))
    if not differ.any():
        return None
    index = numpy.unravel_index(int(numpy.argmax(differ)), differ.shape)
    at = f"[{', '.join(str(int(number)) for number in index)}]" if index else ""
    return f"{place}{at}", *shown_apart(got[index].item(), expected[index].item())


def article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def described(value: object) -> str:
    """Any value, short; nothing of its own class is asked."""
    value = plain(value)
    if is_array(value):
        return f"a tensor of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict of {counted(len(value), 'entry').replace('entrys', 'entries')}"
    return repr(shortened(value)) if type(value) is str else shown(value)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def shown(value: object, digits: int = 6) -> str:
    """A value as it is read: whole numbers with separators and never as a power, others with `digits`
    significant digits; a list to its first elements."""
    if kind(value) == "list":
        parts = [shown(part, digits) for part in value[:MOST_SHOWN]]
        return f"[{', '.join(parts + [f'... {len(value):,} elements'] * (len(value) > MOST_SHOWN))}]"
    if kind(value) != "number" or value != value or value in (math.inf, -math.inf):
        return shortened(str(value))
    if not is_finite(value):
        return f"a number of {int(math.log10(abs(value))) + 1:,} digits"
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
    if isinstance(a, int) and isinstance(b, int) and is_finite(a):
        return f"{a:,}", f"{b:,}"
    return texts[0], f"another {kind(b)}"
