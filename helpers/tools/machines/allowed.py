"""Why a system does not let its users make machines, and how to allow it: one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CURES = (  # a file below /proc/sys, the content that forbids, what to do
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu)",
    ),
    ("kernel/unprivileged_userns_clone", "0", "`sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian)"),
    ("user/max_user_namespaces", "0", "`sudo sysctl -w user.max_user_namespaces=10000`"),
    ("user/max_net_namespaces", "0", "`sudo sysctl -w user.max_net_namespaces=10000`"),
)
LINUX_ONLY = (
    "machines are made of Linux's namespaces: on Windows run the course in WSL2, on macOS in a Linux "
    "container or virtual machine"
)
NEEDS = "machines need user namespaces of Linux"


def content(file: Path) -> str:
    """Of a file of /proc, "" where there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def explain(step: str, words: str, root: Path = Path("/")) -> str:
    """What a refusal means and how to allow machines.

    Args:
        step: "user" or "network", what was refused.
        words: the system's own.
        root: where /proc lies.
    """
    for file, forbids, cure in CURES:
        if content(root / "proc/sys" / file) == forbids:
            return f"{NEEDS}, and this system does not allow them: {cure} does, until the next start"
    if "Seccomp:\t2" in content(root / "proc/self/status"):
        return (
            f"{NEEDS}, and this container does not allow them: start it with `--security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined`"
        )
    part = "user namespaces" if step == "user" else "network devices in user namespaces"
    return (
        f"{NEEDS}, and this system does not allow {part} ({words}): ask who looks after it to allow "
        "`unshare --user --net` to its users"
    )


def maps(kind: str) -> str:
    """Who is who in a namespace in which everybody stays who he is: /proc's lines for those that this process
    knows."""
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in map(str.split, lines))


def stay_who_we_are(process: int) -> None:
    """Let a process in a new user namespace have this user's id there; where root runs the course, everybody
    has his own.

    Raises:
        OSError: the system does not allow it.
    """
    folder = Path(f"/proc/{process}")
    if os.geteuid() == 0:
        try:
            for kind in ("uid", "gid"):
                (folder / f"{kind}_map").write_text(maps(kind))
            return
        except PermissionError:  # a container's root without the right to it
            pass
    (folder / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
    (folder / "setgroups").write_text("deny")
    (folder / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def is_linux() -> bool:
    return sys.platform.startswith("linux")
