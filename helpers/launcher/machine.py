"""What this machine has to offer: memory, GPUs, and what the system killed for want of memory."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def free_memory():
    """Bytes that this process and its children may still take: the machine's, or the container's where that is less."""
    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no cgroup, or no limit ("max")
        pass
    return free


def gpu_count():
    """GPUs that this process may use, without creating a CUDA context."""
    if not any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg")):
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return torch.cuda.device_count()


def choose_device(device, ranks):
    """GPUs when there are at least as many as ranks, else the CPU; `device` forces: on "cuda", ranks share GPUs where there are fewer."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device must be "cpu", "cuda" or None, not {device!r}')
    if device == "cpu":
        return "cpu"
    gpus = gpu_count()
    if device == "cuda" and not gpus:
        raise ValueError('device="cuda" needs a GPU, and there is none: leave device out to use the CPU')
    return "cuda" if device or gpus >= ranks else "cpu"


def out_of_memory_kills():
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
