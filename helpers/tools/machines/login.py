"""`login`: programs of the system that run on machine 0 though they are called from here, as if the caller
were logged in there; and the process that enters a machine and becomes such a program.

Each is a small file in a folder that comes first in PATH.  Called on a machine, it only becomes the program.
Called from here, it enters the machine, and is asked to end when its caller ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..launcher.forked.processes import die_with_parent, enter
from ..place import run_main

USER = "/proc/self/ns/user"
FOLDERS: list[str] = []  # of those logins that have not ended


def entering(number: int, namespaces: Sequence[str], command: Sequence[str]) -> list[str]:
    """The words of a command on the machine of these namespaces (paths, the user's first), or where it is
    called if that is a machine already.  It gets the signal of this number when its caller ends."""
    python = [sys.executable, "-S", "-P", "-c", run_main("machines.login")]
    return [*python, os.readlink(USER), str(int(number)), ":".join(namespaces), *command]


@contextmanager
def login(folder: Path, namespaces: Sequence[str], programs: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Calls of programs, {name: [program, arguments that come first]}, from this process and its children run
    on the machine of these namespaces; their files are written into the folder."""
    folder.mkdir()
    for name, command in programs.items():
        words = shlex.join(entering(signal.SIGTERM, namespaces, command))
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o700)
    FOLDERS.append(str(folder))
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        yield
    finally:  # another one that began later may still be open
        FOLDERS.remove(str(folder))
        path = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(each for each in path if each != str(folder))


def main() -> None:
    """Arguments: as `entering` has them."""
    home, number, namespaces, *command = sys.argv[1:]
    folder = os.getcwd()
    try:
        if os.readlink(USER) == home:
            enter([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces.split(":")])
            os.chdir(folder)
            die_with_parent(int(number))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{Path(command[0]).name}: {error.strerror or error}")
