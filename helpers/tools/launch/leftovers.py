"""What the ranks of a job leave in /dev/shm and in the folder for temporary files: removed with the job.

A rank is mostly killed, so nothing that it planned for its end takes place.  Its temporary files therefore
lie in the job's folder.  What `multiprocessing` would tell its resource tracker, a process that is killed
with the rank, is written to a file there.  (A descriptor for the tracker is how `multiprocessing` itself
shares one among processes; the attribute `_fd` is private.)
"""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # where Linux keeps shared memory and semaphores; elsewhere nothing is listed
RESOURCES, PRESENT, TEMPORARY = "resources", "present", "tmp"  # in the job's folder
LONGEST = 50  # characters: Linux allows 107 for a socket in a folder below, as `multiprocessing` makes them
FOLDER = "LAUNCH_FOLDER"  # the variable that names it


def begin() -> tuple[Path, dict[str, str]]:
    """Make a job's folder, and note what is there before the job, which its ranks must not lose.

    Returns:
        The folder, which `remove` removes, and the variables that name it to the ranks.
    """
    usual = tempfile.gettempdir()
    parent = "/tmp" if len(usual) > LONGEST and os.access("/tmp", os.W_OK) else usual
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=parent))
    (folder / TEMPORARY).mkdir(mode=0o700)
    (folder / PRESENT).write_text("\n".join(names()))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # nobody in particular, as in some containers
        user = os.getuid()
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{usual}/torchinductor_{user}")  # outlives the job
    return folder, {
        FOLDER: str(folder),
        "TMPDIR": str(folder / TEMPORARY),
        "TORCHINDUCTOR_CACHE_DIR": compiled,
    }


def names() -> list[str]:
    return sorted(os.listdir(MEMORY)) if MEMORY.is_dir() else []


def list_resources() -> None:
    """In a rank: where `tempfile` and `multiprocessing` look."""
    tempfile.tempdir = None
    if folder := os.environ.pop(FOLDER, None):
        from multiprocessing import resource_tracker

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        resource_tracker._resource_tracker._fd = os.open(Path(folder, RESOURCES), flags, 0o600)


def remove(folder: Path) -> None:
    """Remove what the ranks have left, once all of them have ended, and the folder."""
    left = set()
    with suppress(OSError):
        for line in (folder / RESOURCES).read_text().splitlines():
            command, _, resource = line.partition(":")
            if command == "REGISTER":
                left.add(resource)
            elif command == "UNREGISTER":
                left.discard(resource)
    with suppress(OSError):
        present = set((folder / PRESENT).read_text().splitlines())
        files = {memory_file(resource) for resource in left} | {name for name in names() if of_the_dead(name)}
        for name in files - present:
            with suppress(OSError):
                (MEMORY / name).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def memory_file(resource: str) -> str:
    """The name in /dev/shm of what the tracker knows as `/psm_1f:shared_memory` or `/mp-x:semaphore`."""
    name, _, kind = resource.rpartition(":")
    return ("sem." if kind == "semaphore" else "") + os.path.basename(name)


def of_the_dead(name: str) -> bool:
    """Whether it is shared memory of torch, `torch_PID_...`, whose process has ended."""
    library, _, rest = name.partition("_")
    process = rest.partition("_")[0]
    return library == "torch" and process.isdigit() and not Path(f"/proc/{process}").exists()
