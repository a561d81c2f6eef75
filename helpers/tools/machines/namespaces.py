"""`Machines`: the notebook's end of the process in `helpers.tools.machines.switch`, and where ranks are
placed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from helpers.paths import ROOT
from helpers.tools.launch.failures import LaunchError
from helpers.tools.launch.forked.forked_job import Doors
from helpers.tools.launch.progress import Progress
from helpers.tools.machines.allowed import LINUX_ONLY, explain, is_linux, stay_who_we_are
from helpers.tools.machines.netlink import BURST
from helpers.tools.machines.switch import CARD, MOST_DESCRIPTORS, address_of, doors_to

if TYPE_CHECKING:
    from contextlib import ExitStack

MOST_MACHINES = 16
PATIENCE = 30.0  # seconds in which machines must be up; they take 0.1
UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}
ORDERS = "MACHINES_ORDERS"  # the variable that tells a rank the descriptor of the socket of orders


@dataclass(frozen=True)
class Card:
    """What the kernel has counted at one machine's network card; differences are what passed meanwhile.

    A frame here holds up to 64 KiB behind one header of 66 bytes; a physical cable mostly cuts it into frames
    of 1,514 bytes with 66 each, 4.6 % of what they carry.

    Attributes:
        sent, received: bytes, headers included.
        frames_sent, frames_received: how many.
    """

    sent: int
    received: int
    frames_sent: int
    frames_received: int

    @classmethod
    def counted(cls, frames_received: int, frames_sent: int, received: int, sent: int) -> Card:
        return cls(sent, received, frames_sent, frames_received)

    def __sub__(self, earlier):
        return Card(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))


def bytes_per_second(bandwidth: str | None) -> int | None:
    """Of words like "20 Mbit"; None stays None: as fast as this machine copies memory."""
    if bandwidth is None:
        return None
    found = (
        re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG])bit(?:/s)?", bandwidth) if isinstance(bandwidth, str) else None
    )
    rate = int(float(found[1]) * UNITS[found[2]] / 8) if found else 0
    if not rate:
        raise ValueError(
            'bandwidth must be in bits per second, as "20 Mbit" or "1.5 Gbit", or None for no '
            f"limit; not {bandwidth!r}"
        )
    return rate


def ask(orders: socket.socket, **order: object) -> tuple[dict, list[int]]:
    """Send an order with a socket for its answer: (the answer, descriptors that came along)."""
    mine, theirs = socket.socketpair()
    with mine:
        with theirs:
            socket.send_fds(orders, [json.dumps(order).encode()], [theirs.fileno()])
        body, descriptors, _, _ = socket.recv_fds(mine, 1 << 16, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if not body:
        raise LaunchError("the machines have ended: start them again")
    return json.loads(body), descriptors


class Machines:
    """Machines of one's own, each with a name, a network card whose bytes Linux counts, and a cable to a
    switch between them; without root.

        with Machines(2, bandwidth="20 Mbit") as machines:
            launch(function, ranks=4, place=machines)  # ranks 0 and 1 on machine 0, 2 and 3 on machine 1
            print(machines.cable())

    They have the file system, processors and memory of this machine in common, no way to any other network,
    and end with the block, or
    with the notebook's kernel.  A function that ranks run may use `machines` too.

    Args:
        count: how many, 1 to 16.
        bandwidth: what each card may send per second, as "20 Mbit" or "1 Gbit"; by default there is no limit.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        LaunchError: when the block is entered and this system does not allow it; the message says how to.
    """

    BURST = BURST  # bytes that a card with a bandwidth may send at once, saved up while it was idle

    def __init__(self, count: int = 2, bandwidth: str | None = None) -> None:
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(
                f"the number of machines must be a whole number from 1 to {MOST_MACHINES}, not {count!r}"
            )
        if not 1 <= count <= MOST_MACHINES:
            raise ValueError(f"there can be 1 to {MOST_MACHINES} machines, not {count}")
        self.count, self.bandwidth, self.rate = count, bandwidth, bytes_per_second(bandwidth)
        self.orders = self.life = self.process = None
        self.programs = []

    def __enter__(self):
        if not is_linux():
            raise LaunchError(LINUX_ONLY)
        if self.process:
            raise ValueError("these machines are up already: make others with Machines(...)")
        try:
            with Progress():  # an interrupt waits: nothing may be left half made
                self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self):
        """Start the process that holds the machines, and wait until they stand."""
        hello, its_hello = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.orders, its_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life, end = os.pipe()
        self.life = os.fdopen(end, "wb")  # an object, which closes it whatever happens
        with (
            hello,
            its_hello,
            its_orders,
            os.fdopen(life, "rb"),
            os.fdopen(os.memfd_create("log"), "w+b") as log,
        ):
            hello.settimeout(PATIENCE)
            given = [its_hello.fileno(), its_orders.fileno(), life]
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "helpers.tools.machines.switch", *map(str, [*given, self.count, self.rate or 0])],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=given, start_new_session=True,
            )  # fmt: skip
            its_hello.close()
            self._hear(hello, log)
            try:
                stay_who_we_are(self.process.pid)
            except OSError as error:
                raise LaunchError(explain("user", str(error))) from None
            hello.send(b".")
            self._hear(hello, log)

    def _hear(self, hello, log):
        """One message of the process that starts: that it goes on, or what was refused."""
        try:
            body = hello.recv(4096)
        except TimeoutError:
            raise LaunchError(
                f"the machines were not up after {PATIENCE:g} s: try again when this machine is less busy"
            ) from None
        if not body:
            log.seek(0)
            raise LaunchError(
                f"the machines could not be started:\n{log.read().decode(errors='replace')[-2000:]}"
            )
        if refusal := json.loads(body):
            raise LaunchError(explain(refusal["step"], refusal["words"]))

    def close(self) -> None:
        """End the machines and the programs that `start` has started there.  Ranks that are still in them
        keep what they use until they end."""
        with Progress():
            while self.programs:
                end(self.programs.pop())
            for opened in (self.life, self.orders):
                if opened:
                    opened.close()
            if self.process:
                try:
                    self.process.wait(2)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self.orders = self.life = self.process = None

    def __exit__(self, *problem):
        self.close()

    def __repr__(self):
        return f"Machines({self.count}, bandwidth={self.bandwidth!r})"

    def __getstate__(self):
        """What a rank needs; the rest is this process' own."""
        return {"count": self.count, "bandwidth": self.bandwidth, "rate": self.rate}

    def __setstate__(self, state):
        self.__dict__ |= state | {"life": None, "process": None, "programs": []}
        descriptor = os.environ.get(ORDERS)
        self.orders = socket.socket(fileno=os.dup(int(descriptor))) if descriptor else None

    def _ask(self, order, **more):
        if not self.orders:
            raise ValueError(
                "these machines are not up: use them inside `with Machines(2) as machines`, and "
                "in ranks launched with place=machines"
            )
        try:
            return ask(self.orders, order=order, **more)
        except OSError:
            raise LaunchError("the machines have ended: start them again") from None

    def _check(self, machine):
        if machine not in range(self.count):
            raise ValueError(f"there is no machine {machine!r}: they are numbered from 0 to {self.count - 1}")

    def place(self, ranks: int | Sequence[int]) -> Placement:
        """Where ranks run, for `launch(..., place=...)`.

        Args:
            ranks: how many, in equal blocks of neighbours, as launchers place them; or for each rank the
                number of its machine: [0, 1, 0, 1].
        """
        if isinstance(ranks, int):
            each = -(-ranks // self.count)
            ranks = [rank // each for rank in range(ranks)]
        for machine in ranks:
            self._check(machine)
        return Placement(self, list(ranks))

    def start(self, machine: int, command: Sequence[str], **options: object) -> subprocess.Popen:
        """Start a program on a machine, in the current folder; `with` the machines it ends, and so does what
        it has started in its session.

        Args:
            machine: its number.
            command: list of words, as `subprocess.Popen` takes them.
            options: `subprocess.Popen`'s: env, stdout, ...

        Returns:
            The `subprocess.Popen`.
        """
        self._check(machine)
        _, doors = self._ask("doors")
        try:
            wanted = [doors[place] for place in doors_to(machine)]
            enter = (
                f"import sys; sys.path.insert(0, {str(ROOT)!r}); from helpers.tools.machines.entering "
                "import main; main()"
            )
            before = [sys.executable, "-S", "-P", "-c", enter, ",".join(map(str, wanted))]
            self.programs.append(
                subprocess.Popen([*before, *command], pass_fds=wanted, start_new_session=True, **options)
            )
        finally:
            for door in doors:
                os.close(door)
        return self.programs[-1]

    def cable(self) -> list[Card]:
        """What has passed so far: a `Card` for each machine."""
        return [Card.counted(*numbers) for numbers in self._ask("look")[0]["cable"]]

    def counting(self) -> Counting:
        """What passes meanwhile, with silence before and after: `with machines.counting() as cable: ...`,
        then `cable[0].sent`.

        In ranks a collective: each of them waits for all others there, without a byte on the cable.
        """
        return Counting(self)

    def unplug(self, machine: int) -> None:
        """Pull a machine's cable out of the switch.

        Nobody is told: what is sent to it or by it is lost, Linux gives a connection up after some 15
        minutes, and a collective waits until gloo's own timeout (`deepspeed.init_distributed(timeout=...)`,
        by default 10 minutes; 30 in the groups that DeepSpeed makes) or that of `launch`.  Plugged in again,
        it goes on.
        """
        self._check(machine)
        self._ask("unplug", machine=machine)

    def plug(self, machine: int) -> None:
        """Put a machine's cable back."""
        self._check(machine)
        self._ask("plug", machine=machine)

    @property
    def unplugged(self) -> list[int]:
        """Numbers of the machines whose cable is pulled."""
        return self._ask("look")[0]["unplugged"]

    def silent(self) -> list[Card]:
        """Cards once all ranks have asked, and nothing more is on its way."""
        ranks = int(os.environ.get("WORLD_SIZE", "1")) if ORDERS in os.environ else 1
        return [Card.counted(*numbers) for numbers in self._ask("count", of=ranks)[0]["cable"]]


def end(program: subprocess.Popen) -> None:
    """Kill a program and its session's process group."""
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    program.wait()


class Counting(list):
    """A `Card` for each machine, filled when the block is left."""

    def __init__(self, machines: Machines) -> None:
        super().__init__()
        self.machines = machines

    def __enter__(self):
        self.before = self.machines.silent()
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self[:] = [after - before for after, before in zip(self.machines.silent(), self.before)]


@dataclass(frozen=True)
class Placement:
    """Where each rank of a job runs.

    Attributes:
        machines: the `Machines`.
        of: list, for each rank the number of its machine.
    """

    machines: Machines
    of: list[int]

    def doors(self, opened: ExitStack) -> Doors:
        """For a new job: `Doors` to the machines, with a socket on the card of rank 0's.  Everything closes
        with `opened`, an ExitStack."""
        _, (listener, *namespaces) = self.machines._ask("job", machine=self.of[0])
        for namespace in namespaces:
            opened.callback(os.close, namespace)
        listener = opened.enter_context(socket.socket(fileno=listener))
        of = [doors_to(machine) for machine in self.of]
        return Doors(listener, of, [*namespaces, self.machines.orders.fileno()], {ORDERS: len(namespaces)})

    def variables(self) -> dict[str, str]:
        """Of all ranks: they meet at the card of rank 0's machine, and talk through their own."""
        cards = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), CARD)
        return {**cards, "MASTER_ADDR": address_of(self.of[0])}

    def variables_of(self, rank: int) -> dict[str, str]:
        """Of one rank, as `deepspeed` (CROSS_, LOCAL_) and `torchrun` (GROUP_RANK) set them; machines without
        a rank are not counted."""
        machine, used = self.of[rank], sorted(set(self.of))
        local = {
            "LOCAL_RANK": self.of[:rank].count(machine),
            "LOCAL_WORLD_SIZE": self.of.count(machine),
            "LOCAL_SIZE": self.of.count(machine),
        }
        node = {"GROUP_RANK": used.index(machine), "CROSS_RANK": used.index(machine), "CROSS_SIZE": len(used)}
        return {name: str(number) for name, number in {**local, **node}.items()}

    def remarks(self) -> list[str]:
        """What to say of the machines when a job has failed."""
        try:
            return [f"  machine {machine} is unplugged" for machine in self.machines.unplugged]
        except LaunchError as error:
            return [f"  {error}"]


def problem() -> str | None:
    """Why there can be no machines here, in one line; None where there can."""
    try:
        with Machines(1):
            return None
    except LaunchError as error:
        return str(error)
