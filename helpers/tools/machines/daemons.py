"""What `Slurm` and `Ssh` have in common: programs that may not be installed, and daemons that run on machines
as long as a block lasts."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from ..launcher.cluster.shared_job import REMARKS
from ..launcher.failures import LaunchError
from ..launcher.progress import Progress
from ..whole import shown
from .login import FOLDERS, login
from .namespaces import Machines
from .services import services

ADMINISTRATORS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # where daemons lie; not in every user's PATH
LONGEST = 60  # characters of the path of the temporary folder: a socket's own may have 107


def path_of(program: str) -> str | None:
    """Path of a program itself, not of a `login`'s file; None where there is none."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *ADMINISTRATORS]
    return shutil.which(program, path=os.pathsep.join(at for at in folders if at not in FOLDERS))


class Daemons:
    """A block in which daemons run on `Machines`.  They end with the block, with the machines, or with the
    notebook's kernel.

    A kind of them has these methods:
        commands: writes the configuration into the folder; [(machine, command, file for what it writes)].
        programs: those of a `login` to machine 0.
        is_up: whether all of them answer.
        complaints: what they have written, for an error.

    Attributes:
        folder: `Path` of what they need and write; None while they are not up.
    """

    name = "a cluster"  # with its article, for errors
    needed, whose, packages = (), "", ""  # programs, whose they are, and Debian's packages that bring them
    patience = 30.0  # seconds in which all must be up; they are after one
    folder = opened = owner = None

    @classmethod
    def problem(cls) -> str | None:
        """Why they cannot run here, in one line; None where their programs are."""
        missing = [name for name in cls.needed if not path_of(name)]
        words = f"{cls.whose}{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here"
        cure = f"on Debian and Ubuntu `apt install {cls.packages}` brings what is needed"
        return f"{words}: {cure}" if missing else None

    def __init__(self, machines: Machines) -> None:
        if not isinstance(machines, Machines):
            raise TypeError(f"machines must be `Machines`, not {shown(machines)}")
        self.machines = machines

    def __enter__(self):
        if reason := self.problem():
            raise LaunchError(reason)
        kind = type(self).__name__
        if self.opened:
            raise ValueError(f"this {kind} is up already: make another with {kind}(machines)")
        if any(isinstance(daemons, type(self)) for daemons in self.machines.daemons):
            raise ValueError(f"these machines run {self.name} already: use it, or close it first")
        # An interrupt waits for `tick`: nothing may be left half made.
        with ExitStack() as opened, Progress() as progress:
            short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= LONGEST else "/tmp"
            self.folder = Path(tempfile.mkdtemp(prefix=f"{kind.lower()}-", dir=short))
            opened.callback(shutil.rmtree, self.folder, ignore_errors=True)
            all_run = opened.enter_context(services(self.machines, self.folder, self.commands()))
            opened.enter_context(login(self.folder / "bin", self.machines.namespaces(0), self.programs()))
            until = time.monotonic() + self.patience
            while not self.is_up():
                progress.tick()
                if time.monotonic() > until or not all_run():
                    raise LaunchError(f"{kind} did not come up:\n{self.complaints()}")
                time.sleep(0.02)
            self.opened, self.owner = opened.pop_all(), os.getpid()
            self.machines.daemons.append(self)
            REMARKS.append(self.machines.remarks)
        return self

    def close(self) -> None:
        """End the daemons, and all that runs through them.  In a forked child of the process that started
        them nothing ends."""
        with Progress():
            if self.opened and self.owner == os.getpid():
                self.machines.daemons.remove(self)
                REMARKS.remove(self.machines.remarks)
                self.opened.close()
            elif self.opened:
                self.opened.pop_all()
            self.opened = self.folder = None

    def __exit__(self, *problem):
        self.close()
