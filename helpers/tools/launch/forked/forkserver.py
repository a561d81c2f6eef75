"""The process that every rank is forked from.  `forked_job` starts it, one per kernel and device.

It imports torch and DeepSpeed once, freezes the garbage collector, and then forks ranks in milliseconds.  It
runs as a plain script and imports nothing from `helpers`, so that an edited helper counts in the very next
launch.

Nobody outlives the kernel: the kernel holds the only write end of the *life pipe*, and this process ends when
that pipe does.  This process kills the ranks, or Linux does (PR_SET_PDEATHSIG) should this process die first.
What a rank has started ends with its process group.  What has left that group becomes, on Linux, a child of
this process when its own parent ends (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import glob
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType

TYPE_CHECKING = False  # as who checks types reads it; `typing` itself would be one import more
if TYPE_CHECKING:
    from typing import NoReturn

# What a DeepSpeed job imports between launch and its first step; found with `python -X importtime`.
REQUIRED = ("torch", "deepspeed", "cloudpickle")
USEFUL = (
    "torch._dynamo", "torch.profiler", "torch.distributed.tensor", "torch.utils.cpp_extension",
    "setuptools.command.build_ext", "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3", "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.pipe.engine", "deepspeed.module_inject.auto_ep_config",
    "deepspeed.module_inject.auto_ep_layer", "deepspeed.ops.op_builder.all_ops", "deepspeed.comm.mori",
)  # fmt: skip
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when the thread that started it ends."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def kill_group(rank: int) -> None:
    """End a rank and what it has started."""
    try:
        os.killpg(rank, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nothing is left, or (macOS) only what has ended
        pass


def ask_where(rank: int, stack: int, *others: int) -> None:
    """Send a rank the signals that ask where it stands.  Its main thread gives its stack; one of C++ would
    take the signal and give none."""
    if LINUX:
        ctypes.CDLL(None).tgkill(rank, rank, int(stack))
    else:
        os.kill(rank, stack)
    for number in (*others, signal.SIGCONT):  # a rank that was stopped could not answer
        os.kill(rank, number)


def adopt_orphans() -> None:
    """Ask Linux to make this process the parent of every descendant whose own parent ends."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Process ids of this process' children, zombies among them; none where the system does not tell
    (macOS)."""
    processes = set()
    for file in glob.glob(f"/proc/{os.getpid()}/task/*/children"):
        with open(file) as ids:
            processes.update(map(int, ids.read().split()))
    return processes


def end_orphans(ranks: Collection[int] = ()) -> None:
    """Kill every child that is no rank nor in the process group of one, then the children it leaves behind,
    until there are none."""
    refused = set()  # another user's, by setuid
    while orphans := {child for child in children() - set(ranks) - refused if os.getpgid(child) not in ranks}:
        for orphan in orphans:
            try:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
            except PermissionError:
                refused.add(orphan)


def compiled_when_called(compiler: Callable) -> Callable:
    """`torch.compile` that leaves a function alone until it is called first, which is when the function would
    be compiled anyway.

    DeepSpeed decorates functions of its Muon optimizer, which it imports for every optimizer, and torch then
    imports all of its compiler: that takes as long as importing torch.
    """

    def compile_function(function=None, **options):
        if function is None:
            return functools.partial(compile_function, **options)
        if not isinstance(function, FunctionType):
            return compiler(function, **options)
        compiled = []

        @functools.wraps(function)
        def call(*values, **names):
            if not compiled:
                compiled.append(compiler(function, **options))
            return compiled[0](*values, **names)

        return call

    return compile_function


@contextmanager
def importing() -> Iterator[None]:
    """Around imports whose modules the ranks are to share.

    No garbage is looked for meanwhile: nearly nothing is garbage, and to look takes a third of the time.
    What was imported is then frozen, so that no rank looks there either, which would copy its memory.
    """
    gc.disable()
    torch = importlib.import_module("torch")
    compiler, torch.compile = torch.compile, compiled_when_called(torch.compile)
    try:
        yield
    finally:
        torch.compile = compiler
        gc.freeze()
        gc.enable()
        sys.stdout.flush()  # else every rank would write it again
        sys.stderr.flush()


def preload() -> None:
    """Import everything a job needs."""
    with importing():
        for name in REQUIRED:
            importlib.import_module(name)
        for name in USEFUL:
            with suppress(ImportError):  # another DeepSpeed version may lack it
                importlib.import_module(name)


def preload_more(names: Iterable[str]) -> dict[str, str]:
    """Import what a notebook asked for, like `transformers.Trainer`: modules, and what needs others to be
    looked up in them.

    Returns:
        {name: traceback} of those that failed.
    """
    failed = {}
    with importing():
        for name in names:
            try:
                pkgutil.resolve_name(name)
            except BaseException:
                failed[name] = traceback.format_exc()
    return failed


def threads(seconds: float = 1.0) -> int:
    """Threads of this process, whoever started them; a fork copies only one.  One that was joined may need a
    moment to be gone."""
    until = time.monotonic() + seconds
    while (
        number := len(os.listdir("/proc/self/task")) if LINUX else threading.active_count()
    ) > 1 and time.monotonic() < until:
        time.sleep(0.005)
    return number


def receive(control: socket.socket) -> tuple[dict | None, list[int]]:
    """One message of the kernel: a JSON object and the file descriptors sent along.  None at end of file."""
    header, descriptors, _, _ = socket.recv_fds(control, 8, 253, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    if not header:
        return None, []
    while len(header) < 8:
        header += control.recv(8 - len(header))
    (size,) = struct.unpack("!Q", header)
    body = bytearray()
    while len(body) < size:
        part = control.recv(size - len(body))
        if not part:
            return None, descriptors
        body += part
    return json.loads(body), descriptors


def send(control: socket.socket, **message: object) -> None:
    """One message to the kernel.  A kernel that has gone is no error here: the life pipe says so."""
    body = json.dumps(message).encode()
    try:
        control.sendall(struct.pack("!Q", len(body)) + body)
    except OSError:
        pass


def enter(namespaces: Iterable[int]) -> None:
    """Move this process, which must have one thread, into Linux's namespaces, given as descriptors: the
    user's first, which rules the others."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in namespaces:
        if libc.setns(namespace, 0):
            raise OSError(
                ctypes.get_errno(), f"a machine cannot be entered: {os.strerror(ctypes.get_errno())}"
            )


def become_rank(
    rank: int, message: dict, pipes: Sequence[int], parent: int, unwanted: Iterable[int], doors: Iterable[int]
) -> NoReturn:
    """In the forked child: leave the server behind, enter a machine where there is one, take over this rank's
    pipes, and run `helpers.tools.launch.rank`.  Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)  # a group of its own: whatever the rank starts is stopped with it
        enter(doors)
        die_with_parent()
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
        from helpers.tools.launch.rank import run

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


def ended_children() -> Iterator[tuple[int, int]]:
    """Every child that has ended and was not waited for, a rank or an orphan, with its status."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        yield child, status


class Server:
    """Forks ranks on request, reports how each ended, and kills what is left."""

    def __init__(self, control: socket.socket, life: int) -> None:
        self.control, self.life = control, life
        self.children = {}  # process id -> rank
        self.job = None  # the message that asked for them
        # a signal writes its number there: a child has ended, or this process is to end
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def fork(self, message: dict, descriptors: list[int]) -> None:
        """Fork one child per rank.

        `descriptors` are the payload, the socket that listens, three pipes for each rank, and the namespaces
        of machines and what else ranks keep.  Every child keeps its own pipes and what it is told to keep.
        """
        ranks, parent, self.job = message["ranks"], os.getpid(), message
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
        send(self.control, kind="started", processes={rank: child for child, rank in self.children.items()})

    def reap(self) -> None:
        """Tell the kernel of every rank that has ended since the last look, and end what it has started."""
        for child, status in ended_children():
            if child in self.children:
                at, rank = time.monotonic(), self.children.pop(child)
                kill_group(child)
                end_orphans(self.children)
                send(self.control, kind="ended", rank=rank, status=os.waitstatus_to_exitcode(status), at=at)

    def stop(self) -> None:
        """Kill every rank and what it started, and wait until they are gone."""
        for child in self.children:
            kill_group(child)
            os.kill(child, signal.SIGKILL)  # it may not have made its group yet
        for child in list(self.children):
            os.waitpid(child, 0)
            del self.children[child]
        end_orphans()

    def close(self) -> None:
        """The kernel has gone: end the ranks, and remove what they have left, which the kernel would have
        done."""
        self.stop()
        if self.job and os.path.isdir(self.job["folder"]):
            sys.path[:] = self.job["path"]
            from helpers.tools.launch import leftovers

            leftovers.remove(leftovers.Path(self.job["folder"]))

    def answer(self, message: dict, descriptors: list[int]) -> None:
        """Do what the kernel asks for."""
        if message["kind"] == "fork":
            self.fork(message, descriptors)
        elif message["kind"] == "preload":
            sys.path[:] = message["path"]
            failed = preload_more(message["names"])
            send(self.control, kind="preloaded", failed=failed, threads=threads())
        elif message["kind"] == "stacks":
            for child in self.children:
                ask_where(child, *message["signals"])
        elif message["kind"] == "stop":
            self.stop()
            send(self.control, kind="stopped")

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


def leave_when_closed(life: int, finished: int) -> None:
    """Thread of the warm-up: leave at once when the kernel does, though an import is under way."""
    while True:
        ready, _, _ = select.select([life, finished], [], [])
        if life in ready:
            os._exit(0)
        if finished in ready:
            return


def main() -> None:
    adopt_orphans()
    control = socket.socket(fileno=int(sys.argv[1]))
    life, with_parent, idle = int(sys.argv[2]), sys.argv[3] == "1", float(sys.argv[4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if with_parent:
        die_with_parent(signal.SIGTERM)  # not SIGKILL: what the ranks have started must be stopped first
    finished_read, finished_write = os.pipe()
    watcher = threading.Thread(target=leave_when_closed, args=(life, finished_read))
    watcher.start()
    started = time.perf_counter()
    try:
        preload()
    except BaseException:
        send(control, kind="failed", reason=traceback.format_exc())
        os._exit(1)
    os.write(finished_write, b".")
    watcher.join()
    os.close(finished_read)
    os.close(finished_write)
    server = Server(control, life)
    send(control, kind="ready", seconds=time.perf_counter() - started, threads=threads())
    try:
        server.serve(idle)
    finally:
        server.close()


if __name__ == "__main__":
    main()
