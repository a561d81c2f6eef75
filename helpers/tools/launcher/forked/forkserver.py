"""The process that every rank is forked from.  `forked_job` starts it, one per kernel and device.

It imports torch and DeepSpeed once, freezes the garbage collector, and then forks ranks in milliseconds.  A
rank forgets the few helpers that are imported here, so that an edited helper counts in the very next launch.

Nobody outlives the kernel: the kernel holds the only write end of the *life pipe*, and this process ends when
that pipe does.  This process kills the ranks, or Linux does (PR_SET_PDEATHSIG) should this process die first.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ...place import OURS
from .. import leftovers
from . import processes
from .imports import REQUIRED, USEFUL, preload


def send(control: socket.socket, descriptors: Iterable[int] = (), **message: object) -> None:
    """One message between kernel and forkserver, and file descriptors."""
    body = json.dumps(message).encode()
    socket.send_fds(control, [struct.pack("!Q", len(body))], list(descriptors))
    control.sendall(body)


def receive(control: socket.socket) -> tuple[dict | None, list[int]]:
    """One message and the descriptors sent along.  None where the other has gone."""
    header, descriptors, _, _ = socket.recv_fds(control, 8, 253, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    body, size = bytearray(), struct.unpack("!Q", header)[0] if header else 1
    while len(body) < size:
        part = control.recv(size - len(body)) if header else b""
        if not part:
            return None, descriptors
        body += part
    return json.loads(body), descriptors


def become_rank(
    rank: int, message: dict, pipes: Sequence[int], parent: int, unwanted: Iterable[int], doors: Iterable[int]
) -> NoReturn:
    """In the forked child: leave the server behind, enter a machine where there is one, take over this rank's
    pipes, and run `helpers.tools.launcher.rank`."""
    status = 1
    try:
        os.setpgid(0, 0)  # a group of its own: whatever the rank starts is stopped with it
        processes.enter(doors)
        processes.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # SIGINT stays ignored: the kernel alone decides what an interrupt means
        for descriptor in unwanted:
            os.close(descriptor)
        payload, report, output, stacks = pipes
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(output)
        os.environ.clear()
        os.environ.update(message["environment"])
        sys.path[:] = message["path"]
        sys.argv[:] = [message["argv0"]]
        os.chdir(message["directory"])
        for name in [name for name in sys.modules if name.partition(".")[0] == OURS]:
            del sys.modules[name]
        from ..rank import run

        run(payload, report, stacks, message["listener"] if rank == 0 else None)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


class Server:
    """Forks ranks on request, reports how each ended, and kills what is left."""

    def __init__(self, control: socket.socket, life: int) -> None:
        self.control, self.life = control, life
        self.children = {}  # process id -> rank
        self.folder = None  # of the job's leftovers
        # a signal writes its number there: a child has ended, or this process is to end
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def tell(self, **message: object) -> None:
        """The kernel.  One that has gone is no error here: the life pipe says so."""
        with suppress(OSError):
            send(self.control, **message)

    def fork(self, message: dict, descriptors: list[int]) -> None:
        """Fork one child per rank.  `descriptors` are the payload, the socket that listens, three pipes for
        each rank, and the namespaces of machines and what else ranks keep."""
        ranks, parent, self.folder = message["ranks"], os.getpid(), Path(message["folder"])
        payload, listener, *rest = descriptors
        pipes, more = rest[: 3 * ranks], rest[3 * ranks :]
        kept = {name: more[place] for name, place in message["kept"].items()}
        message["listener"] = listener
        message["environment"] |= {name: str(descriptor) for name, descriptor in kept.items()}
        own = {self.control.fileno(), self.life, self.wake_read, self.wake_write}
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                channels = payload, *pipes[3 * rank : 3 * rank + 3]
                wanted = {*channels, *kept.values(), *([listener] if rank == 0 else [])}
                message["environment"] |= {"RANK": str(rank), **message["of_ranks"][rank]}
                doors = [more[place] for place in message["doors"][rank]]
                become_rank(rank, message, channels, parent, {*descriptors, *own} - wanted, doors)
            self.children[child] = rank
        for descriptor in descriptors:
            os.close(descriptor)
        self.tell(kind="started", processes={rank: child for child, rank in self.children.items()})

    def reap(self) -> None:
        """Tell the kernel of every rank that has ended since the last look, and end what it has started."""
        for child, status in processes.ended_children():
            if child in self.children:
                at, rank = time.monotonic(), self.children.pop(child)
                processes.kill_group(child)
                processes.end_orphans(self.children)
                self.tell(kind="ended", rank=rank, status=os.waitstatus_to_exitcode(status), at=at)

    def stop(self) -> None:
        """Kill every rank and what it started, and wait until they are gone."""
        for child in self.children:
            processes.kill_group(child)
            os.kill(child, signal.SIGKILL)  # it may not have made its group yet
        for child in self.children:
            os.waitpid(child, 0)
        self.children.clear()
        processes.end_orphans()

    def answer(self, message: dict, descriptors: list[int]) -> None:
        """Do what the kernel asks for."""
        if message["kind"] == "fork":
            self.fork(message, descriptors)
        elif message["kind"] == "preload":
            sys.path[:] = message["path"]
            self.tell(kind="preloaded", failed=preload(message["names"]))
        elif message["kind"] == "stacks":
            for child in self.children:
                processes.ask_where(child, *message["signals"])
        elif message["kind"] == "stop":
            self.stop()
            self.tell(kind="stopped")

    def serve(self, idle: float) -> None:
        """Until the kernel goes, or has asked for nothing and no rank has run for `idle` seconds."""
        poll = select.poll()
        for descriptor in (self.control.fileno(), self.life, self.wake_read):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(None if self.children else 1000 * idle)}
            if self.life in ready or not ready:
                return
            if self.wake_read in ready:
                if signal.SIGTERM in os.read(self.wake_read, 4096):
                    return
                self.reap()
            if self.control.fileno() in ready:
                message, descriptors = receive(self.control)
                if message is None:
                    return
                self.answer(message, descriptors)


def leave_when_closed(life: int, finished: threading.Event) -> None:
    """Thread of the warm-up: leave at once when the kernel does, though an import is under way."""
    while not finished.wait(0.05):
        if select.select([life], [], [], 0)[0]:
            os._exit(0)


def main() -> None:
    processes.adopt_orphans()
    control, life = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with_parent, idle = sys.argv[3] == "1", float(sys.argv[4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if with_parent:
        # not SIGKILL: what the ranks have started must be stopped first
        processes.die_with_parent(signal.SIGTERM)
    finished = threading.Event()
    watcher = threading.Thread(target=leave_when_closed, args=(life, finished))
    watcher.start()
    failed = preload((*REQUIRED, *USEFUL))
    if reason := "".join(failed.get(name, "") for name in REQUIRED):
        send(control, kind="failed", reason=reason)
        os._exit(1)
    finished.set()
    watcher.join()
    server = Server(control, life)
    server.tell(kind="ready")
    try:
        server.serve(idle)
    finally:  # the kernel has gone: it would have removed what the ranks have left
        server.stop()
        if server.folder and server.folder.is_dir():
            leftovers.remove(server.folder)
