"""`Login`: programs of the system that run on machine 0 though they are called from here, as if the caller
were logged in there; and the process that enters a machine and becomes such a program.

Each is a small file in a folder that comes first in PATH.  Called on a machine, it only becomes the program.
Called from here, it enters the machine, and is asked to end when its caller ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.paths import run_main
from helpers.tools.launch.forked.forkserver import die_with_parent, enter

USER = "/proc/self/ns/user"


def entering(number: int, namespaces: Sequence[str], command: Sequence[str]) -> list[str]:
    """The words of a program on a machine, or where it is called if that is a machine already.

    Args:
        number: of the signal that it gets when its caller ends.
        namespaces: paths of the machine's, the user's first.
        command: the words of the program.
    """
    python = [sys.executable, "-S", "-P", "-c", run_main("helpers.tools.machines.login")]
    return [*python, os.readlink(USER), str(int(number)), ":".join(namespaces), *command]


class Login:
    """Context manager: calls of programs from this process and its children run on a machine.

    Args:
        folder: where the files are written.
        namespaces: paths of the machine's, the user's first.
        programs: {name: [program, arguments that come first]}.
    """

    folders: list[str] = []  # of those that have not ended

    def __init__(
        self, folder: Path, namespaces: Sequence[str], programs: Mapping[str, Sequence[str]]
    ) -> None:
        self.folder, self.namespaces, self.programs = folder, namespaces, programs

    def __enter__(self):
        self.folder.mkdir()
        for name, command in self.programs.items():
            words = entering(signal.SIGTERM, self.namespaces, command)
            (self.folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (self.folder / name).chmod(0o700)
        self.folders.append(str(self.folder))
        os.environ["PATH"] = f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return self

    def __exit__(self, *problem):
        """Take away what is this login's own; another one that began later may still be open."""
        self.folders.remove(str(self.folder))
        path = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(folder for folder in path if folder != str(self.folder))


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
