"""Jobs on other machines, through files in a folder that all of them see; `helpers.tools.launch.cluster.srun`
and `helpers.tools.launch.cluster.hosts` start them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.paths import ROOT
from helpers.tools.launch.cluster.guard import FINISHED, STOPPED
from helpers.tools.launch.cluster.orders import (
    AT_WORK,
    ENDED,
    FILES,
    ON,
    ORDERS,
    REPORTED,
    STACKS,
    give,
    lines,
)
from helpers.tools.launch.describing import ACROSS
from helpers.tools.launch.environment import server_environment
from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.watching import HEAD, is_whole, load

if TYPE_CHECKING:
    from helpers.tools.launch.failures import Outcome
    from helpers.tools.launch.parcel import Parcel
    from helpers.tools.launch.progress import Progress

GUARD = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from helpers.tools.launch.cluster.guard import "
    "main; main()"
)
UNSEEN = "launch: the folder "  # how a keeper begins what stops it
WAITING = "queued and waiting"  # what srun says of a job that has to wait
SHOWN = 2000  # characters of what a command wrote


class SharedJob:
    """What jobs on other machines have in common; a back end says which command starts the ranks, and which
    cancels them."""

    name = "command"  # what failed when the command fails
    source = file = command = guard = path = log = None
    cancel = (
        remaining
    ) = ()  # commands: what cancels the job, and what prints something as long as there is something of it
    grace, signals = (
        3.0,
        (signal.SIGTERM, signal.SIGKILL),
    )  # to the command, so many seconds after it was told to end
    pipes, last_look, answers_later, asked = (), 1.5, True, False

    def __init__(self, payload: Parcel, ranks: int, device: str, folder: str | Path | None = None) -> None:
        self.payload, self.ranks, self.device = payload, ranks, device
        self.parent = Path(folder or ".").absolute()
        self.queued, self.complete = True, False

    def prepare(self, progress: Progress) -> None:
        self.progress = progress
        progress.say(f"the {self.name} starts every rank as a new Python (10 to 30 s)")

    def start(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=".launch-", dir=self.parent))  # mode 0700
        except OSError as error:
            raise LaunchError(
                "folder must be one that all machines share and this user may write to, not "
                f"{self.parent}: {error.strerror}"
            ) from None
        for name in (ORDERS, *(f"{name}-{rank}" for name in FILES for rank in range(self.ranks))):
            os.close(os.open(self.path / name, os.O_CREAT | os.O_WRONLY, 0o600))
        with open(os.open(self.path / "payload", os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            self.payload.write(file.fileno())
            os.fsync(file.fileno())
        self.command = self.words()
        self.log = tempfile.TemporaryFile()
        ways = {
            "cancel": self.cancel,
            "remaining": self.remaining,
            "grace": self.grace,
            "signals": self.signals,
        }
        task = json.dumps({"folder": str(self.path), "command": self.launched(), **ways})
        self.guard = subprocess.Popen(
            [sys.executable, "-S", "-P", "-c", GUARD, task],
            env=self.variables(), stdin=subprocess.PIPE, bufsize=0, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def launched(self) -> list[str]:
        """Words of the command as it is started, where that is another than the learner is shown."""
        return self.command

    def variables(self) -> dict[str, str]:
        """Of the command's environment, and so of the ranks'."""
        path = [str(ROOT), *(os.path.abspath(entry) for entry in sys.path)]  # "" is the working directory
        once = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        return {
            **once,
            **os.environ,
            **server_environment(self.device),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
            ACROSS: "1",
        }

    def log_text(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    @property
    def begun(self) -> bool:
        return not self.queued

    def activity(self, outcomes: Sequence[Outcome]) -> None:
        """Not known here: the ranks run elsewhere."""

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """What the ranks' keepers have noted."""
        for outcome in outcomes:
            if outcome.report is None:
                for note in lines(self.path / f"notes-{outcome.rank}"):
                    self.take(outcome, *note.partition(" ")[::2])
            if self.asked:
                outcome.stacks[:] = (self.path / f"stacks-{outcome.rank}").read_bytes()
        self.complete = all(outcome.report for outcome in outcomes)

    def take(self, outcome: Outcome, kind: str, rest: str) -> None:
        """One note, perhaps for the second time."""
        if kind == ON:
            outcome.machine, self.queued = rest, False
        outcome.at_work |= f"{kind} {rest}" == AT_WORK
        if kind == REPORTED and outcome.report is None:
            body = (self.path / f"report-{outcome.rank}").read_bytes()
            if is_whole(body):
                with open(self.path / f"values-{outcome.rank}", "rb") as values:
                    outcome.report = load(body[HEAD:], values, 0, time.time)
        elif kind == ENDED and outcome.report is None and outcome.status is None:
            status, at = rest.split()
            outcome.status, outcome.ended_at = int(status), float(at)

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """The command may end before the ranks, or one of them find no folder."""
        text = self.log_text()
        if unseen := sorted(
            {line[line.index(UNSEEN) + len(UNSEEN) :] for line in text.splitlines() if UNSEEN in line}
        ):
            raise LaunchError(
                f"the folder {unseen[0]}: give `launch` a `folder=` that all machines share, at "
                "the same place"
            )
        if self.queued and (waits := [line for line in text.splitlines() if WAITING in line]):
            self.progress.say(f"{waits[-1]} ({self.path.name.removeprefix('.')})")
        if self.guard.poll() is not None:
            self.look(outcomes)
            if not self.complete and not any(outcome.failed for outcome in outcomes):
                raise LaunchError(
                    f"the {self.name} ended with status "
                    f"{self.guard.returncode}{self.state()}:\n{self.told(text)}"
                )

    def state(self) -> str:
        """What who manages the machines says of a job that has ended, in parentheses; the command's own words
        may be lost."""
        return ""

    def told(self, text: str) -> str:
        """What of the command's words is shown."""
        return text.strip()[-SHOWN:]

    def ask_stacks(self) -> None:
        self.asked = True
        with suppress(OSError):
            give(self.path / ORDERS, STACKS)

    def stop(self) -> None:
        """End the job, wherever it is; the guard does it, and would without this process too."""
        if not self.guard:
            return
        with suppress(OSError):  # the command has ended, and the guard
            self.guard.stdin.write(FINISHED if self.complete else STOPPED)
        try:
            self.guard.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(self.guard.pid, signal.SIGKILL)
            self.guard.wait()
        self.guard.stdin.close()

    def leave(self, outcomes: Sequence[Outcome]) -> None:
        """Read what the ranks have written, and remove the folder."""
        if not self.path:
            return
        for outcome in outcomes:
            for name in ("output", "stacks"):
                with suppress(OSError):
                    getattr(outcome, name)[:] = (self.path / f"{name}-{outcome.rank}").read_bytes()
        shutil.rmtree(self.path, ignore_errors=True)
        if self.log:
            self.log.close()
