"""The other back end: ranks started by the real `deepspeed` command, each under a keeper
(`helpers.tools.launch.command.keeper`)."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from helpers.tools.launch import leftovers
from helpers.tools.launch.environment import environment
from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.forked.forkserver import ask_where
from helpers.tools.launch.pipes import ASK, PIPES, Piped, end_of
from helpers.tools.launch.ports import held_port

if TYPE_CHECKING:
    from helpers.tools.launch.failures import Outcome
    from helpers.tools.launch.parcel import Parcel
    from helpers.tools.launch.progress import Progress


class CommandJob(Piped):
    """Ranks started by the real `deepspeed` command.  Their pipes are named and lie in a private folder.

    The command needs a port before any rank exists, so one is held for them.  They bind it on every
    interface, which the ranks of the forkserver do not.
    """

    process = folder = temporary = lock = log = port = None

    def __init__(self, payload: Parcel, ranks: int, device: str) -> None:
        self.payload, self.ranks, self.device = payload, ranks, device
        self.pipes, self.gone = [], []

    def prepare(self, progress: Progress) -> None:
        progress.say("the deepspeed command starts every rank as a new Python (10 to 30 s)")

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True)  # mode 0700
        path = Path(self.folder.name)
        self.lock = open(os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        # ranks are ended when it is released, which the kernel's death does too
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.file = open(os.open(path / "payload", os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        self.payload.write(self.file.fileno())
        for rank in range(self.ranks):
            self.pipes.append(readers := [])
            for name in PIPES:
                os.mkfifo(path / f"{name}-{rank}", 0o600)
                readers.append(os.open(path / f"{name}-{rank}", os.O_RDONLY | os.O_NONBLOCK))
        self.temporary, temporary = leftovers.begin()
        self.port = held_port()
        port = self.port.getsockname()[1]
        count = ["--num_gpus" if self.device == "cuda" else "--num_accelerators", str(self.ranks)]
        address = ["--master_addr", "127.0.0.1", "--master_port", str(port)]
        module = ["--module", "helpers.tools.launch.command.keeper", str(path)]
        self.command = ["deepspeed", *count, *address, *module]
        variables = environment(self.device, self.ranks, port) | temporary
        # "" is the working directory
        variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deepspeed.launcher.runner", *self.command[1:]],
            env=variables, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def pipe_closed(self, outcome: Outcome) -> None:
        """A rank that closed its report pipe without a report has gone; its keeper notes how."""
        if outcome.report is None:
            self.gone.append(outcome)

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """How ranks have ended; and the command itself, which may end before a rank has opened its pipes."""
        for outcome in self.gone:
            note = Path(self.folder.name) / f"status-{outcome.rank}"
            if outcome.status is None and note.exists() and (text := note.read_text()):
                status, at = text.split()
                outcome.status, outcome.ended_at = int(status), float(at)
        if self.process.poll() is not None and not any(outcome.failed for outcome in outcomes):
            status = self.process.returncode
            raise LaunchError(f"the deepspeed command ended with status {status}:\n{end_of(self.log)}")

    def descendants(self) -> list[psutil.Process]:
        """Every process that the command has started, oldest first."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def ask_stacks(self) -> None:
        """Ask every rank, and its keeper, which does not listen."""
        for process in self.descendants():
            with suppress(psutil.Error, ProcessLookupError):  # it has just ended
                command = process.cmdline()
                if "helpers.tools.launch.command.keeper" in command and "--module" not in command:
                    ask_where(process.pid, *ASK)

    def close_pipes(self) -> None:
        """Of a job that was not started, so that there is nothing to drain, and perhaps no descriptor left to
        empty the folder with."""
        for pipe in (pipe for readers in self.pipes for pipe in readers):
            os.close(pipe)
        self.pipes = []

    def stop(self) -> None:
        """End the ranks, the command, and all that either has started."""
        if not self.folder:
            return
        # before the keepers know that it is over, and end
        processes = self.descendants() if self.process else []
        if self.lock:
            self.lock.close()
        if self.process:
            for process in (self.process, *processes):
                with suppress(ProcessLookupError, PermissionError):  # it has ended
                    os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            self.process.wait()
            psutil.wait_procs(processes, timeout=2)
        else:
            self.close_pipes()
        for file in (self.file, self.log, self.port):
            if file:
                file.close()
        self.folder.cleanup()
        if self.temporary:
            leftovers.remove(self.temporary)
