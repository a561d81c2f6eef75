"""What happens in the process of a rehearsal: become a rank, and run the function without numbers and in one
thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from helpers.tools.rehearsal.asked import Place, questions
from helpers.tools.rehearsal.fake import Weightless, raised
from helpers.tools.rehearsal.patches import Pose, put_on
from helpers.tools.rehearsal.pipelines import NeedsRank


def leave_alone() -> None:
    """Let torch import what its mode needs, and look for garbage in that no more: every snapshot of a ledger
    looks for some."""
    weight = torch.ones(2, 2, requires_grad=True)
    torch.nn.functional.cross_entropy(weight @ weight, torch.zeros(2, dtype=torch.int64)).backward()
    gc.collect()
    gc.freeze()


@dataclass
class Told:
    """What came of a rehearsal: the function's `value` and the places that `asked` for a number, or the rank
    to be rehearsed before, `needs`."""

    value: object = None
    needs: int | None = None
    asked: list[Place] = field(default_factory=list)


def rehearsed(function: Callable, arguments: Mapping[str, object], pose: Pose) -> Told:
    """Run `function(**arguments)` as the rank of a pose; a `Told`."""
    put_on(pose)
    try:
        # One thread for autograd: the mode is of this thread alone.
        with torch.autograd.set_multithreading_enabled(False), Weightless():
            leave_alone()
            value = function(**arguments)
        return Told(value, asked=questions.places())
    except NeedsRank as rank:
        return Told(needs=rank.args[0])
    except SystemError as error:
        if not raised:
            raise
        raise raised[0].with_traceback(error.__traceback__) from None
