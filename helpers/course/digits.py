"""How values are read: numbers with separators, and with as many digits as tell them apart."""

from __future__ import annotations

import math
import numbers
import sys

import numpy

MOST_SHOWN = 8  # elements of a list
LONGEST = 200  # characters of a text that is shown


def shown(value: object, digits: int = 6) -> str:
    """A value as it is read: whole numbers with separators and never as a power, others with `digits`
    significant digits; a list or tensor to its first elements."""
    if kind(value) == "tensor":
        return f"tensor({shown(value.tolist(), digits)})"
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


def kind(value: object) -> str:
    """What a value is, in a learner's words."""
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return "number"
    return "tensor" if isinstance(value, numpy.ndarray) else type(value).__name__


def is_finite(value: float) -> bool:
    """Whether a number is within the range of floats, which whole numbers can leave."""
    return abs(value) <= sys.float_info.max


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
