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
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from .operations import OPERATIONS, SENDS_NOTHING, Message
from .together import measuring

# From byte 144 of Linux's struct tcp_info (since 4.19): bytes accepted but not sent yet; 52 bytes of others;
# bytes sent, again and again included; bytes sent again.
TCP_INFO = struct.Struct("=144xI52xQQ")


@dataclass
class Traffic:
    """Counts the messages that a rank sends between entering and leaving.

    `with Traffic() as traffic: engine.step()`.  Several may be entered at once; each counts.

    Attributes:
        counts: how often each `Message` was sent so far.
        sent: bytes through this rank's sockets, once the block is left; None where that cannot be known.
    """

    counts: Counter[Message] = field(default_factory=Counter)
    sent: int | None = None

    def __enter__(self):
        import torch.distributed as dist

        if not dist.is_initialized():
            raise RuntimeError(
                "call deepspeed.init_distributed(), deepspeed.initialize() or init_process_group() before "
                "counting traffic"
            )
        from .messages import listen

        self._open = ExitStack()
        self._open.enter_context(measuring("Traffic"))
        self._open.callback(listen(lambda message, *_: self.counts.update([message])))
        self._before = bytes_sent()
        return self

    def __exit__(self, *problem):
        after = bytes_sent()
        self.sent = None if after is None else after - self._before
        self._open.close()
        del self._before, self._open

    @property
    def messages(self) -> list[Message]:
        """Those so far, equal ones together."""
        return [replace(message, count=count) for message, count in self.counts.items()]

    def __str__(self) -> str:
        """A line for each kind of message."""
        listed = sorted(self.messages, key=lambda message: (message.operation, -message.bytes))
        lines = [f"{one.count:>4} × {one.operation:<24}{one.bytes:>12,} bytes" for one in listed]
        return "\n".join(lines)

    @property
    def logged(self) -> dict[str, int]:
        """{operation: message bytes}."""
        totals = Counter()
        for message in self.messages:
            totals[message.operation] += message.bytes * message.count
        return dict(totals)

    @property
    def ideal(self) -> dict[str, float]:
        """Bytes that this rank would send with bandwidth-optimal algorithms, by operation."""
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
