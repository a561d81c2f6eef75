"""The operations of torch.distributed by DeepSpeed's names, and what a message of one costs."""

from __future__ import annotations

from dataclasses import dataclass

from ..theory import gloo_messages, gloo_wire_bytes, wire_bytes

SENDS_NOTHING = (None, False)
# DeepSpeed's name of an operation, the collective it is, and whether the logged tensor is 1/N of the full
# one.  Of a gather and a scatter, in which a part passes between the root and each other rank, the mean over
# the ranks is that of a broadcast of one part.
OPERATIONS = {
    "all_reduce": ("all_reduce", False),
    "all_reduce_coalesced": ("all_reduce", False),
    "all_gather": ("all_gather", True),
    "all_gather_into_tensor": ("all_gather", True),
    "all_gather_coalesced": ("all_gather", True),
    "reduce_scatter": ("reduce_scatter", False),
    "reduce_scatter_tensor": ("reduce_scatter", False),
    "reduce": ("reduce", False),
    "broadcast": ("broadcast", False),
    "gather": ("broadcast", False),
    "scatter": ("broadcast", False),
    "all_to_all": ("all_to_all", False),
    "all_to_all_single": ("all_to_all", False),
    "send": ("send", False),
    "isend": ("send", False),
    "recv": SENDS_NOTHING,
    "irecv": SENDS_NOTHING,
    "barrier": SENDS_NOTHING,
    "monitored_barrier": SENDS_NOTHING,
}


@dataclass(frozen=True)
class Message:
    """A message, or all of one operation and size among the same ranks.

    Attributes:
        operation: DeepSpeed's name of it.
        bytes: of one, as logged: of the tensors that this rank hands in; of a scatter or a receive, of those
            that it is given.
        group: the ranks that took part, as a tuple; of what passes between two ranks, these two.
        count: how many.
    """

    operation: str
    bytes: int
    group: tuple[int, ...]
    count: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks took part."""
        return len(self.group)

    @property
    def ideal(self) -> float:
        """Bytes that this rank would send for all of them with bandwidth-optimal algorithms, the mean over
        the group's ranks."""
        return self._each(wire_bytes)

    @property
    def over_gloo(self) -> tuple[float, float]:
        """(bytes, gloo's messages) that this rank sends for all of them over gloo, headers left out, the mean
        over the group's ranks."""
        return self._each(gloo_wire_bytes), self._each(gloo_messages)

    def _each(self, formula):
        """`formula(collective, bytes of the full tensor, ranks)`, times their count; 0 for what sends
        nothing."""
        collective, is_part = OPERATIONS[self.operation]
        full = self.bytes * (self.ranks if is_part else 1)
        return self.count * formula(collective, full, self.ranks) if collective else 0.0
