"""What this machine has to offer: memory, GPUs, and what the system killed for want of memory."""

import importlib.util
import math
import os
import re
import threading
from contextlib import suppress
from pathlib import Path

import psutil


def control_groups(root: Path) -> list[Path]:
    """Folders of this process' control group (version 2) and of those above it, which limit the memory of
    containers and services; psutil does not know them."""
    own = re.search(r"^0::/(.*)$", text_of(root / "proc/self/cgroup"), flags=re.M)
    top = root / "sys/fs/cgroup"
    group = top / (own[1] if own else "")
    return [group, *(above for above in group.parents if above.is_relative_to(top))]


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def numbers(file: Path) -> dict[str, int]:
    """A file of lines `name number` as a dict."""
    return {name: int(number) for name, number in re.findall(r"^(\S+) (\d+)$", text_of(file), flags=re.M)}


def room(group: Path) -> float:
    """Bytes that the processes of a group may still take, with what the system gives back at once: kernel
    objects that can be rebuilt, and page cache, but for what is yet to be written to a disk, and what running
    programs have mapped, as torch's libraries."""
    try:
        free = int(text_of(group / "memory.max")) - int(text_of(group / "memory.current"))
    except ValueError:  # no limit ("max")
        return math.inf
    stat = numbers(group / "memory.stat")
    cached, taken = ("inactive_file", "active_file"), ("file_mapped", "file_dirty", "file_writeback")
    clean = sum(stat.get(name, 0) for name in cached) - sum(stat.get(name, 0) for name in taken)
    return max(free + max(clean, 0) + stat.get("slab_reclaimable", 0), 0)


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process and its children may still take: the machine's, or those of a control group (a
    container's) where that is less."""
    return min(psutil.virtual_memory().available, *map(room, control_groups(root)))


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Processes that the system has killed for want of memory: in this process' control group if it counts
    them, else on the whole machine."""
    counts = (numbers(group / "memory.events") for group in control_groups(root))
    counted = next((count for count in counts if "oom_kill" in count), numbers(root / "proc/vmstat"))
    return counted.get("oom_kill", 0)


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


def choose_device(device: str | None, ranks: int) -> str:
    """Choose GPUs when there are at least as many as ranks, else the CPU.

    `device` forces one. On "cuda", ranks share GPUs where there are fewer.
    """
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device must be "cpu", "cuda" or None, not {device!r}')
    if device == "cpu":
        return "cpu"
    gpus = gpu_count()
    if device == "cuda" and not gpus:
        raise ValueError('device="cuda" needs a GPU, and there is none: leave device out to use the CPU')
    return "cuda" if device or gpus >= ranks else "cpu"
