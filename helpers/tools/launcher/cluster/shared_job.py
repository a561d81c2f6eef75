"""Jobs that a command starts, on other machines or this one: kernel and ranks speak through files in a folder
that all of them see."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...place import ROOT, run_main
from .. import leftovers
from ..describing import ACROSS
from ..environment import environment
from ..failures import LaunchError
from ..parcel import memory_file
from ..pipes import Piped
from ..watching import HEAD, is_whole, load
from . import orders
from .guard import FINISHED, STOPPED

if TYPE_CHECKING:
    from ..outcome import Outcome
    from ..parcel import Parcel
    from ..progress import Progress

GUARD = run_main("launcher.cluster.guard")
UNSEEN = "launch: the folder "  # how a keeper begins what stops it
WAITING = "queued and waiting"  # what srun says of a job that has to wait
SHOWN = 2000  # characters of what a command wrote
REMARKS: list[Callable[[], list[str]]] = []  # what else is known of the machines, asked when a job has failed


class SharedJob(Piped):
    """A back end says which command starts the ranks, and which cancels them."""

    name, prefix = "command", ".launch-"  # what failed when the command fails; of the folder's name
    guard = path = temporary = None
    # commands: what cancels the job, and what prints something as long as there is something of it
    cancel = remaining = ()
    # to the command, so many seconds after it was told to end
    grace, signals = 3.0, (signal.SIGTERM, signal.SIGKILL)
    last_look, answers_later, asked = 1.5, True, False

    def __init__(self, payload: Parcel, ranks: int, device: str, folder: str | Path | None = None) -> None:
        self.payload, self.ranks, self.device = payload, ranks, device
        self.parent = Path("." if folder is None else folder).absolute()
        self.queued, self.complete, self.files, self.opened = True, False, orders.Reader(), ExitStack()

    def prepare(self, progress: Progress) -> None:
        self.progress = progress
        progress.say(f"the {self.name} starts every rank as a new Python (10 to 30 s)")

    def start(self) -> None:
        self.log = self.opened.enter_context(tempfile.TemporaryFile())
        try:  # mode 0700
            place = None, self.prefix, self.parent
            self.path = Path(orders.patiently(tempfile.mkdtemp, *place, at_once=orders.MISTAKES))
        except OSError as error:
            raise LaunchError(
                "folder must be one that all machines share and this user may write to, not "
                f"{self.parent}: {error.strerror}"
            ) from None
        of_ranks = [f"{name}-{rank}" for name in orders.FILES for rank in range(self.ranks)]
        for name in (orders.ORDERS, "payload", *of_ranks):
            orders.patiently((self.path / name).touch, 0o600)
        orders.patiently(self.write_payload)
        self.command = self.words()
        temporary = self.temporary and str(self.temporary)
        task = {"folder": str(self.path), "temporary": temporary, "command": self.launched()}
        task |= {name: getattr(self, name) for name in ("cancel", "remaining", "grace", "signals")}
        self.guard = subprocess.Popen(
            [sys.executable, "-S", "-P", "-c", GUARD, json.dumps(task)],
            env=self.variables(), stdin=subprocess.PIPE, bufsize=0, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip

    def write_payload(self) -> None:
        with open(self.path / "payload", "r+b", buffering=0) as file:
            self.payload.write(file.fileno())
            os.fsync(file.fileno())

    def launched(self) -> list[str]:
        """The command as it is started, where that is another than the learner is shown."""
        return self.command

    def variables(self) -> dict[str, str]:
        """Of the command's environment, and so of the ranks'."""
        path = [str(ROOT), *(os.path.abspath(entry) for entry in sys.path)]  # "" is the working directory
        added = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), ACROSS: "1"}
        return environment(self.device) | added

    def log_text(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    @property
    def begun(self) -> bool:
        return not self.queued

    def remarks(self) -> list[str]:
        return [line for remarks in REMARKS for line in remarks()]

    def look(self, outcomes: Sequence[Outcome]) -> None:
        """What the ranks' keepers have noted; an error when the folder could not be read for a while."""
        try:
            for outcome in outcomes:
                if outcome.report is None:
                    for note in self.files.lines(self.path / f"notes-{outcome.rank}"):
                        self.take(outcome, *note.partition(" ")[::2])
                if self.asked and (stacks := self.files.read(self.path / f"stacks-{outcome.rank}")):
                    outcome.stacks[:] = stacks
        except OSError as error:
            words = f"the job's folder {self.parent} could not be read for {orders.PATIENCE:g} s"
            raise LaunchError("\n".join([f"{words}: {error.strerror}", *self.remarks()])) from None
        self.complete = all(outcome.report for outcome in outcomes)

    def take(self, outcome: Outcome, kind: str, rest: str) -> None:
        """One note, perhaps for the second time."""
        if kind == orders.ON:
            outcome.machine, self.queued = rest, False
        outcome.at_work |= f"{kind} {rest}" == orders.AT_WORK
        if kind == orders.REPORTED and outcome.report is None:
            outcome.report = self.report_of(outcome.rank)
        elif kind == orders.ENDED and outcome.report is None and outcome.status is None:
            status, at = rest.split()
            outcome.status, outcome.ended_at = int(status), float(at)

    def report_of(self, rank: int) -> dict | None:
        """A rank's report; None where it did not come whole, or cannot be read now."""
        body = self.files.read(self.path / f"report-{rank}")
        values = self.files.read(self.path / f"values-{rank}")
        if body is None or values is None or not is_whole(body):
            return None
        with memory_file() as file:
            shutil.copyfileobj(io.BytesIO(values), file)
            return load(body[HEAD:], file, 0, time.time)

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """The command may end before the ranks, or a rank may not find the folder."""
        text = self.log_text()
        unseen = [line.partition(UNSEEN)[2] for line in text.splitlines() if UNSEEN in line]
        if unseen:
            raise LaunchError(
                f"the folder {min(unseen)}: give `Hosts` or `SlurmNodes` a `folder=` that all machines "
                "share, at the same place"
            )
        if self.queued and (waits := [line for line in text.splitlines() if WAITING in line]):
            self.progress.say(f"{waits[-1]} ({self.path.name.removeprefix('.')})")
        if self.guard.poll() is not None:
            self.look(outcomes)
            if not self.complete and not any(outcome.failed for outcome in outcomes):
                words = f"the {self.name} ended with status {self.guard.returncode}{self.state()}:"
                raise LaunchError("\n".join([words, *self.remarks(), self.told(text)]))

    def state(self) -> str:
        """What the cluster says of a job that has ended, in parentheses."""
        return ""

    def told(self, text: str) -> str:
        """What of the command's words is shown."""
        return text.strip()[-SHOWN:]

    def ask_stacks(self) -> None:
        self.asked = True
        with suppress(OSError):
            orders.give(self.path / orders.ORDERS, orders.STACKS)

    def stop(self) -> None:
        """End the job, wherever it is; the guard does it, and would without this process too."""
        if self.guard:
            with suppress(OSError):  # the command has ended, and the guard
                self.guard.stdin.write(FINISHED if self.complete else STOPPED)
            try:
                self.guard.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self.guard.pid, signal.SIGKILL)
                self.guard.wait()
            self.guard.stdin.close()
        self.opened.close()
        if self.temporary:
            leftovers.remove(self.temporary)

    def leave(self, outcomes: Sequence[Outcome]) -> None:
        """Read what the ranks have written, and remove the folder."""
        if not self.path:
            return
        until = time.monotonic() + orders.PATIENCE
        for outcome in outcomes:
            for name in ("output", "stacks"):
                with suppress(OSError):
                    file = self.path / f"{name}-{outcome.rank}"
                    getattr(outcome, name)[:] = orders.patiently(file.read_bytes, until=until)
        shutil.rmtree(self.path, ignore_errors=True)
