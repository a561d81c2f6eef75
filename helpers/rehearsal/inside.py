"""What happens in the process of a rehearsal: become a rank, and run the function without numbers and in one thread."""

from __future__ import annotations

import torch
from helpers.rehearsal.fake import Weightless
from helpers.rehearsal.patches import put_on
from helpers.rehearsal.pipelines import NeedsRank


class Told:
    """What came of a rehearsal: the function's `value`, or the rank that has to be rehearsed before, `needs`."""

    def __init__(self, value=None, needs=None):
        self.value, self.needs = value, needs


def rehearsed(function, arguments, pose):
    """Run `function(**arguments)` as the rank of a pose; a `Told`."""
    put_on(pose)
    try:
        # One thread for autograd: the mode is of this thread alone.
        with torch.autograd.set_multithreading_enabled(False), Weightless(allow_non_fake_inputs=True):
            return Told(function(**arguments))
    except NeedsRank as rank:
        return Told(needs=rank.args[0])
