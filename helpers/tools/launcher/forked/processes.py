"""Processes that end with others, on Linux; this module imports nothing large.

What a rank has started ends with its process group.  What has left that group becomes a child of the rank's
own parent when its parent ends (PR_SET_CHILD_SUBREAPER), which ends it.
"""

import ctypes
import glob
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when the thread that started it ends."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Ask Linux to make this process the parent of every descendant whose own parent ends."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_group(rank: int) -> None:
    """End a rank and what it has started."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left, or (macOS) only what has ended
        os.killpg(rank, signal.SIGKILL)


def ask_where(rank: int, stack: int, *others: int) -> None:
    """Send a rank the signals that ask where it stands.  Its main thread gives its stack; one of C++ would
    take the signal and give none."""
    if LINUX:
        ctypes.CDLL(None).tgkill(rank, rank, int(stack))
    else:
        os.kill(rank, stack)
    for number in (*others, signal.SIGCONT):  # a rank that was stopped could not answer
        os.kill(rank, number)


def children() -> set[int]:
    """Process ids of this process' children, zombies among them; none on macOS, which does not tell."""
    processes = set()
    for file in glob.glob(f"/proc/{os.getpid()}/task/*/children"):
        with open(file) as ids:
            processes.update(map(int, ids.read().split()))
    return processes


def end_orphans(ranks: Collection[int] = ()) -> None:
    """Kill every child that is no rank nor in the process group of one, then the children it leaves behind,
    until there are none."""
    refused = set()  # another user's, by setuid
    while orphans := {child for child in children() - set(ranks) - refused if os.getpgid(child) not in ranks}:
        for orphan in orphans:
            try:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
            except PermissionError:
                refused.add(orphan)


def ended_children() -> Iterator[tuple[int, int]]:
    """Every child that has ended and was not waited for, with its status."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def enter(namespaces: Iterable[int]) -> None:
    """Move this process, which must have one thread, into Linux's namespaces, given as descriptors: the
    user's first, which rules the others."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in namespaces:
        if libc.setns(namespace, 0):
            number = ctypes.get_errno()
            raise OSError(number, f"a machine cannot be entered: {os.strerror(number)}")
