"""The environment variables of a job."""

import os
import sys


def environment(device: str) -> dict[str, str]:
    """This process' variables, and what keeps a job quiet."""
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **server_environment(device)}


def on_this_machine(ranks: int, port: int) -> dict[str, str]:
    """What `deepspeed` and `torchrun` set for a script, and what keeps a job on this machine, whatever a
    cluster's environment says."""
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    return {
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), loopback),
        # without LOCAL_SIZE DeepSpeed asks `numactl` at every reduction how many CPUs are to be "devices"
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def server_environment(device: str) -> dict[str, str]:
    """What must be set before a process imports DeepSpeed, or before it starts at all."""
    # NCCL warns about unbatched sends, which DeepSpeed's pipelines use
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"} if device == "cuda" else {}
    check = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    return {"DS_ACCELERATOR": device, **check, **quiet}
