"""Control groups, by which Linux limits the memory of containers and services: the groups of this process,
their room, their OOM kills.

Files of version 2 (`memory.max`) and of version 1 (`memory.limit_in_bytes`) are read wherever they are; a
file that is missing says nothing."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

VERSIONS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)  # limit, use
# In memory.stat of both versions: page cache that was not used lately and that was, what programs have mapped
# of files, what is yet to be written (two numbers), and kernel objects that can be rebuilt, which version 1
# does not count.
NAMES = (
    ("inactive_file", "active_file", "file_mapped", "file_dirty", "file_writeback", "slab_reclaimable"),
    (
        "total_inactive_file",
        "total_active_file",
        "total_mapped_file",
        "total_dirty",
        "total_writeback",
        "no such line",
    ),
)
EVENTS = ("memory.events", "memory.oom_control")  # where versions 2 and 1 count OOM kills


def memory_groups(root: Path) -> list[Path]:
    """Folders of the groups whose limits hold for this process: of each version its own first, then all above
    it."""
    groups = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        parts = [part for part in PurePosixPath(path).parts[1:] if part != ".."]
        groups += [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return groups


def room(group: Path) -> int | None:
    """Bytes that the processes of a group may still take; None where it sets no limit ("max").

    What the system gives back at once when memory is short counts as free: page cache, also what was used
    lately, and kernel objects that can be rebuilt (version 2 alone counts them).  What is yet to be written
    to a disk does not, nor what running programs have mapped, as torch's libraries, nor shared memory
    (tmpfs), which Linux keeps on the lists of what is swapped.
    """
    for (limit, used), names in zip(VERSIONS, NAMES):
        try:
            allowed, taken = int((group / limit).read_text()), int((group / used).read_text())
        except (OSError, ValueError):
            continue
        held = numbers(group / "memory.stat")
        unused, lately, mapped, dirty, being_written, objects = (held.get(name, 0) for name in names)
        clean = unused + max(lately - mapped, 0) - dirty - being_written
        return max(allowed - taken + max(clean, 0) + objects, 0)
    return None


def kills(group: Path) -> int | None:
    """Processes of a group that the system killed for want of memory, the group's or the machine's; None
    where they are not counted."""
    return next(
        (found["oom_kill"] for name in EVENTS if "oom_kill" in (found := numbers(group / name))), None
    )


def numbers(file: Path) -> dict[str, int]:
    """A file of lines `name number` as a dict."""
    pairs = (line.split() for line in _lines(file))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(file):
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
