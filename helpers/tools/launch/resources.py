"""What this machine has to offer: memory, GPUs, and what the system killed for want of memory."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
from helpers.tools.launch import cgroups


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process and its children may still take: the machine's, or those of a control group (a
    container's) where that is less."""
    rooms = (cgroups.room(group) for group in cgroups.memory_groups(root))
    return min([psutil.virtual_memory().available, *(room for room in rooms if room is not None)])


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for GPUs, as the file says that its build wrote: to import it
    takes seconds."""
    torch = importlib.util.find_spec("torch")
    try:
        version = Path(torch.origin).with_name("version.py").read_text()
        return bool(re.search(r"^cuda\b.*= *['\"]", version, flags=re.M))
    except (AttributeError, OSError):
        return False


def gpu_count() -> int:
    """GPUs that this process may use, without creating a CUDA context."""
    if not any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg")) or not torch_has_cuda():
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import_whole("torch")
    import torch

    return torch.cuda.device_count()


def import_whole(name: str) -> None:
    """Import a module in a thread, which an interrupt of the main thread cannot stop halfway: Python would
    take the half for the whole ever after."""

    def load():
        with suppress(Exception):  # who imports it next meets the error, too
            importlib.import_module(name)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join()


def finish_import(name: str) -> None:
    """Wait until a module is whole that `import_whole` has begun to import, and whose launch was
    interrupted."""
    if name in sys.modules:
        import_whole(name)


def choose_device(device: str | None, ranks: int) -> str:
    """GPUs when there are at least as many as ranks, else the CPU; `device` forces: on "cuda", ranks share
    GPUs where there are fewer."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device must be "cpu", "cuda" or None, not {device!r}')
    if device == "cpu":
        return "cpu"
    gpus = gpu_count()
    if device == "cuda" and not gpus:
        raise ValueError('device="cuda" needs a GPU, and there is none: leave device out to use the CPU')
    return "cuda" if device or gpus >= ranks else "cpu"


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Processes that the system has killed for want of memory: in this process' control group if it counts
    them, else on the whole machine."""
    counts = (cgroups.kills(group) for group in cgroups.memory_groups(root))
    of_group = next((count for count in counts if count is not None), None)
    return cgroups.numbers(root / "proc/vmstat").get("oom_kill", 0) if of_group is None else of_group
