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
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.tools.launch.cluster.orders import HOSTFILE
from helpers.tools.launch.cluster.shared_job import SharedJob
from helpers.tools.launch.describing import ACROSS
from helpers.tools.launch.environment import server_environment
from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.ports import port_for

if TYPE_CHECKING:
    from helpers.tools.launch.failures import Outcome
    from helpers.tools.launch.parcel import Parcel

# variables that DeepSpeed gives to the ranks on every machine, beside those that begin with PYTHON
ENVIRONMENT = ".deepspeed_env"
FAILED = re.compile(r"^pdsh@\S+: (\S+): (ssh exited .*|.*timed out.*|mcmd: .*)$", re.M)
MISSING = (
    'launcher="deepspeed" with a hostfile starts ranks through ssh and pdsh, and {} not found '
    "here: `apt install pdsh openssh-client` brings them "
    "on Debian and Ubuntu; or start them by hand: `launch(..., ssh=False)` prints the command "
    "for each machine"
)


def read(hostfile: str | Path) -> dict[str, int]:
    """{machine: slots}, in the file's order.

    Raises:
        ValueError: a line is not `name slots=2`.
        OSError: it cannot be read.
    """
    found = {}
    for line in Path(hostfile).read_text().splitlines():
        if not (line := line.partition("#")[0].strip()):
            continue
        if not (parts := re.fullmatch(r"(\S+)\s+slots=(\d+)", line)) or parts[1] in found:
            raise ValueError(
                f"{hostfile}: every machine has one line such as `node0 slots=2`, which {line!r} is not"
            )
        found[parts[1]] = int(parts[2])
    return found


def dealt(slots: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The machines that so many ranks take, the first ones filled first."""
    if sum(slots.values()) < ranks:
        raise ValueError(f"the hostfile has {sum(slots.values())} slots, and there are {ranks} ranks")
    taken = {}
    for host, count in slots.items():
        if here := min(count, ranks - sum(taken.values())):
            taken[host] = here
    return taken


def check(hostfile: str | Path, ranks: int, ssh: bool) -> dict[str, int]:
    """The machines for the ranks: {name: how many}; or an error that says what is missing."""
    try:
        found = dealt(read(hostfile), ranks)
    except OSError as error:
        raise ValueError(
            "hostfile must be a file with a line such as `node0 slots=2` for every machine; "
            f"{hostfile}: {error.strerror}"
        ) from None
    if ssh and (missing := [name for name in ("ssh", "pdsh") if not shutil.which(name)]):
        raise LaunchError(MISSING.format(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"))
    return found


class HostsJob(SharedJob):
    """Ranks that `deepspeed` starts.

    It is never sent a signal that it could handle: on an interrupt it kills whatever has the name of its own
    launcher, on every machine.
    """

    name = "deepspeed command"
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
        (self.path / HOSTFILE).write_text(
            "".join(f"{host} slots={slots}\n" for host, slots in self.hosts.items())
        )
        (self.path / ENVIRONMENT).write_text(
            "".join(f"{name}={value}\n" for name, value in self.passed_on().items())
        )
        ways = ["--force_multi"] if len(self.hosts) == 1 else []  # one machine too may be another than this
        address = [
            "--master_addr",
            next(iter(self.hosts)),
            "--master_port",
            str(port_for(random.getrandbits(32))),
        ]
        module = ["--module", "helpers.tools.launch.cluster.remote", str(self.path)]
        return ["deepspeed", "--hostfile", str(self.path / HOSTFILE), *ways, *address, *module]

    def launched(self) -> list[str]:
        if self.ssh:
            return [sys.executable, "-P", "-m", "deepspeed.launcher.runner", *self.command[1:]]
        own = {
            name: value for name, value in self.variables().items() if name == "PYTHONPATH"
        } | self.passed_on()
        variables = shlex.join(f"{name}={value}" for name, value in own.items())
        command = [sys.executable, "-P", "-m", "deepspeed.launcher.runner", "--no_ssh", "--node_rank"]
        words = [word for word in self.command[1:] if word != "--force_multi"]
        print("Run on each machine its line:")
        for number, host in enumerate(self.hosts):
            print(
                f"{host}$ cd {shlex.quote(os.getcwd())} && env {variables} "
                f"{shlex.join([*command, str(number), *words])}"
            )
        return []

    def passed_on(self) -> dict[str, str]:
        """Variables of the ranks: those of the learner's own .deepspeed_env files, and what `launch` sets."""
        variables = {"OMP_NUM_THREADS": "1", **server_environment(self.device), ACROSS: "1"}
        for file in (Path.home() / ENVIRONMENT, Path(ENVIRONMENT)):
            if file.is_file():
                variables |= dict(
                    line.strip().split("=", 1) for line in file.read_text().splitlines() if "=" in line
                )
        return variables

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "DS_ENV_FILE": str(self.path / ENVIRONMENT)}

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """A machine that cannot be reached ends neither the command nor the ranks on the others."""
        super().check(outcomes)
        text = self.log_text()
        if (
            (found := FAILED.search(text))
            and not self.complete
            and not any(outcome.failed for outcome in outcomes)
        ):
            said = [line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{found[1]}: ")]
            raise LaunchError(
                "\n".join([f"the deepspeed command failed on {found[1]}: {found[2]}", *said[-8:]])
            )
