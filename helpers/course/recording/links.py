"""Steps of ZeRO by the clock with one thing changed, over NVLink and over a slow link.

NCCL's sockets on one host stand for the slow link.  They are no network: no card and no cable is in between,
and the host's processor copies every byte.
"""

from __future__ import annotations

import os

from helpers.course.models import GPTSize
from helpers.course.recording import speed
from helpers.course.recording.experiment import BUCKET

SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
SEQUENCES = 4  # of a micro-batch
LINKS = {"NVLink": {}, "sockets": SOCKETS}
STEPS = {"NVLink": (3, 10), "sockets": (1, 3)}  # warm-up and by the clock
CHANGES = {  # keys of "zero_optimization"
    "": {},
    "small buckets": {"reduce_bucket_size": BUCKET},
    "overlap": {"overlap_comm": True},
    "no overlap": {"overlap_comm": False},
    "to the owner": {"use_multi_rank_bucket_allreduce": False},
}
OF_STAGE = {  # what each stage has
    0: ("",),
    1: ("", "small buckets", "overlap", "to the owner"),
    2: ("", "small buckets", "overlap", "to the owner"),
    3: ("", "small buckets", "no overlap"),
}


def runs() -> list[tuple[int, dict]]:
    """Every stage with each of its changes, over both links, with 1 micro-batch and with 8."""
    names = ("size", "stage", "micro_batches", "change", "link")
    return [
        (ranks, dict(zip(names, ("1.5B, padded", stage, micro_batches, change, link))))
        for link in LINKS
        for ranks in (2, 4)
        for micro_batches in (1, 8)
        for stage, changes in OF_STAGE.items()
        for change in changes
    ]


def configuration(ranks: int, stage: int, micro_batches: int, change: str, **others: object) -> dict:
    """That of `speed` with fewer sequences in a micro-batch, and one change."""
    config = speed.configuration(ranks, stage, SEQUENCES, micro_batches, "")
    config["zero_optimization"] |= CHANGES[change]
    return config


def links(size: GPTSize, micro_batches: int, link: str, config: dict) -> dict:
    """What `speed` returns, with NCCL held to one link."""
    os.environ.update(LINKS[link])
    return speed.steps_of(size, SEQUENCES, micro_batches, False, False, config, *STEPS[link])
