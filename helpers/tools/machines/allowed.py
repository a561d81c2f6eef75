"""Why a system does not let its users make machines, and how to allow it: one line."""

from __future__ import annotations

import os
from pathlib import Path

CURES = {  # a file below /proc/sys: the content that forbids, the one that allows, whose system has the file
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0", " (Ubuntu)"),
    "kernel/unprivileged_userns_clone": ("0", "1", " (Debian)"),
    "user/max_user_namespaces": ("0", "10000", ""),
    "user/max_net_namespaces": ("0", "10000", ""),
}
LINUX_ONLY = (
    "machines are made of Linux's namespaces: on Windows use WSL2, on macOS a Linux container or virtual "
    "machine"
)
NEEDS = "machines need user namespaces of Linux"


def explain(step: str, words: str, root: Path = Path("/")) -> str:
    """What it means, and how to allow machines, that a step ("user" or "network") was refused with these
    words; /proc lies below `root`."""

    def content(file):
        return (root / "proc" / file).read_text().strip() if (root / "proc" / file).exists() else ""

    for file, (forbids, allows, whose) in CURES.items():
        if content(f"sys/{file}") == forbids:
            cure = f"`sudo sysctl -w {file.replace('/', '.')}={allows}`{whose}"
            return f"{NEEDS}, and this system does not allow them: {cure} does, until the next start"
    if "Seccomp:\t2" in content("self/status"):
        return (
            f"{NEEDS}, and this container does not allow them: start it with `--security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined`"
        )
    part = "user namespaces" if step == "user" else "network devices in user namespaces"
    return (
        f"{NEEDS}, and this system does not allow {part} ({words}): ask who looks after it to allow "
        "`unshare --user --net` to its users"
    )


def stay_who_we_are(process: int) -> None:
    """Let a process in a new user namespace have this user's id there; where root runs the course, everybody
    has his own.  An OSError where the system does not allow it."""
    folder = Path(f"/proc/{process}")
    if os.geteuid() == 0:
        try:
            for kind in ("uid_map", "gid_map"):
                known = map(str.split, Path("/proc/self", kind).read_text().splitlines())
                text = "".join(f"{inside} {inside} {count}\n" for inside, _, count in known)
                (folder / kind).write_text(text)
            return
        except PermissionError:  # a container's root without the right to it
            pass
    (folder / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
    (folder / "setgroups").write_text("deny")
    (folder / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")
