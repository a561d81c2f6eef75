"""What the kernel sends to the ranks: the learner's function and its arguments, as bytes."""

from __future__ import annotations

import inspect

import cloudpickle


def pack(function, arguments):
    """Function and arguments as bytes; an error that names what cannot be sent."""
    if not callable(function):
        raise TypeError(f"launch needs a function to run in every rank, not {function!r}")
    try:
        return cloudpickle.dumps((function, dict(arguments)))
    except Exception as error:
        parts = {f"argument {name!r}": value for name, value in dict(arguments).items()}
        parts |= {f"the variable {name!r}, which the function uses": value for name, value in variables_of(function).items()}
        culprits = [name for name, value in parts.items() if not _picklable(value)]
        where = f" ({'; '.join(culprits)})" if culprits else ""
        raise TypeError(f"{getattr(function, '__name__', function)} cannot be sent to the ranks{where}: {error}") from None


def variables_of(function):
    """The variables outside of a function that it uses, by name."""
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not a Python function, or one that uses a variable before it is assigned
        return {}
    return {**used.globals, **used.nonlocals}


def _picklable(value):
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
