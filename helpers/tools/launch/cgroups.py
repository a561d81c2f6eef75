"""Control groups, by which Linux limits the memory of containers and services; psutil does not know them.

Files of version 2 (`memory.max`) and of version 1 (`memory.limit_in_bytes`) are read wherever they are; a
file that is missing says nothing."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

# The files of a version with the limit and the use, what begins its names in memory.stat, and where it counts
# the processes that were killed for want of memory.
VERSIONS = (
    ("memory.max", "memory.current", "", "memory.events"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "memory.oom_control"),
)


def memory_groups(root: Path) -> list[Path]:
    """Folders of the groups whose limits hold for this process: of each version its own first, then all above
    it."""
    groups = []
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
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
    for limit, used, prefix, _ in VERSIONS:
        try:
            allowed, taken = int((group / limit).read_text()), int((group / used).read_text())
        except (OSError, ValueError):
            continue
        stat = numbers(group / "memory.stat")
        dirty, mapped = ("dirty", "mapped_file") if prefix else ("file_dirty", "file_mapped")
        writeback = "writeback" if prefix else "file_writeback"
        wanted = ("inactive_file", "active_file", mapped, dirty, writeback)
        unused, lately, mapped, dirty, being_written = (stat.get(prefix + name, 0) for name in wanted)
        clean = unused + max(lately - mapped, 0) - dirty - being_written
        return max(allowed - taken + max(clean, 0) + stat.get("slab_reclaimable", 0), 0)
    return None


def kills(group: Path) -> int | None:
    """Processes of a group that the system killed for want of memory, the group's or the machine's; None
    where they are not counted."""
    counts = (numbers(group / events).get("oom_kill") for *_, events in VERSIONS)
    return next((count for count in counts if count is not None), None)


def numbers(file: Path) -> dict[str, int]:
    """A file of lines `name number` as a dict."""
    pairs = (line.split() for line in lines(file))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
