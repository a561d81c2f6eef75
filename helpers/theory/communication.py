"""Bytes that a collective must move: what a bandwidth-optimal algorithm sends per rank, the *ideal* wire bytes.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), for all-reduce and its two halves; the ZeRO paper uses the same counts
(arXiv 1910.02054, section 7).
"""

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send")


def wire_bytes(collective, size, ranks):
    """Bytes that each rank sends, on average over the ranks, for a collective on a tensor of `size` bytes.

    `size` is the full tensor: the one that all-gather produces, that reduce-scatter starts from, that every rank holds in an all-reduce.
    all-reduce 2 (N-1)/N size; reduce-scatter, all-gather, all-to-all (N-1)/N size; broadcast and reduce (N-1)/N size (a tree or chain
    sends the tensor N-1 times in all); send: size.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective must be one of {', '.join(COLLECTIVES)}; not {collective!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks!r}")
    if collective == "send":
        return size
    return (2 if collective == "all_reduce" else 1) * size * (ranks - 1) / ranks


def all_reduce_seconds(size, ranks, latency, bandwidth):
    """2 (N-1) (latency + size / (N bandwidth)): a ring's rounds, each one message of 1/N of the tensor: the alpha-beta model.

    `latency` (alpha) in seconds per message, `bandwidth` (1 / beta) in bytes per second (Thakur et al., "Optimization of collective
    communication operations in MPICH", 2005, section 4.5; the time of the additions is left out).
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks!r}")
    return 2 * (ranks - 1) * (latency + size / (ranks * bandwidth))
