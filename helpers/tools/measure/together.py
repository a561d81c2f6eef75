"""Which measurements may go on at the same time: those of bytes together, those of time alone."""

from __future__ import annotations

_open = []  # (measurement, whether it measures time)


def begin(measurement: object, of_time: bool = False) -> None:
    """Note a measurement as open.

    Raises:
        RuntimeError: where one of time would go on beside another, which slows down what is timed.
    """
    if beside := [other for other, timed in _open if of_time or timed]:
        names = " and ".join(sorted({type(other).__name__ for other in beside}))
        what = f"a {type(measurement).__name__} cannot be opened inside a {names}"
        raise RuntimeError(
            f"{what}: counting bytes takes time, so that the clock would tell lies; measure them "
            "in two runs, one after the other"
        )
    _open.append((measurement, of_time))


def opened(kind: type) -> list:
    """The measurements of a kind that are open."""
    return [measurement for measurement, _ in _open if isinstance(measurement, kind)]


def end(measurement: object) -> None:
    """It is open no more."""
    _open[:] = [(other, timed) for other, timed in _open if other is not measurement]
