"""What the kernel sends to the ranks: the learner's function and its arguments, as bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from helpers.tools.launch import parcel

CARRIED = 100_000_000  # bytes that a function may carry out of the notebook before the learner is told


def pack(function: Callable, arguments: Mapping[str, object]) -> parcel.Parcel:
    """Function and arguments as a `Parcel`; an error that names what cannot be sent."""
    if not callable(function):
        raise TypeError(f"launch needs a function to run in every rank, not {function!r}")
    try:
        return parcel.pack((function, dict(arguments)))
    except Exception as error:
        parts = {f"argument {name!r}": value for name, value in arguments.items()}
        for name, value in variables_of(function).items():
            parts[f"the variable {name!r}, which the function uses"] = value
        culprits = [name for name, value in parts.items() if size_of(value) is None]
        where = f" ({'; '.join(culprits)})" if culprits else ""
        name = getattr(function, "__name__", function)
        raise TypeError(f"{name} cannot be sent to the ranks{where}: {error}") from None


def variables_of(function: Callable) -> dict[str, object]:
    """The variables outside of a function that it uses, by name."""
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not a Python function, or one that uses a variable too early
        return {}
    return {**used.globals, **used.nonlocals}


def weight(packed: parcel.Parcel, function: Callable, arguments: Mapping[str, object]) -> str | None:
    """What to tell a learner whose function carries much out of the notebook; None where it carries
    little."""
    if packed.size <= CARRIED:
        return None
    sizes = {name: size_of(value) or 0 for name, value in {**variables_of(function), **arguments}.items()}
    heavy = [name for name in sorted(sizes, key=sizes.get, reverse=True) if sizes[name] > packed.size / 10]
    named = f" ({', '.join(heavy)})" if heavy else ""
    name = getattr(function, "__name__", function)
    return f"{name} carries {packed.size / 1e6:.0f} MB from the notebook{named} to each rank"


def size_of(value: object) -> int | None:
    """Bytes of a value as it is sent, None where it cannot be."""
    try:
        return parcel.pack(value).size
    except Exception:
        return None
