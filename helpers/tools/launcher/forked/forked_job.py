"""The default back end: ranks forked from a warm server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import leftovers
from ..environment import environment, on_this_machine
from ..parcel import memory_file
from ..pipes import ASK, PIPES, Piped
from ..watching import activity
from . import forkservers
from .forkserver import send

if TYPE_CHECKING:
    from ...machines.namespaces import Placement
    from ..outcome import Outcome
    from ..parcel import Parcel
    from ..progress import Progress


@dataclass
class Doors:
    """Of a job to where its ranks run."""

    listener: socket.socket  # on which rank 0 serves the rendezvous store
    of: list[list[int]]  # for each rank the places in `descriptors` of the namespaces that it enters
    descriptors: list[int] = field(default_factory=list)  # open files that travel to the forkserver
    # {variable: the place of a descriptor that every rank keeps, and whose number it finds there}
    kept: dict[str, int] = field(default_factory=dict)


class ForkedJob(Piped):
    """Ranks forked from the warm server; they meet on a socket that is bound here, or by `place`, which puts
    them on machines (`helpers.tools.machines.namespaces.Placement`)."""

    folder = None

    def __init__(self, payload: Parcel, ranks: int, device: str, place: Placement | None = None) -> None:
        self.payload, self.ranks, self.device, self.place = payload, ranks, device, place
        self.pipes, self.processes = [], {}

    def prepare(self, progress: Progress) -> None:
        self.server = forkservers.warm(self.device, progress)
        progress.say("the ranks are being started")

    def start(self) -> None:
        self.source = self.server.socket  # from here on there may be ranks
        with ExitStack() as opened:
            if self.place:
                doors = self.place.doors(opened)
            else:
                listener = socket.create_server(("127.0.0.1", 0), backlog=2 * self.ranks)
                doors = Doors(opened.enter_context(listener), [[]] * self.ranks)
            self.send_work(doors, self.open_pipes(opened))

    def open_pipes(self, opened: ExitStack) -> list[int]:
        """Pipes for every rank: their write ends, which close with `opened`.  The read ends are closed when
        they are drained."""
        writers = []
        for _ in range(self.ranks):
            self.pipes.append(readers := [])
            for _ in PIPES:
                reader, writer = os.pipe()
                opened.callback(os.close, writer)
                os.set_blocking(reader, False)
                readers.append(reader)
                writers.append(writer)
        return writers

    def send_work(self, doors: Doors, writers: Sequence[int]) -> None:
        """Ask the forkserver for the ranks."""
        self.folder, temporary = leftovers.begin()
        variables = {
            **environment(self.device),
            **on_this_machine(self.ranks, doors.listener.getsockname()[1]),
            **(self.place.variables() if self.place else {}),
            **temporary,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 serves the store itself
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        self.file = memory_file()
        self.payload.write(self.file.fileno())
        send(
            self.server.socket,
            [self.file.fileno(), doors.listener.fileno(), *writers, *doors.descriptors],
            kind="fork",
            ranks=self.ranks,
            environment=variables,
            of_ranks=[self.variables_of(rank) for rank in range(self.ranks)],
            doors=doors.of,
            kept=doors.kept,
            path=[str(entry) for entry in sys.path],
            directory=os.getcwd(),
            argv0=sys.argv[0],
            folder=str(self.folder),
        )

    def variables_of(self, rank: int) -> dict[str, str]:
        return self.place.variables_of(rank) if self.place else {"LOCAL_RANK": str(rank)}

    def read_source(self, outcomes: Sequence[Outcome]) -> None:
        """A message of the forkserver: the ranks were started, or one has ended."""
        message = self.server.receive()
        if message["kind"] == "started":
            self.processes = {int(rank): process for rank, process in message["processes"].items()}
        elif message["kind"] == "ended":
            outcome = outcomes[message["rank"]]
            outcome.status, outcome.ended_at = message["status"], message["at"]

    def activity(self, outcomes: Sequence[Outcome]) -> Hashable | None:
        if self.device != "cpu":
            return None  # a thread that waits for a GPU sleeps, too
        left = [outcome for outcome in outcomes if outcome.report is None and outcome.status is None]
        return activity([self.processes.get(outcome.rank) for outcome in left])

    def remarks(self) -> list[str]:
        return self.place.machines.remarks() if self.place else []

    def ask_stacks(self) -> None:
        send(self.server.socket, kind="stacks", signals=[int(number) for number in ASK])

    def stop(self) -> None:
        """Kill what is left and wait until it is gone; a forkserver that does not answer is ended itself."""
        if self.source and not self.server.stop_ranks():
            forkservers.forget(self.device)
        if self.file:
            self.file.close()
        if self.folder:
            leftovers.remove(self.folder)
