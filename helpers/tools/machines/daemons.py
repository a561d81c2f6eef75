"""What `Slurm` and `Ssh` have in common: programs that may not be installed, and daemons on machines as long
as a block lasts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.progress import Progress

if TYPE_CHECKING:
    from helpers.tools.machines.namespaces import Machines
    from helpers.tools.machines.services import Services

ADMINISTRATORS = "/usr/sbin:/usr/local/sbin:/sbin"  # where daemons lie; not in every user's PATH


def found(program: str) -> str | None:
    """Path of a program, None where there is none."""
    return shutil.which(program) or shutil.which(program, path=ADMINISTRATORS)


def not_installed(programs: Iterable[str], words: str) -> str | None:
    """Why something cannot be started here, in one line; None where all its programs are.  The words have
    room for names and for "is" or "are"."""
    missing = [name for name in programs if not found(name)]
    return words.format(", ".join(missing), "is" if len(missing) == 1 else "are") if missing else None


class Daemons:
    """A block in which daemons run on `Machines`, `folder` holding what they need; it ends them, and so does
    the end of the notebook's kernel.

    Args:
        machines: `Machines` that are up.
    """

    patience = 30.0  # seconds in which all must be up; they are after one
    folder = opened = None

    def __init__(self, machines: Machines) -> None:
        self.machines = machines

    def problem(self) -> str | None:
        """Why they cannot run here, in one line, or None."""
        raise NotImplementedError

    def start(self, opened: ExitStack) -> Services:
        """Start the daemons; what ends them goes into the ExitStack.  Returns their `Services`."""
        raise NotImplementedError

    def is_up(self) -> bool:
        raise NotImplementedError

    def complaints(self) -> str:
        """What they have written, for an error."""
        raise NotImplementedError

    def __enter__(self):
        if reason := self.problem():
            raise LaunchError(reason)
        if self.opened:
            raise ValueError(
                f"this {type(self).__name__} is up already: make another with {type(self).__name__}(machines)"
            )
        with (
            ExitStack() as opened,
            Progress() as progress,
        ):  # an interrupt waits for `tick`: nothing may be left half made
            services = self.start(opened)
            until = time.monotonic() + self.patience
            while not self.is_up():
                progress.tick()
                if time.monotonic() > until or services.process.poll() is not None:
                    raise LaunchError(f"{type(self).__name__} did not come up:\n{self.complaints()}")
                time.sleep(0.02)
            self.opened = opened.pop_all()
        return self

    def close(self) -> None:
        """End the daemons, and all that runs through them."""
        with Progress():
            if self.opened:
                self.opened.close()
            self.opened = self.folder = None

    def __exit__(self, *problem):
        self.close()

    def __repr__(self):
        return f"{type(self).__name__}({self.machines!r})"
