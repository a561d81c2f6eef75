"""The environment variables of a job: what `deepspeed` and `torchrun` set for a script, and what keeps a job
on this machine and quiet."""

from __future__ import annotations

import os
import sys


def environment(device: str, ranks: int, port: int) -> dict[str, str]:
    """The variables that `deepspeed` and `torchrun` set for a script, and those that keep a job on this
    machine and quiet."""
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    return {
        **{"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        **os.environ,
        **server_environment(device),
        # whatever a cluster's environment says
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), loopback),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
        # without it DeepSpeed asks `numactl` at every reduction how many CPUs there are to be "devices"
        "LOCAL_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def server_environment(device: str) -> dict[str, str]:
    """What must be set before a process imports DeepSpeed, or before it starts at all."""
    # NCCL warns about unbatched sends, which DeepSpeed's pipelines use
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"} if device == "cuda" else {}
    check = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    return {"DS_ACCELERATOR": device, **check, **quiet}
