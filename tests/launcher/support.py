"""Real processes, real faults.  After every test the next launch works and nothing is left but the idle
forkserver.

Whatever these tests start carries a mark in its environment, so that a process is found though it has lost
its parents.  Temporary
files and the cache of compiled extensions lie in folders of this session's own.
"""

import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import cloudpickle
import psutil
from helpers.course.exercises.in_ranks import crowding

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not import the tests

REPOSITORY = Path(__file__).parents[2]
MARK = f"LAUNCHER_TEST={uuid.uuid4()}"
SHARED = (
    "deepspeed",
    "torch",
    "nccl",
    "gloo",
    "psm_",
    "sem.",
)  # other programs of this user have shared memory too
PROMPT = 2.0  # seconds in which a fault must be told, or an orphan gone
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}  # 127.0.0.1, ::1, ::ffff:127.0.0.1
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
SLACK = 18.0  # seconds more, since two cores may have much other work; what hangs would take a minute

# Plays the notebook kernel: runs cells from stdin, interrupted only while one runs, and says of each that it
# has begun, and its answer.
KERNEL = """
import json, signal, sys
cells, space = sys.stdin, {"__name__": "__main__"}
signal.signal(signal.SIGINT, signal.SIG_IGN)
for cell in cells:
    left, errors = [json.loads(cell)], []
    while True:  # an interrupt may still come when the cell has ended, until it is ignored
        try:
            if left:
                source = left.pop()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                print("begun", flush=True)
                exec(compile(source, "cell", "exec"), space)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
        except BaseException as problem:
            errors.append([type(problem).__name__, str(problem)])
    print("answer", json.dumps([space.pop("value", None), errors[0] if errors else None]), flush=True)
"""


def eventually(condition, seconds=PROMPT + SLACK):
    """Whether a condition comes true in time."""
    until = time.monotonic() + seconds
    while not (reached := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(reached)


def running(processes):
    """Those that have not ended; a zombie has."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it is just ending
            pass
    return found


def marked(process):
    try:
        return MARK in Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False


def ours():
    """Every process that these tests have started and that still runs, whoever its parent is now."""
    children = psutil.Process().children(recursive=True)
    return running({*children, *(process for process in psutil.process_iter() if marked(process))})


def listening(processes):
    """Addresses on which processes accept TCP connections, as the kernel writes them."""
    found = set()
    for process in processes:
        try:
            found |= addresses_of(process.pid)
        except OSError:  # it is just ending
            pass
    return found


def addresses_of(pid):
    """The same of one process.  Sockets that listen come first in the kernel's tables, and the others, which
    are many, are not read."""
    own, found = set(), set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:  # closed since, as that of the listing itself
            pass
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            rows = (line.split() for line in itertools.islice(lines, 1, None))
            found |= {
                row[1]
                for row in itertools.takewhile(lambda row: row[3] == "0A", rows)
                if f"socket:[{row[9]}]" in own
            }
    return found


def command(process):
    """The beginning of its command line; nothing where it has just ended."""
    try:
        return " ".join(process.cmdline()[:3])
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def settled(processes):
    """Whether all that processes do is to wait, in two looks 0.2 s apart: they are where they were going."""
    for _ in range(2):
        time.sleep(0.2)
        if not all(waits(process) for process in processes):
            return False
    return True


def waits(process):
    """Whether its main thread does nothing, or it has ended."""
    try:
        return process.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def crowded(seconds, most=8):
    """A whole number of seconds, as many times longer as this machine has other work now, at most so many
    times."""
    return round(seconds * min(max(crowding(), 1), most))


def remains():
    """What a launch could leave behind, as plain data that can be compared."""
    processes = ours()
    return {
        "processes": sorted(filter(None, (command(process) for process in processes))),
        "ports": listening([psutil.Process(), *processes]),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith(SHARED)),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "extensions": sorted(str(path) for path in Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("*")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def remains_like(before, seconds=PROMPT + SLACK):
    """What remains, as soon as it is what remained before; else when the time is up.

    Shared memory that was there before and has gone is another test process's, which works beside this one.
    """
    until = time.monotonic() + seconds
    while True:
        found = remains()
        if set(found["shared memory"]) <= set(before["shared memory"]):
            found["shared memory"] = before["shared memory"]
        if found == before or time.monotonic() > until:
            return found
        time.sleep(0.02)


class Kernel:
    """A process that plays the notebook kernel.  `folder` is where its ranks say that they are ready."""

    def __init__(self, folder, directory=REPOSITORY, **environment):
        self.folder = Path(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=directory, env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
        self.lines, self.printed = queue.Queue(), []
        self.reader = threading.Thread(
            target=lambda: [self.lines.put(line) for line in self.process.stdout], daemon=True
        )
        self.reader.start()
        self.seen = set()

    def start(self, cell, seconds=60):
        """Begin a cell: from now on it can be interrupted."""
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        while (line := self.lines.get(timeout=seconds)) != "begun\n":
            self.printed.append(line)

    def answer(self, seconds=60):
        """The value that a cell left behind, and its error as [type, message], or None."""
        until = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(until - time.monotonic(), 0.001))
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
            self.printed.append(line)

    def run(self, cell, seconds=60):
        self.start(cell)
        value, error = self.answer(seconds)
        assert error is None, error
        return value

    def works(self):
        """Whether the next launch does what it should."""
        return self.run(
            "from helpers import launch\nvalue = list(launch(lambda: __import__('os').environ['RANK'], 2))"
        ) == ["0", "1"]

    def occupy(self, state, ranks=2, on=None):
        """Start ranks that sleep, wait in a barrier, or hold the interpreter's lock; each has also started a
        program."""
        for file in self.folder.glob("ready-*"):
            file.unlink()
        self.start(
            f"{STATES}\nlaunch(occupied, {ranks}, {{'state': {state!r}, 'folder': "
            f"{str(self.folder)!r}}}, on={on})"
        )

    def ready(self, ranks=2, seconds=60):
        return eventually(lambda: len(list(self.folder.glob("ready-*"))) == ranks, seconds)

    def processes(self):
        """This process and all that it has started."""
        return [self.process_itself(), *self.process_itself().children(recursive=True)]

    def process_itself(self):
        return psutil.Process(self.process.pid)

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reader.join(5)
        self.process.stdout.close()


class Notebook:
    """A real Jupyter kernel, reached through files: a free port that was chosen may be taken by a rank before
    it is bound.

    Context manager; ended by SIGKILL.
    """

    def __enter__(self):
        from jupyter_client import KernelManager

        self.sockets = tempfile.TemporaryDirectory(
            prefix="kernel-", dir="/tmp"
        )  # a socket's name must be short
        self.manager = KernelManager(transport="ipc", ip=f"{self.sockets.name}/kernel")
        self.manager.start_kernel(cwd=str(REPOSITORY))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def run(self, code):
        """Run a cell: its reply, and the messages that it published meanwhile."""
        messages = []
        reply = self.client.execute_interactive(code, timeout=60, output_hook=messages.append)["content"]
        return reply, messages

    def processes(self):
        """What the kernel has started."""
        return psutil.Process(self.manager.provisioner.pid).children(recursive=True)

    def __exit__(self, *_):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy(linger=0)
        self.sockets.cleanup()


STATES = """
import ctypes, os, subprocess, time
from pathlib import Path
from helpers import DeepSpeedCommand, launch

def occupied(state, folder):
    import deepspeed
    rank = os.environ["RANK"]
    if state == "barrier":
        deepspeed.init_distributed()
    subprocess.Popen(["sleep", "60"], start_new_session=rank == "0")
    Path(folder, "ready-" + rank).touch()
    if state == "gil":
        ctypes.PyDLL(None).sleep(60)
    elif state == "barrier" and rank != "0":
        deepspeed.comm.barrier()
    else:
        time.sleep(60)
"""


def all_reduced(number):
    """In a rank: the sum of a number over all ranks."""
    import deepspeed
    import torch

    deepspeed.init_distributed()
    total = torch.tensor(number)
    torch.distributed.all_reduce(total)
    return total.item()


def start_in_a_session_of_its_own():
    """Start a program, and one that starts another and ends: process ids of two that run on."""
    first = subprocess.Popen(["sleep", "60"], start_new_session=True)
    second = subprocess.run(
        ["sh", "-c", "setsid sleep 60 >/dev/null & echo $!"], stdout=subprocess.PIPE, timeout=60
    )
    return first.pid, int(second.stdout)


def listening_addresses():
    """In a rank, in the middle of a job: the local addresses of its own listening sockets, as the kernel
    writes them."""
    import deepspeed
    import torch

    deepspeed.init_distributed()
    torch.distributed.all_reduce(torch.ones(8))
    torch.distributed.new_group([0, 1])
    found = [address.partition(":")[0] for address in addresses_of("self")]
    torch.distributed.barrier()  # nobody leaves before all have looked
    return found


def interface_of_the_network():
    """A network interface of this machine that is not loopback and has an address."""
    addresses = psutil.net_if_addrs()
    inet = {
        name: [address.address for address in addresses[name] if address.family == socket.AF_INET]
        for name in addresses
    }
    return next((name for name, found in inet.items() if found and not found[0].startswith("127.")), None)
