"""Services on machines, as Slurm's, and the process that ends them with all that they have started, in
whatever session.

That process is the parent of every orphan below it (PR_SET_CHILD_SUBREAPER), and runs without torch.  The
kernel holds the only write end of the *life pipe*; the process ends when that does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..launcher.forked.processes import adopt_orphans, end_orphans
from ..place import NAME, ROOT
from .login import entering

TYPE_CHECKING = False  # as who checks types reads it; `typing` itself would be one import more
if TYPE_CHECKING:
    from .namespaces import Machines

NETWORK = 2  # its place in `Machines.namespaces`


@contextmanager
def services(
    machines: Machines, folder: Path, commands: Iterable[tuple[int, Sequence[str], Path]]
) -> Iterator[Callable[[], bool]]:
    """Commands run while it is open: (number of the machine, words, file for what it writes) of each.  They
    write into the folder, which is removed at the end.  Gives a function: whether none of them has ended."""
    started = [
        [entering(signal.SIGKILL, machines.namespaces(machine), command), str(log)]
        for machine, command, log in commands
    ]
    networks = [os.readlink(machines.namespaces(machine)[NETWORK]) for machine in range(machines.count)]
    life, end = os.pipe()
    told, tell = os.pipe()
    with os.fdopen(told) as answer, os.fdopen(end, "wb") as held:
        words = [str(life), str(tell), str(folder), json.dumps(started), *networks]
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", f"{NAME}.machines.services", *words],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
                pass_fds=[life, tell], start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(life)
            os.close(tell)
        ids = json.loads(answer.read() or "[]")
        try:
            yield lambda: process.poll() is None and all(os.path.exists(f"/proc/{each}") for each in ids)
        finally:
            held.close()
            process.wait()


def end_callers(folder: str, networks: Iterable[str]) -> None:
    """Kill what has come to the machines through a `login`, whose environment names the folder: nobody would
    answer it any more."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            is_there = os.readlink(f"/proc/{name}/ns/net") in networks
            if is_there and folder.encode() in Path(f"/proc/{name}/environ").read_bytes():
                os.kill(int(name), signal.SIGKILL)


def main() -> None:
    """Arguments: descriptors of the life pipe and of the one for the answer; the folder; commands in JSON;
    the machines' network namespaces."""
    life, answer, folder, commands, *networks = sys.argv[1:]
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Linux itself clears away what has ended
    try:
        ids = []
        for command, log in json.loads(commands):
            with open(log, "ab") as out:
                streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                ids.append(subprocess.Popen(command, **streams, start_new_session=True).pid)
        with os.fdopen(int(answer), "w") as file:
            json.dump(ids, file)
        os.read(int(life), 1)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_orphans()
        end_callers(folder, networks)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
