"""`rehearse(function, ranks=1024, rank=517)`: what the function that `launch` runs in real ranks does in one
of any number of them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TypeVar

import torch

from ..launcher.failures import RankError
from ..launcher.jobs import launch
from ..launcher.progress import saying
from . import diary
from .asked import Place, places, told
from .fake import Weightless, raised
from .gpu import GPUS, MEMORY
from .patches import Pose, put_on
from .pipelines import NeedsRank
from .versions import OLDEST_TORCH

T = TypeVar("T")

OWN = f"{os.path.dirname(__file__)}{os.sep}"  # where the rehearsal's own frames lie
LOST = re.compile(r"was killed by SIGABRT|raised SystemError")
HINT = """
  Hint: an error in the backward pass was lost on the way; rehearse with device="cpu", which shows it"""


class RehearsalError(RankError):
    """The rehearsed rank failed; `rank` is its number."""

    def __init__(self, words: str, rank: int, outputs: list[str], kind: str = "raised") -> None:
        super().__init__(lambda hides: words, [rank], outputs, kind)


def rehearse(
    function: Callable[..., T],
    ranks: int,
    rank: int = 0,
    arguments: Mapping[str, object] | None = None,
    device: str = "cpu",
    memory: float | None = None,
    *,
    timeout: float = 3600.0,
    asked: list[Place] | None = None,
    capacity: float | None = None,
    gpus_per_host: int = GPUS,
) -> T:
    """Run `function(**arguments)` as one rank of any number of ranks would, without memory and without the
    others, and return what it returned.

    Real are all of torch's and DeepSpeed's Python, every shape, type and device, every byte that a `Ledger`
    counts and every message that a `Traffic` does.  There are no numbers in tensors: a program that asks for
    one (`loss.item()`, `if loss > 2`) is answered 1.0, or 0 where the type is of whole numbers, and is told
    so.  What a GPU holds outside of tensors is not rehearsed.

    Args:
        function, arguments: any function of a cell, and keyword arguments for it, as for `launch`.
        ranks, rank: how many there would be, and which of them is rehearsed.
        device: "cpu", or "cuda" to pose as a GPU, which this machine need not have.
        memory: bytes of that device, for every ledger without a limit of its own; None for no limit.
        timeout: seconds after which a rehearsal counts as hung.
        asked: a list to which every `Place` is added that asked for a number; None to have them printed.
        capacity: bytes of a GPU as DeepSpeed is told, which flattens parameters on the host where a second
            copy does not fit; by default `memory`, or 80 GB.
        gpus_per_host: GPUs of a machine.

    Returns:
        What the function returned; tensors without known numbers are on torch's device "meta".

    Raises:
        TypeError, ValueError: an argument cannot be used.
        RehearsalError: the function failed, or needs what a rehearsal has not.
    """
    check(ranks, rank, device, {"memory": memory, "capacity": capacity}, gpus_per_host)
    check_torch()
    capacity = capacity or memory or MEMORY
    with tempfile.TemporaryDirectory() as mail:
        pose = Pose(rank, ranks, device, memory, mail, capacity, gpus_per_host)
        found = deliver(function, dict(arguments or {}), pose, timeout)
    if asked is not None:
        asked += found.asked
    elif found.asked:
        print(told(found.asked))
    return found.value


def check_torch() -> None:
    found = version("torch")
    if tuple(map(int, found.split(".")[:2])) < OLDEST_TORCH:
        needed = "a rehearsal needs torch {}.{} or newer, of which it replaces parts".format(*OLDEST_TORCH)
        raise RehearsalError(f"{needed}, and here is {found}", 0, [])


def check(ranks: int, rank: int, device: str, sizes: dict[str, float | None], gpus_per_host: int) -> None:
    for name, value in {"ranks": ranks, "rank": rank, "gpus_per_host": gpus_per_host}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
    for name, value in {"ranks": ranks, "gpus_per_host": gpus_per_host}.items():
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, not {rank}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", not {device!r}')
    for name, size in sizes.items():
        if size is not None and not (isinstance(size, (int, float)) and size > 0):
            raise ValueError(f"{name} must be a positive number of bytes, not {size!r}")


@dataclass
class Told:
    """What came of a rehearsal: the function's `value` and the places that `asked` for a number, or the rank
    to be rehearsed before, `needs`."""

    value: object = None
    needs: int | None = None
    asked: list[Place] = field(default_factory=list)


def deliver(function: Callable, arguments: dict[str, object], pose: Pose, timeout: float) -> Told:
    """Rehearse a rank, and before it each rank from which it must be told shapes."""
    while True:
        text, found = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(text):
                found = in_a_process(function, arguments, pose, timeout)
        finally:  # a rehearsal that waits for another one begins anew, and says nothing yet
            if found is None or found.needs is None:
                print(text.getvalue(), end="")
        if found.needs is None:
            return found
        with contextlib.redirect_stdout(io.StringIO()):
            deliver(function, arguments, replace(pose, rank=found.needs), timeout)


def in_a_process(function: Callable, arguments: dict[str, object], pose: Pose, timeout: float) -> Told:
    """One rehearsal in a process of its own, where torch may be changed."""
    given = {"function": function, "arguments": arguments, "pose": pose}
    posed = f"rank {pose.rank} of {pose.ranks:,}"
    try:
        with saying(lambda: f"rehearsing {posed}: {diary.read(pose.mail)}"):
            return launch(rehearsed, ranks=1, arguments=given, device="cpu", timeout=timeout)[0]
    except RankError as error:
        words = error.without(lambda frame: frame[0].startswith(OWN))
        words = words.replace("rank 0 of 1", f"{posed}, rehearsed,", 1)
        words += HINT if pose.device == "cuda" and LOST.search(words) else ""
        raise RehearsalError(words, pose.rank, error.outputs, error.kind) from None


def rehearsed(function: Callable, arguments: Mapping[str, object], pose: Pose) -> Told:
    """In the process of a rehearsal: run `function(**arguments)` as the rank of a pose, without numbers."""
    put_on(pose)
    diary.keep(pose.mail)
    try:
        # One thread for autograd: the mode is of this thread alone.
        with torch.autograd.set_multithreading_enabled(False), Weightless():
            # torch imports here what its mode needs; garbage is looked for in that no more: every snapshot
            # of a ledger looks for some.
            weight = torch.ones(2, 2, requires_grad=True)
            torch.nn.functional.cross_entropy(weight @ weight, torch.zeros(2, dtype=torch.int64)).backward()
            gc.collect()
            gc.freeze()
            del weight
            return Told(function(**arguments), asked=places())
    except NeedsRank as rank:
        return Told(needs=rank.args[0])
    except SystemError as error:
        if not raised:
            raise
        raise raised[0].with_traceback(error.__traceback__) from None
