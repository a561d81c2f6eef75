"""The default back end: ranks forked from a warm server, one per kernel and device."""

from __future__ import annotations

import importlib.util
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.paths import run_main
from helpers.tools.launch import leftovers
from helpers.tools.launch.environment import environment, on_this_machine, server_environment
from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.forked.forkserver import receive, send
from helpers.tools.launch.parcel import memory_file
from helpers.tools.launch.pipes import ASK, PIPES, Piped, end_of
from helpers.tools.launch.standstill import activity

if TYPE_CHECKING:
    from helpers.tools.launch.failures import Outcome
    from helpers.tools.launch.parcel import Parcel
    from helpers.tools.launch.progress import Progress
    from helpers.tools.machines.namespaces import Placement

SERVER = run_main("helpers.tools.launch.forked.forkserver")
# of the forkserver only: importing must start no thread
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
IDLE = 600.0  # seconds without a launch after which a forkserver, some 300 MB, ends by itself


class Forkserver:
    """The kernel's end of `helpers/tools/launch/forked/forkserver.py`."""

    def __init__(self, device: str) -> None:
        self.ready, self.preloaded = False, set()
        main_thread = threading.current_thread() is threading.main_thread()
        with ExitStack() as kept, ExitStack() as handed_over:  # what is kept closes if it cannot be started
            self.socket, control = socket.socketpair()
            kept.callback(self.socket.close)
            handed_over.callback(control.close)
            life, self.life = os.pipe()
            kept.callback(os.close, self.life)
            handed_over.callback(os.close, life)
            handed = (control.fileno(), life)
            self.log = kept.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-Pc", SERVER, *map(str, (*handed, int(main_thread), IDLE))],
                env={**os.environ, **server_environment(device), **ONE_THREAD},
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=handed,
                cwd="/",  # the kernel's folder may be removed, and libraries look for themselves there
                start_new_session=True,  # an interrupt of the kernel's process group does not reach it
            )  # fmt: skip
            kept.pop_all()

    def receive(self) -> dict:
        try:
            message, _ = receive(self.socket)
        except ConnectionError:  # it was killed with a message unread
            message = None
        if message is None:
            raise LaunchError(
                f"the forkserver has ended; the next launch starts a new one\n{end_of(self.log)}".rstrip()
            )
        return message

    def reply(self, progress: Progress) -> dict:
        """Its next message, waited for; an interrupt may come meanwhile."""
        while not select.select([self.socket], [], [], 0.1)[0]:
            progress.tick()
        return self.receive()

    def warm_up(self, progress: Progress) -> None:
        """Wait until torch and DeepSpeed are imported.  An interrupt leaves the import going on for the next
        launch."""
        if self.ready:
            return
        progress.say("first launch of this kernel: importing torch and DeepSpeed once (about 10 s)")
        message = self.reply(progress)
        if message["kind"] == "failed":
            raise LaunchError(
                "torch and DeepSpeed could not be imported; `make check` says what is "
                f"missing\n{message['reason']}"
            )
        self.ready = True
        tell_of_threads(message["threads"], "torch and DeepSpeed")

    def preload(self, names: Iterable[str], progress: Progress) -> None:
        """Import what a notebook asked for and this server has not tried yet."""
        if not (new := [name for name in names if name not in self.preloaded]):
            return
        self.preloaded.update(new)  # what fails is said once; a rank that needs it says more
        progress.say(f"importing {', '.join(new)} once for all ranks to come")
        path = [os.path.abspath(entry) for entry in sys.path]
        send(self.socket, kind="preload", names=new, path=path)
        message = self.reply(progress)
        for name, reason in message["failed"].items():
            why = reason.strip().splitlines()[-1]
            print(f"note: {name} could not be imported before the ranks start: {why}")
        tell_of_threads(message["threads"], ", ".join(new))

    def stop_ranks(self) -> bool:
        """Kill what is left of a job and wait until it is gone.  Returns whether the forkserver has answered,
        and so is well."""
        try:
            self.socket.settimeout(5)
            send(self.socket, kind="stop")
            while self.receive()["kind"] != "stopped":
                pass
            self.socket.settimeout(None)
        except (OSError, LaunchError, ValueError):
            return False
        return True

    def let_go(self) -> None:
        """Close what leads to it."""
        os.close(self.life)
        self.socket.close()

    def close(self) -> None:
        """End the forkserver and, with it, every rank."""
        self.let_go()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


# Beside the names below the one sanctioned piece of module state, by device.
_forkservers: dict[str, Forkserver] = {}
_preloaded: list[str] = []  # what this kernel asked for, in order


def preload(*names: str) -> None:
    """Import libraries once for all ranks of the launches to come, where each rank would import them again in
    each launch.

    Args:
        names: modules, or what is looked up in them, since large libraries import their parts on demand:
            "peft", "transformers.Trainer".

    Raises:
        ModuleNotFoundError: a library is not installed.
    """
    for name in names:
        if importlib.util.find_spec(library := name.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"{library} is not installed here: there is nothing to preload")
    _preloaded.extend(name for name in names if name not in _preloaded)


def tell_of_threads(threads: int, libraries: str) -> None:
    """A note where a fork would lose some."""
    if threads > 1:
        print(
            f"note: {threads} threads run where {libraries} were imported, and a fork copies one: "
            "a rank that needs another may hang"
        )


def begin_warming(device: str) -> Forkserver:
    """The forkserver of a device, started if there is none; its imports go on by themselves."""
    if device not in _forkservers:
        _forkservers[device] = Forkserver(device)
    return _forkservers[device]


def warm_forkserver(device: str, progress: Progress) -> Forkserver:
    """The forkserver of a device, its imports done.  One that was started before and has died, or dies while
    it is waited for, is replaced."""
    if earlier := _forkservers.get(device):
        with suppress(LaunchError):
            earlier.warm_up(progress)
            if earlier.stop_ranks():
                return earlier
        forget_forkserver(device)
    server = begin_warming(device)
    try:
        server.warm_up(progress)
    except LaunchError:
        forget_forkserver(device)
        raise
    return server


def forget_forkserver(device: str) -> None:
    _forkservers.pop(device).close()


def forget_in_child() -> None:
    """In a forked child of the kernel: the forkservers answer its parent alone, and end with the parent."""
    while _forkservers:
        _forkservers.popitem()[1].let_go()


os.register_at_fork(after_in_child=forget_in_child)


@dataclass
class Doors:
    """Of a job to where its ranks run.

    Attributes:
        listener: the socket on which rank 0 serves the rendezvous store.
        of: for each rank the places in `descriptors` of the namespaces that it enters, in this order.
        descriptors: open files that travel to the forkserver.
        kept: {variable: the place of a descriptor that every rank keeps and finds the number of in its
            environment}.
    """

    listener: socket.socket
    of: list[list[int]]
    descriptors: list[int] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)


class Here:
    """All ranks on this machine, talking on loopback."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def doors(self, opened: ExitStack) -> Doors:
        return Doors(
            opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2 * self.ranks)),
            [[]] * self.ranks,
        )

    def variables(self) -> dict[str, str]:
        return {}

    def variables_of(self, rank: int) -> dict[str, str]:
        return {"LOCAL_RANK": str(rank)}

    def remarks(self) -> list[str]:
        return []


class ForkedJob(Piped):
    """Ranks forked from the warm server; they meet on a socket that is bound here, so that no port is
    guessed.

    `place` puts them on machines (`helpers.tools.machines.namespaces.Placement`): it gives the socket, the
    ways in, and the variables of each rank."""

    folder = None

    def __init__(
        self, payload: Parcel, ranks: int, device: str, place: Here | Placement | None = None
    ) -> None:
        self.payload, self.ranks, self.device, self.place = payload, ranks, device, place or Here(ranks)
        self.pipes, self.processes = [], {}

    def prepare(self, progress: Progress) -> None:
        self.server = warm_forkserver(self.device, progress)
        try:
            self.server.preload(_preloaded, progress)
        except BaseException:  # a reply that nobody reads would be taken for the next
            forget_forkserver(self.device)
            raise
        progress.say("the ranks are being started")

    def start(self) -> None:
        self.source = self.server.socket  # from here on there may be ranks
        with ExitStack() as opened:
            doors = self.place.doors(opened)
            writers = self.open_pipes(opened)
            self.send_work(doors, writers)

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
            **self.place.variables(),
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
            of_ranks=[self.place.variables_of(rank) for rank in range(self.ranks)],
            doors=doors.of,
            kept=doors.kept,
            path=[str(entry) for entry in sys.path],
            directory=os.getcwd(),
            argv0=sys.argv[0],
            folder=str(self.folder),
        )

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
        return self.place.remarks()

    def ask_stacks(self) -> None:
        send(self.server.socket, kind="stacks", signals=[int(number) for number in ASK])

    def stop(self) -> None:
        """Kill what is left and wait until it is gone; a forkserver that does not answer is ended itself."""
        if self.source and not self.server.stop_ranks():
            forget_forkserver(self.device)
        if self.file:
            self.file.close()
        if self.folder:
            leftovers.remove(self.folder)
