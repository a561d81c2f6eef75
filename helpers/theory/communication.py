"""Bytes that a collective must move: what a bandwidth-optimal algorithm sends per rank, the *ideal* wire bytes.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), for all-reduce and its two halves; the ZeRO paper uses the same counts
(arXiv 1910.02054, section 7).
"""

from __future__ import annotations

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send")


def wire_bytes(collective: str, tensor_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends, on average over the N ranks, for a collective on a tensor of S bytes.

    all-reduce 2 (N-1)/N S; reduce-scatter, all-gather, all-to-all (N-1)/N S; broadcast and reduce (N-1)/N S (a tree or chain sends the
    tensor N-1 times in all); send: S.

    Args:
        collective: one of `COLLECTIVES`.
        tensor_bytes: S, of the full tensor: the one that all-gather produces, that reduce-scatter starts from, that every rank holds in an
            all-reduce.
        ranks: N, that take part.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective must be one of {', '.join(COLLECTIVES)}; not {collective!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks!r}")
    if collective == "send":
        return tensor_bytes
    return (2 if collective == "all_reduce" else 1) * tensor_bytes * (ranks - 1) / ranks


def all_reduce_seconds(tensor_bytes: float, ranks: int, latency: float, bandwidth: float) -> float:
    """2 (N-1) (latency + S / (N bandwidth)): a ring's rounds, each one message of 1/N of the tensor: the alpha-beta model.

    Thakur et al., "Optimization of collective communication operations in MPICH", 2005, section 4.5; the time of the additions is left out.

    Args:
        tensor_bytes: S, of the tensor that every rank holds.
        latency: alpha, seconds per message.
        bandwidth: 1 / beta, bytes per second.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks!r}")
    return 2 * (ranks - 1) * (latency + tensor_bytes / (ranks * bandwidth))


def zero_wire_bytes(
    parameters: float, ranks: int, stage: int = 0, element_bytes: int = 2, accumulation: int = 1, whole_buckets: bool = False
) -> float:
    """Bytes that a rank ideally sends per step of data parallelism, by ZeRO stage: a number of times e Psi (N - 1) / N.

    The paper (arXiv 1910.02054, section 7): 2 times at stages 0, 1 and 2 (gradients, and at stages 1 and 2 the updated parameters); 3 at stage 3
    (parameters gathered for the forward and for the backward pass, and gradients).  Stages 2 and 3 send gradients, and stage 3 gathers
    parameters, in each of `accumulation` micro-batches.

    Args:
        parameters: Psi, elements of the whole model.
        element_bytes: e, per gradient and parameter.
        accumulation: micro-batches of a step.
        whole_buckets: as DeepSpeed's default `use_multi_rank_bucket_allreduce` does at stages 1 and 2: whole buckets are all-reduced,
            which sends gradients twice.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0, 1, 2 or 3, not {stage!r}")
    unit = wire_bytes("all_gather", element_bytes * parameters, ranks)
    if stage == 0:
        return 2 * unit
    if stage == 3:
        return 3 * accumulation * unit
    gradients = (2 if whole_buckets else 1) * (accumulation if stage == 2 else 1)
    return (gradients + 1) * unit
