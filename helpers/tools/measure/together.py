"""Which measurements may go on at the same time: those of bytes together, those of time alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_open: list[tuple[str, bool]] = []  # measurements: the name of its class, and whether it measures time


@contextmanager
def measuring(name: str, of_time: bool = False, modes: Iterable[str] = ()) -> Iterator[None]:
    """While a measurement is open; `modes` are torch's that see every operator now.  A RuntimeError where one
    of time would go on beside another, which slows down what is timed."""
    if beside := {other for other, timed in _open if of_time or timed}.union(modes):
        raise RuntimeError(
            f"a {name} cannot be opened inside a {' and '.join(sorted(beside))}: counting takes time, and "
            "the clock would tell lies; measure in two runs, one after the other"
        )
    _open.append((name, of_time))
    try:
        yield
    finally:
        _open.remove((name, of_time))
