"""The process that every rank is forked from.  Started by `helpers.launchers`, one per kernel and device.

It imports torch and DeepSpeed once, freezes the garbage collector, and then forks ranks in milliseconds.  It runs as a
plain script and imports nothing from `helpers`, so that an edited helper counts in the very next launch.

Nobody outlives the kernel: the kernel holds the only write end of the *life pipe*, and this process ends when that pipe does;
ranks are killed by this process, or by Linux (PR_SET_PDEATHSIG) should this process die first.
"""

import ctypes
import gc
import importlib
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

# What a DeepSpeed job imports between launch and its first step; found with `python -X importtime`.
REQUIRED = ("torch", "deepspeed", "cloudpickle")
USEFUL = (
    "torch._dynamo", "torch._inductor.compile_fx", "torch.profiler", "torch.distributed.tensor", "torch.utils.cpp_extension",
    "setuptools.command.build_ext", "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.pipe.engine", "deepspeed.module_inject.auto_ep_config", "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops", "deepspeed.comm.mori",
)  # fmt: skip
PR_SET_PDEATHSIG = 1
LINUX = sys.platform.startswith("linux")


def die_with_parent(libc):
    """Ask Linux to kill this process when the thread that started it ends."""
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def preload():
    """Import everything a job needs, with one thread left at the end (a fork copies only the calling thread)."""
    for name in REQUIRED:
        importlib.import_module(name)
    for name in USEFUL:
        try:
            importlib.import_module(name)
        except ImportError:  # another DeepSpeed version may lack it; a rank that needs it imports it itself
            pass
    gc.collect()
    gc.freeze()


def receive(control):
    """One message of the kernel: a JSON object and the file descriptors sent along.  None at end of file."""
    header, descriptors, _, _ = socket.recv_fds(control, 8, 253)
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


def send(control, **message):
    """One message to the kernel.  A kernel that has gone is no error here: the life pipe says so."""
    body = json.dumps(message).encode()
    try:
        control.sendall(struct.pack("!Q", len(body)) + body)
    except OSError:
        pass


def become_rank(rank, message, pipes, parent, libc):
    """In the forked child: leave the server behind, take over this rank's pipes, and run `helpers.ranks`.  Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)  # a group of its own: whatever the rank starts is stopped with it
        die_with_parent(libc)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel alone decides what an interrupt means
        payload, report, output, stacks = pipes
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(output)
        os.environ.clear()
        os.environ.update(message["environment"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.path[:] = message["path"]
        sys.argv[:] = [message["argv0"]]
        os.chdir(message["directory"])
        from helpers import ranks

        ranks.run(payload, report, stacks, message["listener"] if rank == 0 else None)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Server:
    """Forks ranks on request, reports how each ended, and kills what is left."""

    def __init__(self, control, life):
        self.control, self.life = control, life
        self.children = {}  # process id -> rank
        self.libc = ctypes.CDLL(None, use_errno=True) if LINUX else None
        self.wake_read, self.wake_write = os.pipe()  # written to whenever a child ends
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def fork(self, message, descriptors):
        """Fork one child per rank; every child keeps its own four descriptors and (rank 0) the listening socket."""
        ranks, parent = message["ranks"], os.getpid()
        payload = descriptors[0]
        listener = descriptors[1]
        message["listener"] = listener
        own = [(payload, *descriptors[2 + 3 * rank : 5 + 3 * rank]) for rank in range(ranks)]
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                keep = {*own[rank], *((listener,) if rank == 0 else ())}
                for descriptor in {*descriptors, self.control.fileno(), self.life, self.wake_read, self.wake_write} - keep:
                    os.close(descriptor)
                become_rank(rank, message, own[rank], parent, self.libc)
            self.children[child] = rank
        for descriptor in descriptors:
            os.close(descriptor)
        send(self.control, kind="started", processes={rank: child for child, rank in self.children.items()})

    def reap(self):
        """Tell the kernel of every rank that has ended since the last look."""
        for child in list(self.children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                rank = self.children.pop(child)
                self.stop_group(child)
                send(self.control, kind="ended", rank=rank, status=os.waitstatus_to_exitcode(status))

    def stop_group(self, child, number=signal.SIGKILL):
        for kill in (os.killpg, os.kill):  # the group, and the child itself should it not have made its group yet
            try:
                kill(child, number)
            except (ProcessLookupError, PermissionError):
                pass

    def stop(self):
        """Kill every rank and what it started, and wait until they are gone."""
        for child in self.children:
            self.stop_group(child)
        for child in list(self.children):
            os.waitpid(child, 0)
            del self.children[child]

    def serve(self):
        poll = select.poll()
        for descriptor in (self.control.fileno(), self.life, self.wake_read):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self.life in ready:
                return
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
                self.reap()
            if self.control.fileno() in ready:
                message, descriptors = receive(self.control)
                if message is None:
                    return
                if message["kind"] == "fork":
                    self.fork(message, descriptors)
                elif message["kind"] == "stacks":
                    for child in self.children:
                        os.kill(child, signal.SIGUSR1)
                elif message["kind"] == "stop":
                    self.stop()
                    send(self.control, kind="stopped", token=message["token"])


def leave_when_closed(life, finished):
    """Thread of the warm-up: leave at once when the kernel does, though an import is under way."""
    while True:
        ready, _, _ = select.select([life, finished], [], [])
        if life in ready:
            os._exit(0)
        if finished in ready:
            return


def main():
    control = socket.socket(fileno=int(sys.argv[1]))
    life, with_parent = int(sys.argv[2]), sys.argv[3] == "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(control, life)
    if with_parent and server.libc:
        die_with_parent(server.libc)
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
    send(control, kind="ready", seconds=time.perf_counter() - started)
    try:
        server.serve()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
