"""`Ssh(machines)`: an sshd on every machine; `ssh machine1` and pdsh work from here, without root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ..whole import whole
from .daemons import Daemons, path_of
from .switch import name_of

if TYPE_CHECKING:
    from .namespaces import Machines

# which root's sshd wants; where there is none, it gets a /run of its own, in a view that only it has
ROOTS_FOLDER = "/run/sshd"
PORT = 2222  # one that needs no root
SERVER = """Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
PrintMotd no
"""
CLIENT = """Host *
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Ssh(Daemons):
    """Lets `ssh` and `pdsh` reach the machines by name, inside the block.

    They work from this process and from all that it starts, and run on machine 0.

        with Machines(2) as machines, Ssh(machines) as ssh:
            launch(function, ranks=4, on=Hosts(ssh.hostfile))

    With the block, or with the notebook's kernel, the servers end, and all that runs through them.

    Args:
        machines: `Machines` that are up.
        slots: how many ranks the hostfile allows on each.

    Attributes:
        hostfile: `Path` of a file with all machines, as the deepspeed command takes it.

    Raises:
        TypeError, ValueError: an argument cannot be used, or the machines run an Ssh already.
        LaunchError: when the block is entered: a program is not installed, or a server does not come up.
    """

    name, needed, packages = "an Ssh", ("sshd", "ssh", "ssh-keygen", "pdsh"), "openssh-server pdsh"

    def __init__(self, machines: Machines, slots: int = 2) -> None:
        super().__init__(machines)
        self.slots = whole(slots, "the slots of each machine", 1, 1024)

    def commands(self) -> list[tuple[int, list[str], Path]]:
        for name in ("host", "user"):
            key = [path_of("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name]
            subprocess.run(key, check=True, stdin=subprocess.DEVNULL)
        for name, text in (("sshd_config", SERVER), ("ssh_config", CLIENT)):
            (self.folder / name).write_text(text.format(folder=self.folder, port=PORT))
        machines = range(self.machines.count)
        self.hostfile = self.folder / "hostfile"
        self.hostfile.write_text("".join(f"{name_of(at)} slots={self.slots}\n" for at in machines))
        command = [path_of("sshd"), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if os.geteuid() == 0 and not os.path.exists(ROOTS_FOLDER):
            make = f'mount -t tmpfs tmpfs /run && mkdir {ROOTS_FOLDER}; exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", make, "sh", *command]
        self.logs = [self.folder / f"sshd-{machine}.out" for machine in machines]
        return [(machine, command, log) for machine, log in enumerate(self.logs)]

    def programs(self) -> dict[str, list[str]]:
        return {"ssh": [path_of("ssh"), "-F", str(self.folder / "ssh_config")], "pdsh": [path_of("pdsh")]}

    def is_up(self) -> bool:
        return all(log.exists() and "Server listening" in log.read_text() for log in self.logs)

    def complaints(self) -> str:
        return "\n".join(log.read_text()[-500:] for log in self.logs if log.exists())


problem = Ssh.problem
