"""The environment variables of a job."""

import os
import sys
from collections.abc import Mapping

THREADS = "LAUNCH_THREADS"  # the variable that asks for more than one thread in each rank


def environment(device: str) -> dict[str, str]:
    """This process' variables, and what keeps a job quiet."""
    return {"PYTHONUNBUFFERED": "1", **os.environ, **threads(), **server_environment(device)}


def threads() -> dict[str, str]:
    """What libraries read when they begin: as many threads as a rank has."""
    return {"OMP_NUM_THREADS": str(threads_of(os.environ))}


def threads_of(environment: Mapping[str, str]) -> int:
    """Threads of a rank: those that `THREADS` asks for, else one.  A shell's OMP_NUM_THREADS is for one
    process, and ranks are many.

    Raises:
        ValueError: `THREADS` names no whole number above zero.
    """
    number = environment.get(THREADS, "1")
    if not number.isdecimal() or not int(number):
        raise ValueError(f"{THREADS} is {number!r}: give the threads of a rank as a whole number, such as 4")
    return int(number)


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
    # NCCL warns about unbatched sends, which DeepSpeed's pipelines use; its flight recorder names a hang
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_FR_BUFFER_SIZE": "2000"} if device == "cuda" else {}
    check = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    return {"DS_ACCELERATOR": device, **check, **quiet}
