"""What `launch` is called with: an error that says what is wrong, before anything starts."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ..whole import shown, whole
from . import parcel

if TYPE_CHECKING:
    from ..machines.namespaces import Machines, Placement

MOST_RANKS = 64
BYTES_PER_RANK = 100_000_000  # private memory of a rank before it builds a model, rounded up
INSTEAD = {  # of arguments that `launch` had: what to write
    "launcher": 'on=DeepSpeedCommand(), on=Hosts("hostfile") or on=SlurmNodes(2)',
    "command": "on=DeepSpeedCommand(show=True)",
    "place": "on=machines",
    "hostfile": 'on=Hosts("hostfile")',
    "ssh": 'on=Hosts("hostfile", ssh=False)',
    "nodes": "on=SlurmNodes(2)",
    "gpus": "on=SlurmNodes(2, gpus=4)",
    "account": 'on=SlurmNodes(2, account="a")',
    "partition": 'on=SlurmNodes(2, partition="p")',
    "time": 'on=SlurmNodes(2, time="00:10:00")',
    "folder": 'on=SlurmNodes(2, folder="folder") or on=Hosts("hostfile", folder="folder")',
}


def refuse(unknown: Collection[str]) -> None:
    """Raise a TypeError for names that are none of `launch`'s arguments, and say what replaces an old one."""
    for name in unknown:
        if name in INSTEAD:
            raise TypeError(f"launch takes no {name}= any more: write {INSTEAD[name]}")
        raise TypeError(f"launch takes no argument {name!r}")


class UnsendableError(TypeError):
    """The function, or an argument, cannot be sent to another process."""


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
    """Of settings that are passed on to a cluster, or switch something on."""
    word, path = ((str,), "a string"), ((str, os.PathLike), "a path")
    switch, minutes = ((bool,), "True or False"), ((str, int), 'minutes, or a string such as "01:30:00"')
    wanted = {"account": word, "partition": word, "folder": path, "hostfile": path, "time": minutes}
    wanted |= {"show": switch, "ssh": switch}
    for name, value in values.items():
        types, words = wanted[name]
        if isinstance(value, bool):  # which is an int, too
            fits = bool in types
        elif value is None:
            fits = bool not in types
        else:
            fits = isinstance(value, types)
        if not fits:
            raise TypeError(f"{name} must be {words}, not {shown(value)}")


def checked_placement(on: Machines | Placement, ranks: int, device: str | None) -> Placement:
    """On which machine each rank runs."""
    if isinstance(on, type) or not (hasattr(on, "place") or hasattr(on, "doors")):
        raise TypeError(
            "on must be Machines or what their place(...) returns, SlurmNodes(...), Hosts(...) or "
            f"DeepSpeedCommand(...), not {shown(on)}"
        )
    if hasattr(on, "place"):  # the machines themselves: neighbours together
        on = on.place(ranks)
    if len(on.of) != ranks:
        raise ValueError(f"on says where {len(on.of)} ranks run, and there are {ranks}")
    if device == "cuda":
        raise ValueError("machines take ranks on the CPU: leave device out, or on")
    return on


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
        raise UnsendableError(f"{name} cannot be sent to the ranks{where}: {error}") from None


def variables_of(function: Callable) -> dict[str, object]:
    """The variables outside of a function that it uses, by name."""
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not a Python function, or one that uses a variable too early
        return {}
    return {**used.globals, **used.nonlocals}


def size_of(value: object) -> int | None:
    """Bytes of a value as it is sent, None where it cannot be."""
    try:
        return parcel.pack(value).size
    except Exception:
        return None
