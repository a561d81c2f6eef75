"""`Machines`: the notebook's end of the process in `helpers.tools.machines.switch`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..launcher.failures import LaunchError
from ..launcher.forked.processes import LINUX
from ..launcher.progress import Progress
from ..place import NAME, ROOT
from ..whole import shown, whole
from .allowed import LINUX_ONLY, explain, stay_who_we_are
from .login import entering
from .netlink import BURST
from .network_cards import Card, Counting, bytes_per_second
from .placement import ORDERS, Placement
from .switch import MOST_DESCRIPTORS

if TYPE_CHECKING:
    from .daemons import Daemons

MOST_MACHINES = 16
MOST_RANKS = 64  # as `launch` takes
PATIENCE = 30.0  # seconds in which machines must be up; they take 0.1


class Machines:
    """Makes machines of this one, without root.

    Each has a name, a network card whose bytes Linux counts, and a cable to a switch between them.

        with Machines(2, bandwidth="20 Mbit") as machines:
            launch(function, ranks=4, on=machines)  # ranks 0 and 1 on machine 0, 2 and 3 on machine 1
            print(machines.cable())

    They share this machine's file system, processors and memory.  They reach no other network, and end with
    the block, or with the notebook's kernel.  A function that ranks run may use `machines` too.

    Args:
        count: how many, 1 to 16.
        bandwidth: what each card may send per second, as "20 Mbit" or "1 Gbit"; by default there is no limit.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        LaunchError: when the block is entered and this system does not allow it; the message says how to.
    """

    BURST = BURST  # bytes that a card with a bandwidth may send at once, saved up while it was idle

    def __init__(self, count: int = 2, bandwidth: str | None = None) -> None:
        self.count = whole(count, "the number of machines", 1, MOST_MACHINES)
        self.bandwidth, self.rate = bandwidth, bytes_per_second(bandwidth)
        self.__setstate__({})

    def __getstate__(self):
        """What a rank needs; the rest belongs to the process that made the machines."""
        return {"count": self.count, "bandwidth": self.bandwidth, "rate": self.rate}

    def __setstate__(self, state):
        self.__dict__ |= state
        self.life = self.process = self.orders = self.owner = None
        self.programs: list[subprocess.Popen] = []  # that `start` has started
        self.daemons: list[Daemons] = []  # that run on these machines
        if state and ORDERS in os.environ:  # in a rank
            self.orders = socket.socket(fileno=os.dup(int(os.environ[ORDERS])))

    def __enter__(self):
        if not LINUX:
            raise LaunchError(LINUX_ONLY)
        if self.orders:
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
        life, holder = os.pipe()
        self.life, self.owner = os.fdopen(holder, "wb"), os.getpid()  # an object closes it whatever happens
        log = os.fdopen(os.memfd_create("log"), "w+", errors="replace")
        with hello, its_hello, its_orders, os.fdopen(life, "rb"), log:
            hello.settimeout(PATIENCE)
            descriptors = [its_hello.fileno(), its_orders.fileno(), life]
            numbers = map(str, [*descriptors, self.count, self.rate or 0])
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", f"{NAME}.machines.switch", *numbers],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=descriptors, start_new_session=True,
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
            words = f"the machines were not up after {PATIENCE:g} s: try again when this machine is less busy"
            raise LaunchError(words) from None
        if not body:
            log.seek(0)
            raise LaunchError(f"the machines could not be started:\n{log.read()[-2000:]}")
        if refusal := json.loads(body):
            raise LaunchError(explain(refusal["step"], refusal["words"]))

    def close(self) -> None:
        """End the machines, and the daemons and programs that run there.  Ranks that are still in them keep
        what they use until they end.  In a forked child of the process that made them nothing ends."""
        with Progress():
            if self.owner == os.getpid():
                for daemons in reversed(self.daemons):
                    daemons.close()
                for program in filter(None, [*self.programs, self.process]):
                    with suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)  # each has a session of its own
                    program.wait()
            for opened in filter(None, (self.life, self.orders)):
                opened.close()
            self.__setstate__({})

    def __exit__(self, *problem):
        self.close()

    def __repr__(self):
        return f"Machines({self.count}, bandwidth={self.bandwidth!r})"

    def ask(self, order: str, **more: int) -> tuple[dict, list[int]]:
        """Send an order to the process that holds the machines: (its answer, descriptors that came along)."""
        if not self.orders:
            raise ValueError(
                "these machines are not up: use them inside `with Machines(2) as machines`, and "
                "in ranks launched with on=machines"
            )
        mine, theirs = socket.socketpair()
        with mine:
            try:
                with theirs:
                    body = json.dumps({"order": order, **more}).encode()
                    socket.send_fds(self.orders, [body], [theirs.fileno()])
                body, doors, _, _ = socket.recv_fds(mine, 1 << 16, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                body = b""
        if not body:
            raise LaunchError("the machines have ended: start them again")
        answer = json.loads(body)
        if "refused" in answer:
            raise LaunchError(f"the machines refused an order: {answer['refused']}")
        return answer, doors

    def numbered(self, machine: int) -> int:
        """The number of one of these machines, checked."""
        return whole(machine, "the number of a machine", 0, self.count - 1)

    def place(self, ranks: int | Sequence[int]) -> Placement:
        """Where ranks run, for `launch(..., on=...)`: so many, in equal blocks of neighbours, as launchers
        place them; or each on the machine with its number, [0, 1, 0, 1]."""
        try:
            places = list(ranks)
        except TypeError:  # a number
            ranks = whole(ranks, "the number of ranks", 1, MOST_RANKS)
            each = -(-ranks // self.count)
            places = [rank // each for rank in range(ranks)]
        if not places:
            raise ValueError("place needs at least one rank: 4, or [0, 0, 1, 1] with the machine of each")
        return Placement(self, [self.numbered(machine) for machine in places])

    def start(self, machine: int, command: Sequence[str], **options: object) -> subprocess.Popen:
        """Start a program on a machine, from where the machines were made: `subprocess.Popen(command,
        **options)`.  It ends with the machines, and so does all that it has started in its session."""
        machine = self.numbered(machine)
        if not isinstance(command, (list, tuple)) or not command:
            raise TypeError(f'command must be a list of words, as ["hostname"], not {shown(command)}')
        words = entering(signal.SIGKILL, self.namespaces(machine), command)
        self.programs.append(subprocess.Popen(words, start_new_session=True, **options))
        return self.programs[-1]

    def namespaces(self, machine: int) -> list[str]:
        """Paths of the namespaces that make a machine: of the user, mounts, the network and the name."""
        return self.ask("look")[0]["namespaces"][machine]

    def cable(self) -> list[Card]:
        """What has passed so far: a `Card` for each machine."""
        return [Card(*numbers) for numbers in self.ask("look")[0]["cable"]]

    def counting(self) -> Counting:
        """What passes meanwhile, with silence before and after: `with machines.counting() as cable: ...`,
        then `cable[0].sent`.  In ranks a collective: each waits for all, without a byte on the cable."""
        return Counting(self.silent)

    def silent(self) -> list[Card]:
        """Cards once all ranks have asked, and nothing more is on its way."""
        ranks = int(os.environ.get("WORLD_SIZE", "1")) if ORDERS in os.environ else 1
        return [Card(*numbers) for numbers in self.ask("count", of=ranks)[0]["cable"]]

    def unplug(self, machine: int) -> None:
        """Pull a machine's cable out of the switch.

        Nobody is told: what is sent to it or by it is lost.  Linux gives a connection up after some 15
        minutes; a collective waits until gloo's own timeout (`deepspeed.init_distributed(timeout=...)`, by
        default 10 minutes; 30 in the groups that DeepSpeed makes) or `launch`'s.  Plugged in, it goes on.
        """
        self.ask("unplug", machine=self.numbered(machine))

    def plug(self, machine: int) -> None:
        """Put a machine's cable back."""
        self.ask("plug", machine=self.numbered(machine))

    @property
    def unplugged(self) -> list[int]:
        """Numbers of the machines whose cable is pulled."""
        return self.ask("look")[0]["unplugged"]

    def remarks(self) -> list[str]:
        """What to say of the machines when a job on them has failed."""
        try:
            return [f"  machine {machine} is unplugged" for machine in self.unplugged]
        except LaunchError as error:
            return [f"  {error}"]


def problem() -> str | None:
    """Why there can be no machines here, in one line; None where there can."""
    try:
        with Machines(1):
            return None
    except LaunchError as error:
        return str(error)
