"""`Login`: programs of the system that run on machine 0, though they are called from here, as by somebody who
is logged in there.

Each is a small file in a folder that comes first in PATH.  It enters the machine and becomes the program;
called on a machine, it only becomes it. From here it is asked to end when who called it does.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.paths import ROOT
from helpers.tools.launch.forked.forkserver import die_with_parent, enter

FILE = """#!/bin/sh
exec {python} -S -P -c {enter} {process} {program} "$@"
"""
ENTER = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from helpers.tools.machines.login import main; main()"
)
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

    def __init__(
        self,
        folder: str | Path,
        process: int,
        programs: Mapping[str, Sequence[str]],
        variables: Mapping[str, str],
    ) -> None:
        self.folder, self.process, self.programs, self.variables = Path(folder), process, programs, variables

    def __enter__(self):
        self.folder.mkdir()
        for name, command in self.programs.items():
            file = self.folder / name
            words = {
                "python": shlex.quote(sys.executable),
                "enter": shlex.quote(ENTER),
                "program": shlex.join(command),
            }
            file.write_text(FILE.format(process=self.process, **words))
            file.chmod(0o700)
        changed = {**self.variables, "PATH": f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        self.before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        return self

    def __exit__(self, *problem):
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
