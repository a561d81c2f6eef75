"""NCCL between two "hosts" that are one, on two GPUs, a minute: `python -m
helpers.course.recording.two_hosts FOLDER`.

Four ranks share two GPUs, in two pairs that NCCL_HOSTID tells apart, so NCCL lets no pair reach the other
but through sockets.  How it lays out rings and trees is what two hosts would see; its seconds are not,
because two processes take turns on each GPU.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing
from helpers.paths import replace

ORDERS = {"host by host": "AABB", "dealt out": "ABAB"}  # the host of each rank
WAYS = ("default", "Ring", "Tree")  # NCCL_ALGO
SIZES = [2**power for power in (10, 14, 18, 22, 26)]  # bytes
WARM_UP, TIMES = 3, 5
TOLD = re.compile(r"NCCL INFO (Tree \d|Ring \d|Channel \d\d/|comm .* nNodes)")
HIDDEN = re.compile(r"comm 0x\S+ ")


def variables(order: str, rank: int, way: str) -> dict[str, str]:
    """Of a rank's environment."""
    chosen = {} if way == "default" else {"NCCL_ALGO": way}
    quiet = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    return {"NCCL_HOSTID": ORDERS[order][rank], "NCCL_DEBUG": "INFO"} | quiet | chosen


def in_rank(rank: int, order: str, way: str, folder: str, port: int) -> None:
    """Rank 0 writes its medians, in seconds; NCCL writes every rank's log."""
    hosts = ORDERS[order]
    os.environ |= variables(order, rank, way) | {
        **{"NCCL_DEBUG_SUBSYS": "INIT,GRAPH", "NCCL_DEBUG_FILE": f"{folder}/log-{rank}"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    device = torch.device("cuda", hosts[:rank].count(hosts[rank]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=len(hosts), device_id=device)
    found = [{"bytes": size, "seconds": median_of(torch.ones(size // 4, device=device))} for size in SIZES]
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def median_of(tensor: torch.Tensor) -> float:
    """Seconds of an all-reduce that all ranks begin together."""
    took = []
    for _ in range(WARM_UP + TIMES):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    return round(sorted(took[WARM_UP:])[TIMES // 2], 6)


def lines(folder: Path, ranks: int) -> Iterator[str]:
    """What NCCL told of hosts, trees, rings and channels, by rank."""
    for rank in range(ranks):
        for line in (folder / f"log-{rank}").read_text().splitlines():
            if TOLD.search(line):
                yield f"rank {rank}: {HIDDEN.sub('', line.partition('NCCL INFO ')[2])}"


def stored(folder: Path, order: str, way: str) -> dict:
    """Of one run."""
    return {
        "variables": [variables(order, rank, way) for rank in range(len(ORDERS[order]))],
        "lines": list(lines(folder, len(ORDERS[order]))),
        "all_reduce": json.loads((folder / "seconds.json").read_text()),
    }


def label() -> str:
    versions = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, torch {torch.__version__}"
    name = torch.cuda.get_device_name(0)
    return f"two {name} of one machine as two hosts, {versions}, {time.strftime('%Y-%m-%d')}"


def main(folder: Path) -> None:
    runs = {}
    for number, (order, way) in enumerate(product(ORDERS, WAYS)):
        place = folder / f"run-{number}"
        place.mkdir(parents=True, exist_ok=True)
        given = (order, way, str(place), 29511 + number)
        multiprocessing.start_processes(in_rank, given, nprocs=len(ORDERS[order]), start_method="spawn")
        runs[f"{order}, {way}"] = stored(place, order, way)
    write(folder, label(), runs)


def write(folder: Path, label: str, runs: dict) -> None:
    content = {"label": label, "about": " ".join(__doc__.split("\n\n", 1)[1].split()), "runs": runs}
    replace(folder / "4-two-hosts.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
