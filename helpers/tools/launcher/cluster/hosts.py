"""Ranks under the real `deepspeed` command on the machines of a hostfile, which it reaches through pdsh and
ssh, or which are reached by hand."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...place import NAME
from ..arguments import check_types
from ..describing import ACROSS
from ..environment import server_environment, threads
from ..failures import LaunchError
from ..ports import port_for
from .orders import HOSTFILE, MISTAKES, patiently
from .shared_job import SharedJob

if TYPE_CHECKING:
    from ..outcome import Outcome
    from ..parcel import Parcel

# file with variables that DeepSpeed gives to the ranks on every machine, beside those that begin with PYTHON
ENVIRONMENT = ".deepspeed_env"
SHORTEST_SECRET = 4  # characters
VARIABLES = "variables.sh"  # the same for a shell, where the learner starts the ranks
FAILED = re.compile(r"^pdsh@\S+: (\S+): (ssh exited .*|.*timed out.*|mcmd: .*)$", re.M)
MISSING = (
    "`Hosts` starts ranks through ssh and pdsh, and {} not found here: "
    "`apt install pdsh openssh-client` brings them on Debian and Ubuntu; or start them by hand: "
    "`Hosts(..., ssh=False)` prints the command for each machine"
)


def read(hostfile: str | Path) -> dict[str, int]:
    """{machine: slots}, in the file's order; ValueError where a line is not `name slots=2`."""
    slots = {}
    for line in patiently(Path(hostfile).read_text, at_once=MISTAKES).splitlines():
        if not (line := line.partition("#")[0].strip()):
            continue
        parts = re.fullmatch(r"(\S+)\s+slots=(\d+)", line)
        if not parts or parts[1] in slots:
            raise ValueError(
                f"{hostfile}: every machine has one line such as `node0 slots=2`, which {line!r} is not"
            )
        slots[parts[1]] = int(parts[2])
    return slots


def dealt(slots: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The machines that so many ranks take, the first ones filled first."""
    if sum(slots.values()) < ranks:
        raise ValueError(f"the hostfile has {sum(slots.values())} slots, and there are {ranks} ranks")
    taken, left = {}, ranks
    for host, count in slots.items():
        if here := min(count, left):
            taken[host] = here
            left -= here
    return taken


@dataclass(frozen=True)
class Hosts:
    """The machines of a hostfile, where the real `deepspeed` command starts the ranks:
    `launch(function, ranks=8, on=Hosts("hostfile"))`.

    Args:
        hostfile: a file with a line such as `node0 slots=2` for each machine; the first are filled first.
        ssh: whether they are reached through ssh (and pdsh); else the command for each machine is printed.
        folder: one that this machine and all of them see at the same place, for the job's files; the current
            by default.
        show: print the command line.

    Attributes:
        slots: {machine: how many ranks it takes}, as the hostfile said when it was read: at once.

    Raises:
        TypeError, ValueError: a setting cannot be used, or the file is no hostfile.
    """

    hostfile: str | Path
    _: KW_ONLY
    ssh: bool = True
    folder: str | Path | None = None
    show: bool = False
    slots: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(hostfile=self.hostfile, ssh=self.ssh, folder=self.folder, show=self.show)
        try:
            object.__setattr__(self, "slots", read(self.hostfile))
        except OSError as error:
            raise ValueError(
                "hostfile must be a file with a line such as `node0 slots=2` for every machine; "
                f"{self.hostfile}: {error.strerror}"
            ) from None

    def job(self, payload: Parcel, ranks: int, device: str | None) -> HostsJob:
        """A job on the first of them, or an error that says what is missing."""
        hosts = dealt(self.slots, ranks)
        if self.ssh and (missing := [name for name in ("ssh", "pdsh") if not shutil.which(name)]):
            are = "is" if len(missing) == 1 else "are"
            raise LaunchError(MISSING.format(f"{' and '.join(missing)} {are}"))
        return HostsJob(payload, ranks, device or "cpu", hosts, self.ssh, self.folder)


class HostsJob(SharedJob):
    """The command is never sent a signal that it could handle: on an interrupt it kills whatever has the name
    of its own launcher, on every machine."""

    name, learners = "deepspeed command", {}
    grace, signals = 30.0, (signal.SIGKILL,)

    def __init__(
        self,
        payload: Parcel,
        ranks: int,
        device: str,
        hosts: Mapping[str, int],
        ssh: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(payload, ranks, device, folder)
        self.hosts, self.ssh = hosts, ssh

    def words(self) -> list[str]:
        self.learners = learners_variables()
        hosts = "".join(f"{host} slots={slots}\n" for host, slots in self.hosts.items())
        variables = "".join(f"{name}={value}\n" for name, value in self.passed_on().items())
        patiently((self.path / HOSTFILE).write_text, hosts)
        patiently((self.path / ENVIRONMENT).write_text, variables)
        return [
            *("deepspeed", "--hostfile", str(self.path / HOSTFILE)),
            # The one machine of a hostfile may be another than this.
            *(["--force_multi"] if len(self.hosts) == 1 else []),
            *("--master_addr", next(iter(self.hosts))),
            *("--master_port", str(port_for(random.getrandbits(32)))),
            *("--module", f"{NAME}.launcher.cluster.remote", str(self.path)),
        ]

    def launched(self) -> list[str]:
        runner = [sys.executable, "-P", "-m", "deepspeed.launcher.runner"]
        if self.ssh:
            return [*runner, *self.command[1:]]
        variables = {"PYTHONPATH": self.variables()["PYTHONPATH"], **self.passed_on()}
        file = self.path / VARIABLES
        lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        patiently(file.write_text, lines)  # nobody else may read the folder
        words = [word for word in self.command[1:] if word != "--force_multi"]
        print(f"Run on each machine its line; the file it reads sets {', '.join(variables)}:")
        for number, host in enumerate(self.hosts):
            command = shlex.join([*runner, "--no_ssh", "--node_rank", str(number), *words])
            print(f"{host}$ cd {shlex.quote(os.getcwd())} && . {shlex.quote(str(file))} && {command}")
        return []

    def passed_on(self) -> dict[str, str]:
        """Variables of the ranks: those of the learner's own .deepspeed_env files, and what `launch` sets."""
        return {**threads(), **server_environment(self.device), ACROSS: "1", **self.learners}

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "DS_ENV_FILE": str(self.path / ENVIRONMENT)}

    def log_text(self) -> str:
        """What the command wrote, without values of the learner's variables, which may be tokens."""
        text = super().log_text()
        for name, value in self.learners.items():
            text = re.sub(rf"\b{re.escape(name)}=\S+", f"{name}=...", text)
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, "...")
        return text

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """A machine that cannot be reached ends neither the command nor the ranks on the others."""
        super().check(outcomes)
        text = self.log_text()
        failed = FAILED.search(text)
        if not failed or self.complete or any(outcome.failed for outcome in outcomes):
            return
        host, reason = failed.groups()
        said = [line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{host}: ")]
        words = f"the deepspeed command failed on {host}: {reason}"
        raise LaunchError("\n".join([words, *self.remarks(), *said[-8:]]))


def learners_variables() -> dict[str, str]:
    """Variables in the learner's .deepspeed_env files: that of the home folder, then the current one's."""
    variables = {}
    for file in (Path.home() / ENVIRONMENT, Path(ENVIRONMENT)):
        with suppress(*MISTAKES):
            lines = patiently(file.read_text, at_once=MISTAKES).splitlines()
            variables |= dict(line.strip().split("=", 1) for line in lines if "=" in line)
    return variables
