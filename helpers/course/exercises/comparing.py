"""Values as plain data: are two the same, and where do they differ first?"""

from __future__ import annotations

import numbers
import sys

import numpy
from helpers.course.digits import MOST_SHOWN, is_finite, kind, shortened, shown, shown_apart

DEEPEST = 12  # lists within lists
Difference = tuple[str, str, str] | None


class Odd(str):
    """In the place of a value that cannot be compared: what it is, in words.  It equals nothing."""


def plain(value: object, depth: int = DEEPEST) -> object:
    """A copy of a value in Python's own types, so that no class of the learner's has a say in a comparison.

    Returns:
        None, dots, bool, int, float, str, dict; lists, for tuples too; numpy arrays for tensors; else `Odd`.
    """
    torch = sys.modules.get("torch")
    if value is None or value is ... or type(value) in (bool, int, float, str, Odd):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numpy.bool_):
        return bool(value)
    if torch and isinstance(value, torch.Tensor):
        return plain_tensor(value)
    if depth == 0:
        return Odd("something nested too deeply")
    if isinstance(value, (list, tuple)):
        parts = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [plain(part, depth - 1) for part in parts]
    if isinstance(value, dict):
        pairs = [(plain(key, depth - 1), plain(part, depth - 1)) for key, part in dict.items(value)]
        return {tuple(key) if isinstance(key, list) else key: part for key, part in pairs}
    if isinstance(value, numpy.ndarray):
        copied = numpy.array(value, subok=False)
        return copied if copied.dtype.kind in "biufc" else plain(copied.tolist(), depth - 1)
    return Odd(article(type(value).__name__))


def plain_tensor(value: object) -> numpy.ndarray | Odd:
    """A tensor as a numpy array; half precision as fp32, since numpy has no bf16."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return Odd(f"a tensor of the class {type(value).__name__}")
    if value.is_meta:
        return Odd("a tensor on the meta device, which has no values")
    value = value.detach().cpu().to_dense().resolve_conj().resolve_neg()
    is_narrow = value.is_floating_point() and value.dtype not in (torch.float32, torch.float64)
    return (value.float() if is_narrow else value).numpy().copy()


def same(got: object, expected: object, tolerance: float = 1e-9) -> bool:
    return difference(got, expected, tolerance) is None


def difference(
    got: object, expected: object, tolerance: float = 1e-9, place: str = "", scale: float = 0.0
) -> Difference:
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
    if isinstance(expected, numpy.ndarray):
        return array_difference(got, expected, tolerance, place)
    if kind(expected) == "number":
        return None if near(got, expected, tolerance, scale) else (place, *shown_apart(got, expected))
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return place, counted(len(got), "element"), f"{len(expected):,}"
        sizes = [abs(value) for value in expected if kind(value) == "number" and is_finite(value)]
        got, expected, scale = dict(enumerate(got)), dict(enumerate(expected)), max(sizes, default=0.0)
    elif isinstance(expected, dict):
        scale = 0.0
    else:
        return None if got == expected else (place, described(got), described(expected))
    for key in [*expected, *got]:
        if key not in got or key not in expected:
            there, right = ("without", "with it") if key in expected else ("with", "without it")
            return place, f"{there} {key!r}", right
        if wrong := difference(got[key], expected[key], tolerance, f"{place}[{key!r}]", scale):
            return wrong
    return None


def near(got: float, expected: float, tolerance: float, scale: float = 0.0) -> bool:
    """Equal; floats within the tolerance."""
    if got == expected or (got != got and expected != expected):
        return True
    if isinstance(got, int) and isinstance(expected, int) or not (is_finite(got) and is_finite(expected)):
        return False
    return abs(got - expected) <= tolerance * max(abs(expected), scale)


def array_difference(got: numpy.ndarray, expected: numpy.ndarray, tolerance: float, place: str) -> Difference:
    if got.shape != expected.shape:
        return place, f"a tensor of shape {got.shape}", str(expected.shape)
    kinds = got.dtype.kind + expected.dtype.kind
    if kinds.count("b") == 1:
        return place, *(f"of {'bools' if kind == 'b' else 'numbers'}" for kind in kinds)
    left, right = (array.astype("float64") if array.dtype.kind == "f" else array for array in (got, expected))
    differ = left != right
    if set(kinds) & set("fc"):
        room = tolerance * numpy.abs(right[numpy.isfinite(right)]).max(initial=0)
        with numpy.errstate(invalid="ignore"):
            differ &= ~((numpy.abs(left - right) <= room) | (numpy.isnan(left) & numpy.isnan(right)))
    if not differ.any():
        return None
    index = tuple(numpy.argwhere(differ)[0].tolist())
    return f"{place}{list(index) if index else ''}", *shown_apart(got[index].item(), expected[index].item())


def differing(got: object, expected: object, tolerance: float = 1e-9) -> str:
    """What is there and what is right: short lists as they are, else the first place that differs; "" where
    none does."""
    place, there, right = difference(got, expected, tolerance) or ("", "", "")
    if place and len(expected) > MOST_SHOWN:
        return f"a list whose element {place} is {there} where {right} is right"
    if place:
        there, right = shown_apart(got, expected)
    return there and f"{there} where {right} is right"


def article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def described(value: object) -> str:
    """Any value, short; nothing of its own class is asked."""
    value = plain(value)
    if isinstance(value, numpy.ndarray):
        return f"a tensor of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict with {counted(len(value), 'key')}"
    return repr(shortened(value)) if type(value) is str else shown(value)
