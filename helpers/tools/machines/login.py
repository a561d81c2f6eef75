"""`Login`: programs of the system that run on machine 0 though they are called from here, as if the caller
were logged in there.

Each is a small file in a folder that comes first in PATH.  It enters the machine and becomes the program;
called on a machine, it only becomes the program.  Called from here, it is asked to end when its caller ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.paths import run_main
from helpers.tools.launch.forked.processes import die_with_parent, enter

FILE = """#!/bin/sh
exec {python} -S -P -c {enter} {process} {program} "$@"
"""
ENTER = run_main("helpers.tools.machines.login")
KINDS = ("user", "mnt", "net", "uts")


class Login:
    """Context manager: calls of `programs` ({name: [program, arguments that come first]}) from this process
    and its children run where another runs.

    Args:
        folder: where their files are written.
        process: id of a process on the machine, which runs as long as these calls are made.
        programs: as above.
        variables: of the environment, meanwhile.
    """

    opened: list[Login] = []  # that have not ended, in the order in which they began

    def __init__(
        self,
        folder: Path,
        process: int,
        programs: Mapping[str, Sequence[str]],
        variables: Mapping[str, str],
    ) -> None:
        self.folder, self.process, self.programs, self.variables = folder, process, programs, variables

    def __enter__(self):
        self.folder.mkdir()
        python, enter = shlex.quote(sys.executable), shlex.quote(ENTER)
        for name, command in self.programs.items():
            file = self.folder / name
            program = shlex.join(command)
            file.write_text(FILE.format(python=python, enter=enter, process=self.process, program=program))
            file.chmod(0o700)
        self.before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)
        os.environ["PATH"] = f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self.opened.append(self)
        return self

    def __exit__(self, *problem):
        """Take away what is this login's own; another one that began later may still be open."""
        self.opened.remove(self)
        path = os.environ.get("PATH", "").split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(folder for folder in path if folder != str(self.folder))
        for name, value in self.variables.items():
            before = self.before[name]
            for login in self.opened:
                if login.before.get(name) == value:
                    login.before[name] = before
            if os.environ.get(name) == value:
                os.environ.pop(name)
                os.environ |= {name: before} if before is not None else {}


def main() -> None:
    """Arguments: id of a process on the machine; the program and its arguments."""
    process, *command = sys.argv[1:]
    folder = os.getcwd()
    places = [f"/proc/{process}/ns/{kind}" for kind in KINDS]
    try:
        if os.readlink(places[0]) != os.readlink("/proc/self/ns/user"):
            doors = [os.open(place, os.O_RDONLY | os.O_CLOEXEC) for place in places]
            enter(doors)
            os.chdir(folder)
            die_with_parent(signal.SIGTERM)
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{Path(command[0]).name}: {error.strerror or error}")
