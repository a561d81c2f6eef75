"""What the ranks of a job leave in /dev/shm and in the folder for temporary files: removed with the job.

A rank is mostly killed, so nothing that it planned for its end takes place.  Its temporary files therefore
lie in the job's folder.  What `multiprocessing` would tell its resource tracker, a process that is killed
with the rank, is written to a file there, and so are the ids of the rank and of processes that it starts.
(A descriptor for the tracker is how `multiprocessing` itself shares one; the attribute `_fd` is private.)
"""

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
    """A job's folder, which `remove` removes, with a note of what is there before the job, and the variables
    that name it to the ranks."""
    usual, present = tempfile.gettempdir(), "\n".join(names())  # first: it fails without a descriptor
    parent = "/tmp" if len(usual) > LONGEST and os.access("/tmp", os.W_OK) else usual
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=parent))
    (folder / TEMPORARY).mkdir(mode=0o700)
    (folder / PRESENT).write_text(present)
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
    """In a rank: where `tempfile` and `multiprocessing` look, and who makes shared memory."""
    tempfile.tempdir = None
    if not (folder := os.environ.pop(FOLDER, None)):
        return
    from multiprocessing import resource_tracker, util

    file = os.open(Path(folder, RESOURCES), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    resource_tracker._resource_tracker._fd = file
    spawn = util.spawnv_passfds

    def note(process):
        with suppress(OSError):  # the function has closed the file
            os.write(file, f"PROCESS:{process}\n".encode())
        return process

    util.spawnv_passfds = lambda *command: note(spawn(*command))
    os.register_at_fork(after_in_child=lambda: note(os.getpid()))
    note(os.getpid())


def remove(folder: Path) -> None:
    """Remove what the ranks have left, once all of them have ended, and the folder.

    Of torch's shared memory, `torch_PID_...`, that is what a process of this job made and nobody runs on."""
    left, makers = set(), set()
    with suppress(OSError):
        for line in (folder / RESOURCES).read_text().splitlines():
            command, _, resource = line.partition(":")
            if command == "REGISTER":
                left.add(memory_file(resource))
            elif command == "UNREGISTER":
                left.discard(memory_file(resource))
            elif command == "PROCESS" and not Path("/proc", resource).exists():
                makers.add(f"torch_{resource}")
    with suppress(OSError):
        left |= {name for name in names() if "_".join(name.split("_")[:2]) in makers}
        for name in left - set((folder / PRESENT).read_text().splitlines()):
            with suppress(OSError):
                (MEMORY / name).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def memory_file(resource: str) -> str:
    """The name in /dev/shm of what the tracker knows as `/psm_1f:shared_memory` or `/mp-x:semaphore`."""
    name, _, kind = resource.rpartition(":")
    return ("sem." if kind == "semaphore" else "") + os.path.basename(name)
