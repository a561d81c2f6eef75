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


def zero_wire_bytes(parameters, ranks, stage=0, element=2, accumulation=1, whole_buckets=False):
    """Bytes that a rank ideally sends per step of data parallelism, by ZeRO stage: a number of times e Psi (N - 1) / N.

    The paper (arXiv 1910.02054, section 7): 2 times at stages 0, 1 and 2 (gradients, and at stages 1 and 2 the updated parameters); 3 at stage 3
    (parameters gathered for the forward and for the backward pass, and gradients).  Stages 2 and 3 send gradients, and stage 3 gathers
    parameters, in each of `accumulation` micro-batches.

    Args:
        element: bytes per gradient and parameter, e.
        whole_buckets: as DeepSpeed's default `use_multi_rank_bucket_allreduce` does at stages 1 and 2: whole buckets are all-reduced,
            which sends gradients twice.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0, 1, 2 or 3, not {stage!r}")
    unit = wire_bytes("all_gather", element * parameters, ranks)
    if stage == 0:
        return 2 * unit
    if stage == 3:
        return 3 * accumulation * unit
    gradients = (2 if whole_buckets else 1) * (accumulation if stage == 2 else 1)
    return (gradients + 1) * unit
