"""Ranks that the real `deepspeed` command starts on this machine."""

from __future__ import annotations

import signal
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...place import NAME
from .. import leftovers
from ..arguments import check_types
from ..cluster.shared_job import SharedJob
from ..environment import on_this_machine
from ..ports import held_port

if TYPE_CHECKING:
    from ..parcel import Parcel


@dataclass(frozen=True)
class DeepSpeedCommand:
    """This machine, where the real `deepspeed` command starts each rank as a new Python:
    `launch(function, ranks=2, on=DeepSpeedCommand())`.

    Args:
        show: print the command line.

    Raises:
        TypeError: `show` is neither True nor False.
    """

    show: bool = False

    def __post_init__(self) -> None:
        check_types(show=self.show)


class CommandJob(SharedJob):
    """The command needs a port before any rank exists, so one is held for them.  They bind it on every
    interface, which the ranks of the forkserver do not."""

    name, prefix = "deepspeed command", "launch-"
    grace, signals = 2.0, (signal.SIGKILL,)

    def __init__(self, payload: Parcel, ranks: int, device: str) -> None:
        super().__init__(payload, ranks, device, tempfile.gettempdir())
        self.queued = False

    def words(self) -> list[str]:
        self.temporary, self.folders = leftovers.begin()
        self.port = self.opened.enter_context(held_port())
        return [
            *("deepspeed", "--num_gpus" if self.device == "cuda" else "--num_accelerators", str(self.ranks)),
            *("--master_addr", "127.0.0.1", "--master_port", str(self.port.getsockname()[1])),
            *("--module", f"{NAME}.launcher.command.keeper", str(self.path)),
        ]

    def launched(self) -> list[str]:
        return [sys.executable, "-P", "-m", "deepspeed.launcher.runner", *self.command[1:]]

    def variables(self) -> dict[str, str]:
        local = on_this_machine(self.ranks, self.port.getsockname()[1])
        return super().variables() | local | self.folders

    def remarks(self) -> list[str]:
        return []
