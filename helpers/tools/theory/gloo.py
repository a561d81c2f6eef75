"""What gloo makes of a collective, and what it costs beside its bytes: headers, of gloo's own and of the
frames on a cable.

Read in gloo's source (`gloo/allreduce.cc`, `allgather.cc`, `alltoall.cc`, `broadcast.cc`,
`transport/tcp/pair.cc`) and confirmed to the byte by what Linux counts at the sockets.  For each message
between two ranks three headers pass: an offer, the answer that the receiver is ready, and the one before the
bytes.  Each of these, and an acknowledgement, is a frame of its own, unless it can travel with another one.
"""

from __future__ import annotations

import math

from .communication import wire_bytes

GLOO_HEADER = 3 * 48  # bytes for each message: three times six numbers of 8 bytes (`Op::preamble` in pair.h)
FRAME_HEADER = 14 + 20 + 20 + 12  # bytes: Ethernet, IP (RFC 791), TCP (RFC 9293), its time stamps (RFC 7323)
FRAME_HEADERS = 4 * FRAME_HEADER  # bytes for each message: four frames
LARGEST_SEGMENT = 1 << 20  # bytes; a larger part of a sum is cut


def gloo_wire_bytes(collective: str, tensor_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends over gloo, the mean over the N ranks, headers left out: `wire_bytes`, but
    that torch's reduce-scatter over gloo is an all-reduce, 2 (N-1)/N S, twice what NCCL sends."""
    if collective == "reduce":
        raise ValueError("no formula for a reduce: what gloo sends depends on which rank is the root")
    return wire_bytes("all_reduce" if collective == "reduce_scatter" else collective, tensor_bytes, ranks)


def gloo_messages(collective: str, tensor_bytes: float, ranks: int, element_bytes: int = 4) -> float:
    """Messages that each rank sends in a collective over gloo, the mean over the N ranks.

    A ring passes on parts in two segments, so that one is added up while the other one travels: an all-reduce
    and a reduce-scatter are 2 (N-1) parts of 2 segments, an all-gather N-1 parts of 2; an all-to-all is N-1
    messages, a broadcast (N-1)/N (a tree), a send 1.  A sum's segments are whole elements, of at most 1 MiB:
    a few numbers make fewer of them, a large tensor makes more.
    """
    sent = gloo_wire_bytes(collective, tensor_bytes, ranks)
    if ranks == 1 and collective != "send":
        return 0.0
    if collective not in ("all_reduce", "reduce_scatter"):
        number = {"all_gather": 2 * (ranks - 1), "all_to_all": ranks - 1, "broadcast": (ranks - 1) / ranks}
        return float(number.get(collective, 1))  # a send
    cut = max(2, math.ceil(tensor_bytes / LARGEST_SEGMENT / ranks))  # segments of each rank's part
    segment = element_bytes * math.ceil(tensor_bytes / (cut * ranks) / element_bytes)
    return 2 * (ranks - 1) / ranks * math.ceil(tensor_bytes / segment) if sent else 0.0
