"""What one rank communicates, as three numbers that are kept apart.

*logged*: message bytes per collective, under the names and in the way in which DeepSpeed's communication
logger counts them (the size of the tensor handed in), whatever sends them (`helpers.tools.measure.messages`).
*ideal*: bytes that a bandwidth-optimal algorithm would send for these messages
(`helpers.tools.theory.wire_bytes`).  Converted, not measured. *sent*: bytes that left this rank through its
own sockets (Linux's TCP_INFO; gloo).  Measured; none with NCCL or on another system.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass, field

from helpers.tools.measure import together
from helpers.tools.theory import gloo_messages, gloo_wire_bytes, wire_bytes

# Places in Linux's struct tcp_info (since 4.19): bytes accepted but not sent yet; bytes sent, again and again
# included; bytes sent again.
NOT_SENT, SENT_AND_AGAIN = (144, "=I"), (200, "=QQ")
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


@dataclass
class Message:
    """All messages of one operation and size among the same ranks.

    Attributes:
        operation: DeepSpeed's name of it.
        bytes: of one, as logged.
        group: the ranks that took part, as a tuple; of what passes between two ranks, these two.
        count: how many.
    """

    operation: str
    bytes: int
    group: tuple[int, ...]
    count: int = 0

    @property
    def ranks(self) -> int:
        """How many ranks took part."""
        return len(self.group)

    @property
    def ideal(self) -> float:
        """Bytes that this rank would send for all of them with bandwidth-optimal algorithms, the mean over
        the group's ranks; float."""
        return self._each(wire_bytes)

    @property
    def over_gloo(self) -> tuple[float, float]:
        """(bytes, gloo's messages) that this rank sends for all of them over gloo, headers left out, the mean
        over the group's ranks; floats."""
        return self._each(gloo_wire_bytes), self._each(gloo_messages)

    def _each(self, formula):
        """`formula(collective, bytes of the full tensor, ranks)`, times their count; 0 for what sends
        nothing."""
        collective, is_part = OPERATIONS[self.operation]
        full = self.bytes * (self.ranks if is_part else 1)
        return self.count * formula(collective, full, self.ranks) if collective else 0.0


@dataclass
class Traffic:
    """Counts between entering and leaving: `with Traffic() as traffic: engine.step()`.  Several may be
    entered at once; each counts.

    Attributes, filled when the block is left:
        messages: list of `Message`.
        sent: bytes through this rank's sockets, or None where that cannot be known.
    """

    messages: list[Message] = field(default_factory=list)
    sent: int | None = None

    def __enter__(self):
        import torch.distributed as dist

        if not dist.is_initialized():
            raise RuntimeError(
                "call deepspeed.init_distributed(), deepspeed.initialize() or "
                "init_process_group() before counting traffic"
            )
        from helpers.tools.measure.messages import listen

        together.begin(self)
        self._end = listen(self._note)
        self._before = bytes_sent()
        return self

    def __exit__(self, *problem):
        after = bytes_sent()
        self.sent = None if after is None else after - self._before
        self._end()
        together.end(self)
        del self._before, self._end

    def _note(self, call):
        for message in self.messages:
            if (message.operation, message.bytes, message.group) == (call.operation, call.bytes, call.group):
                message.count += 1
                return
        self.messages.append(Message(call.operation, call.bytes, call.group, count=1))

    @property
    def logged(self) -> dict[str, int]:
        """{operation: message bytes}."""
        totals = {}
        for message in self.messages:
            totals[message.operation] = totals.get(message.operation, 0) + message.bytes * message.count
        return totals

    @property
    def ideal(self) -> dict[str, float]:
        """{operation: bytes this rank would send with bandwidth-optimal algorithms}; float."""
        totals = {}
        for message in self.messages:
            if OPERATIONS[message.operation] != SENDS_NOTHING:
                totals[message.operation] = totals.get(message.operation, 0) + message.ideal
        return totals


def bytes_sent() -> int | None:
    """Bytes that this process has handed to its open TCP connections so far, the rendezvous store's left out;
    None where unknown."""
    if not sys.platform.startswith("linux") or not _uses_sockets():
        return None
    store, total = os.environ.get("MASTER_PORT"), 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (
                    socket.AF_INET,
                    socket.AF_INET6,
                ):
                    continue
                ports = {str(connection.getsockname()[1]), str(connection.getpeername()[1])}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or a listening socket without a peer
            continue
        if store not in ports and len(info) >= 216:
            sent, again = struct.unpack_from(SENT_AND_AGAIN[1], info, SENT_AND_AGAIN[0])
            (waiting,) = struct.unpack_from(NOT_SENT[1], info, NOT_SENT[0])
            total += (
                sent - again + waiting
            )  # so that neither a busy receiver nor a lost packet changes the count
    return total


def _uses_sockets():
    """Not with NCCL, nor where a rehearsal sends nothing."""
    import torch.distributed as dist

    return not dist.is_initialized() or not any(name in dist.get_backend() for name in ("nccl", "fake"))
