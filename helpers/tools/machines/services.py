"""Services on machines, as Slurm's, and the process that ends them with all that they have started, in
whatever session.

That process is the parent of every orphan below it (PR_SET_CHILD_SUBREAPER).  The kernel holds the only write
end of the *life pipe*, and the process ends when that pipe does.  It runs without torch, as a module of its
own.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from helpers.paths import ROOT
from helpers.tools.launch.forked.processes import (
    adopt_orphans,
    die_with_parent,
    end_orphans,
    ended_children,
    enter,
)
from helpers.tools.machines.switch import doors_to

TYPE_CHECKING = False  # as who checks types reads it; `typing` itself would be one import more
if TYPE_CHECKING:
    from helpers.tools.machines.namespaces import Machines


class Services:
    """The notebook's end.

    Args:
        machines: `Machines` that are up.
        folder: what they write into; it is removed at the end.
        commands: list of (number of the machine, words of the command, file for what it writes).
    """

    def __init__(
        self, machines: Machines, folder: Path, commands: Iterable[tuple[int, Sequence[str], Path]]
    ) -> None:
        _, doors = machines.ask("doors")
        life, end = os.pipe()
        self.life = os.fdopen(end, "wb")
        told, tell = os.pipe()
        try:
            entered = [
                [[doors[place] for place in doors_to(machine)], command, str(log)]
                for machine, command, log in commands
            ]
            words = [str(life), str(tell), str(folder), json.dumps(entered)]
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "helpers.tools.machines.services", *words],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
                pass_fds=[life, tell, *doors], start_new_session=True,
            )  # fmt: skip
        finally:
            for descriptor in (life, tell, *doors):
                os.close(descriptor)
        with os.fdopen(told) as answer:
            self.ids = json.loads(answer.read() or "[]")

    def all_run(self) -> bool:
        """Whether none of them has ended."""
        return self.process.poll() is None and all(os.path.exists(f"/proc/{process}") for process in self.ids)

    def close(self) -> None:
        """End them, and wait until they are gone."""
        self.life.close()
        self.process.wait()


def start(doors: Iterable[int], command: list[str], log: str) -> int:
    """A program on a machine: its process id."""
    if child := os.fork():
        return child
    try:
        os.setsid()
        enter(doors)
        die_with_parent()
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.closerange(3, 256)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"fatal: {command[0]}: {error}\n".encode())
    finally:
        os._exit(1)


def end_callers(folder: str, doors: Iterable[int]) -> None:
    """Kill what has come to the machines through `helpers.tools.machines.login`: nobody would answer it any
    more.  The environment of such a process names the folder."""
    networks = {os.readlink(f"/proc/self/fd/{door}") for door in doors}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_there = os.readlink(f"/proc/{name}/ns/net") in networks
            if is_there and folder.encode() in Path(f"/proc/{name}/environ").read_bytes():
                os.kill(int(name), signal.SIGKILL)
        except OSError:  # it has ended, or is another user's
            pass


def main() -> None:
    """Arguments: descriptors of the life pipe and of the one for the answer; the folder; commands, as
    JSON."""
    life, answer, folder, commands = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        os.write(answer, json.dumps([start(*command) for command in commands]).encode())
        os.close(answer)
        while life not in (ready := select.select([life, woken], [], [])[0]):
            os.read(ready[0], 4096)
            list(ended_children())
    finally:
        end_orphans()
        end_callers(folder, {door for doors, *_ in commands for door in doors})
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
