"""`Ssh(machines)`: an sshd on every machine, so that `ssh machine1` and pdsh work from here, without root and without a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from helpers.launcher.failures import LaunchError
from helpers.launcher.progress import Progress
from helpers.machines.login import Login
from helpers.machines.services import Services
from helpers.machines.switch import name_of

ADMINISTRATORS = "/usr/sbin:/usr/local/sbin:/sbin"  # where sshd lies; not in every user's PATH
NEEDED = ("sshd", "ssh", "ssh-keygen", "pdsh")
MISSING = "{} {} not installed here: on Debian and Ubuntu `apt install openssh-server pdsh` brings what is needed"
ROOTS_FOLDER = "/run/sshd"  # which root's sshd wants; where there is none, it gets a /run of its own, in a view that only it has
PORT = 2222  # one that needs no root
PATIENCE = 20.0  # seconds in which every sshd must answer
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


def found(program):
    """Path of a program, None where there is none."""
    return shutil.which(program) or shutil.which(program, path=ADMINISTRATORS)


def problem():
    """Why there can be no ssh between machines here, in one line; None where its programs are."""
    missing = [name for name in NEEDED if not found(name)]
    return MISSING.format(", ".join(missing), "is" if len(missing) == 1 else "are") if missing else None


class Ssh:
    """Inside the block `ssh` and `pdsh` reach the machines by name, from this process and from all that it starts; they run on machine 0.

        with Machines(2) as machines, Ssh(machines) as ssh:
            launch(function, ranks=4, launcher="deepspeed", hostfile=ssh.hostfile)

    With the block, or with the notebook's kernel, the servers end, and all that runs through them.

    Args:
        machines: `Machines` that are up.
        slots: how many ranks the hostfile allows on each.

    Attributes:
        hostfile: `Path` of a file with all machines, as the deepspeed command takes it.

    Raises:
        LaunchError: when the block is entered and its programs are not installed, or the servers do not come up.
    """

    def __init__(self, machines, slots=2):
        self.machines, self.slots, self.folder, self.opened = machines, slots, None, None

    def __enter__(self):
        if reason := problem():
            raise LaunchError(reason)
        if self.opened:
            raise ValueError("these servers are up already: make others with Ssh(machines)")
        with ExitStack() as opened, Progress() as progress:  # an interrupt waits for `tick`: nothing may be left half made
            self._start(opened, progress)
            self.opened = opened.pop_all()
        return self

    def _start(self, opened, progress):
        self.folder = Path(tempfile.mkdtemp(prefix="ssh-"))
        opened.callback(shutil.rmtree, self.folder, ignore_errors=True)
        for name in ("host", "user"):
            subprocess.run([found("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True, stdin=subprocess.DEVNULL)
        for name, text in (("sshd_config", SERVER), ("ssh_config", CLIENT)):
            (self.folder / name).write_text(text.format(folder=self.folder, port=PORT))
        self.hostfile = self.folder / "hostfile"
        self.hostfile.write_text("".join(f"{name_of(machine)} slots={self.slots}\n" for machine in range(self.machines.count)))
        command = [found("sshd"), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if os.geteuid() == 0 and not os.path.exists(ROOTS_FOLDER):
            command = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs /run && mkdir {ROOTS_FOLDER}; exec "$@"', "sh", *command]
        logs = [self.folder / f"sshd-{machine}.out" for machine in range(self.machines.count)]
        services = Services(self.machines, self.folder, [(machine, command, log) for machine, log in enumerate(logs)])
        opened.callback(services.close)
        programs = {"ssh": [found("ssh"), "-F", str(self.folder / "ssh_config")], "pdsh": [found("pdsh")]}
        opened.enter_context(Login(self.folder / "bin", services.ids[0], programs, {}))
        until = time.monotonic() + PATIENCE
        while not all(log.exists() and "Server listening" in log.read_text() for log in logs):
            progress.tick()
            if time.monotonic() > until or services.process.poll() is not None:
                raise LaunchError("the ssh servers did not come up:\n" + "\n".join(log.read_text()[-500:] for log in logs if log.exists()))
            time.sleep(0.02)

    def close(self):
        """End the servers, and all that runs through them."""
        with Progress():
            if self.opened:
                self.opened.close()
            self.opened = self.folder = None

    def __exit__(self, *problem):
        self.close()

    def __repr__(self):
        return f"Ssh({self.machines!r})"
