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
from collections import Counter
from dataclasses import dataclass, field

from helpers.tools.measure import together
from helpers.tools.theory import gloo_messages, gloo_wire_bytes, wire_bytes

# From byte 144 of Linux's struct tcp_info (since 4.19): bytes accepted but not sent yet; 52 bytes of others;
# bytes sent, again and again included; bytes sent again.
TCP_INFO = struct.Struct("=144xI52xQQ")
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
    count: int

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
                "call deepspeed.init_distributed(), deepspeed.initialize() or init_process_group() before "
                "counting traffic"
            )
        from helpers.tools.measure.messages import listen

        together.begin("Traffic")
        self._calls = Counter()
        self._end = listen(lambda call: self._calls.update([call]))
        self._before = bytes_sent()
        return self

    def __exit__(self, *problem):
        after = bytes_sent()
        self.sent = None if after is None else after - self._before
        self._end()
        together.end("Traffic")
        for call, count in self._calls.items():
            self.messages.append(Message(call.operation, call.bytes, call.group, count))
        del self._before, self._end, self._calls

    @property
    def logged(self) -> dict[str, int]:
        """{operation: message bytes}."""
        totals = Counter()
        for message in self.messages:
            totals[message.operation] += message.bytes * message.count
        return dict(totals)

    @property
    def ideal(self) -> dict[str, float]:
        """{operation: bytes this rank would send with bandwidth-optimal algorithms}."""
        totals = Counter()
        for message in self.messages:
            if OPERATIONS[message.operation] != SENDS_NOTHING:
                totals[message.operation] += message.ideal
        return dict(totals)


def bytes_sent() -> int | None:
    """Bytes that this process has handed to its open TCP connections so far, the rendezvous store's left out;
    None where unknown: with NCCL, where a rehearsal sends nothing, and on another system than Linux."""
    import torch.distributed as dist

    no_sockets = dist.is_initialized() and any(name in dist.get_backend() for name in ("nccl", "fake"))
    if no_sockets or not sys.platform.startswith("linux"):
        return None
    store, total = os.environ.get("MASTER_PORT"), 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                ports = {str(end[1]) for end in (connection.getsockname(), connection.getpeername())}
        except OSError:  # closed meanwhile, no TCP, or a listening socket without a peer
            continue
        if store not in ports and len(info) >= TCP_INFO.size:
            waiting, sent, again = TCP_INFO.unpack_from(info)
            # so that neither a busy receiver nor a lost packet changes the count
            total += sent - again + waiting
    return total
