"""What `launch` is called with: an error that says what is wrong, before anything starts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.tools.whole import shown, whole

if TYPE_CHECKING:
    from helpers.tools.machines.namespaces import Machines, Placement

MOST_RANKS = 64
BYTES_PER_RANK = 100_000_000  # private memory of a rank before it builds a model, rounded up


def checked_ranks(ranks: object, free: float) -> int:
    """How many, for whom so many bytes are free."""
    ranks = whole(ranks, "ranks", 1, MOST_RANKS)
    if ranks * BYTES_PER_RANK > free:
        raise MemoryError(
            f"{ranks} ranks need at least {ranks * BYTES_PER_RANK / 1e9:.1f} GB and {free / 1e9:.1f} GB is "
            f"free: use at most {max(free // BYTES_PER_RANK, 0)} ranks, or close other programs"
        )
    return ranks


def checked_timeout(timeout: object) -> float:
    """Seconds; infinitely many where a float cannot hold them."""
    try:
        seconds = math.nan if isinstance(timeout, (bool, str, bytes)) else float(timeout)
    except OverflowError:
        seconds = math.inf if timeout > 0 else -math.inf
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {shown(timeout)}")
    return seconds


def checked_arguments(arguments: object) -> dict[str, object]:
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise TypeError(
            f'arguments must be a dict of keyword arguments such as {{"stage": 2}}, not {shown(arguments)}'
        )
    if odd := [key for key in arguments if not isinstance(key, str)]:
        raise TypeError(f"arguments must have strings as keys, the names of parameters, not {shown(odd[0])}")
    return dict(arguments)


def check_types(**values: object) -> None:
    """Of arguments that are passed on to a cluster, or switch something on."""
    nothing, word, path = type(None), ((str,), "a string"), ((str, os.PathLike), "a path")
    switch = ((bool,), "True or False")
    wanted = {
        **{
            "account": word,
            "partition": word,
            "folder": path,
            "hostfile": path,
            "command": switch,
            "ssh": switch,
        },
        "time": ((str, int), 'minutes, or a string such as "01:30:00"'),
    }
    for name, value in values.items():
        types, words = wanted[name]
        optional = () if bool in types else (nothing,)
        if not isinstance(value, types + optional) or (isinstance(value, bool) and bool not in types):
            raise TypeError(f"{name} must be {words}, not {shown(value)}")


def checked_place(
    place: Machines | Placement | None, ranks: int, device: str | None, launcher: str | None
) -> Placement | None:
    """Where each rank runs; None for this machine."""
    if place is None:
        return None
    if isinstance(place, type) or not (hasattr(place, "place") or hasattr(place, "doors")):
        raise TypeError(f"place must be Machines or what their place(...) returns, not {shown(place)}")
    if hasattr(place, "place"):  # the machines themselves: neighbours together
        place = place.place(ranks)
    if len(place.of) != ranks:
        raise ValueError(f"place says where {len(place.of)} ranks run, and there are {ranks}")
    if launcher or device == "cuda":
        raise ValueError("machines take warm ranks on the CPU: leave launcher and device out, or place")
    return place
