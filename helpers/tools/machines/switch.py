"""The process that holds a `Machines`: makes its namespaces, its cards and the switch between them, and obeys
orders while they stand.

It runs without torch, as a module of its own, and starts in some 50 ms.  Its descriptors and the ranks hold
the namespaces, and these hold the devices: no file is left, not even `/etc/hosts`, which lies in a file
system of its own.  The kernel holds the only write end of the *life pipe*; this process ends when that does.

An order is one datagram, a JSON object with a socket for the answer beside it.  The kernel and the ranks
share the socket of orders.  Ranks run a learner's code, so any datagram may come: one that is no order is
refused, and the machines go on.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from .netlink import BURST, Netlink

NEW_USER, NEW_NETWORK, NEW_NAME, NEW_MOUNTS = 0x10000000, 0x40000000, 0x04000000, 0x00020000
BIND, DETACH = 0x1000, 2  # of `mount` and `umount2`
CARD, SWITCH = "eth0", "switch"
# seconds without a frame after which a cable counts as silent: an acknowledgement may come 0.2 s late
SILENCE = 0.25
MOST_DESCRIPTORS = 253  # beside one message
LONGEST = 4096  # bytes of an order
# Below /proc/sys/net/ipv4, of each machine.  These cables lose nothing, but on a busy machine frames overtake
# each other between its processors.  Without selective acknowledgements and with Linux's highest bound on
# reordering TCP sends again, which cards would count, only what was not answered in time (at least 0.2 s).
SEND_ONCE = {"tcp_sack": 0, "tcp_reordering": 300}

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: bytes | int | None) -> None:
    """Call a function of the C library; an OSError where it fails."""
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def name_of(machine: int) -> str:
    return f"machine{machine}"


def address_of(machine: int) -> str:
    return f"10.77.0.{machine + 1}"


def doors_to(machine: int) -> list[int]:
    """Where, in `Switch.doors`, the namespaces lie that make one machine."""
    return [0, 1, 2 + 2 * machine, 3 + 2 * machine]


def open_namespace(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def name_hosts(count: int) -> None:
    """Let every machine know the others by name, in a view of the file system that only the machines have."""
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None)
    try:
        with open("/tmp/hosts", "w") as hosts:
            print("127.0.0.1 localhost", file=hosts)
            for machine in range(count):
                print(f"{address_of(machine)} {name_of(machine)}", file=hosts)
                # torch asks for the name of an IPv4 address in IPv6's form
                print(f"::ffff:{address_of(machine)} {name_of(machine)}", file=hosts)
        call("mount", b"/tmp/hosts", b"/etc/hosts", None, BIND, None)
    finally:
        call("umount2", b"/tmp", DETACH)


class Switch:
    """The machines; `rate` is what each card may send, in bytes per second, or None."""

    def __init__(self, count: int, rate: int | None) -> None:
        self.rate, self.plugged = rate, [True] * count
        self.waiting, self.expected = [], 0  # who asked for silent cables, and how many of them must
        call("unshare", NEW_NETWORK | NEW_MOUNTS)
        self.user, self.home = open_namespace("user"), open_namespace("net")
        with suppress(OSError):  # a container may forbid mounts; addresses serve as well
            name_hosts(count)
        self.mounts = open_namespace("mnt")
        self.route = Netlink()
        self.route.add_bridge(SWITCH)
        self.route.set_up(SWITCH)
        self.machines = [self.add(machine) for machine in range(count)]

    def add(self, machine: int) -> tuple[int, int, Netlink]:
        """One machine: (its network namespace, that of its name, its netlink)."""
        call("unshare", NEW_NETWORK | NEW_NAME)
        socket.sethostname(name_of(machine))
        network, name, inside = open_namespace("net"), open_namespace("uts"), Netlink()
        port = f"port{machine}"
        self.route.add_pair(port, CARD, network)
        self.route.plug_into(port, SWITCH)
        self.route.set_up(port)
        inside.set_up("lo")
        inside.add_address(CARD, address_of(machine))
        inside.set_up(CARD)
        with suppress(OSError):  # a container may forbid to write there
            for setting, value in SEND_ONCE.items():
                with open(f"/proc/sys/net/ipv4/{setting}", "w") as file:
                    file.write(str(value))
        if self.rate:
            inside.limit(CARD, self.rate)
        call("setns", self.home, NEW_NETWORK)
        return network, name, inside

    def counters(self) -> list[tuple[int, ...]]:
        """Of each card: bytes sent and received, frames sent and received."""
        return [inside.counters(CARD) for _, _, inside in self.machines]

    def listen(self, machine: int) -> socket.socket:
        """A socket on a machine's card, where the ranks of a new job meet."""
        call("setns", self.machines[machine][0], NEW_NETWORK)
        try:
            return socket.create_server((address_of(machine), 0), backlog=128)
        finally:
            call("setns", self.home, NEW_NETWORK)

    def doors(self) -> list[int]:
        """Descriptors of the namespaces common to all machines, then of those of each."""
        of_each = [door for network, name, _ in self.machines for door in (network, name)]
        return [self.user, self.mounts, *of_each]

    def obey(self, order: dict, answer: socket.socket) -> None:
        """Carry out one order and answer it; `count` is answered when as many have asked as it says, and the
        cables are silent.  A ValueError says that it is no order, an OSError that the system refuses it."""
        kind = order.get("order")
        if kind in ("job", "unplug", "plug"):
            machine = number_in(order, "machine", 0, len(self.machines) - 1)
        if kind == "count":
            self.expected, self.seen = number_in(order, "of", 1, MOST_DESCRIPTORS), None
            # those that can be read have lost the process that waited
            here = [waits for waits in self.waiting if not select.select([waits], [], [], 0)[0]]
            self.waiting = [*here, answer]
        elif kind == "look":
            self.tell(answer)
        elif kind == "job":
            with self.listen(machine) as listener:
                self.tell(answer, [listener.fileno(), *self.doors()])
        elif kind in ("unplug", "plug"):
            self.plugged[machine] = kind == "plug"
            self.route.set_up(f"port{machine}", self.plugged[machine])
            self.tell(answer)
        else:
            raise ValueError(f"{kind!r:.100} is no order")

    def tell(self, answer: socket.socket, descriptors: Iterable[int] = ()) -> None:
        unplugged = [machine for machine, plugged in enumerate(self.plugged) if not plugged]
        paths = [f"/proc/{os.getpid()}/fd/{door}" for door in self.doors()]
        each = [[paths[place] for place in doors_to(machine)] for machine in range(len(self.machines))]
        content = {"cable": self.counters(), "unplugged": unplugged, "namespaces": each}
        send(answer, content, descriptors)

    def counting(self) -> bool:
        return bool(self.waiting) and len(self.waiting) == self.expected

    def listen_to_the_cables(self) -> None:
        """Answer all that wait for silence, with the same numbers, once there was some; a slow cable is
        silent while it sends one burst."""
        now, counters = time.monotonic(), self.counters()
        if counters != self.seen:
            self.seen, self.since = counters, now
        elif now - self.since > SILENCE + (2 * BURST / self.rate if self.rate else 0):
            for answer in self.waiting:
                self.tell(answer)
            self.waiting = []

    def serve(self, orders: socket.socket, life: int) -> None:
        """Until the kernel goes."""
        ready = []
        while life not in ready:
            if orders in ready:
                self.take(orders)
            if self.counting():
                self.listen_to_the_cables()
            ready, _, _ = select.select([orders, life], [], [], 0.02 if self.counting() else None)

    def take(self, orders: socket.socket) -> None:
        """Take one datagram and obey it, or refuse it."""
        body, descriptors, _, _ = socket.recv_fds(orders, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:  # nobody waits for an answer
            return
        try:
            answer = socket.socket(fileno=descriptors[0])
        except OSError:  # it is no socket
            os.close(descriptors[0])
            return
        try:
            order = json.loads(body)
            if not isinstance(order, dict):
                raise ValueError("an order is a JSON object")
            self.obey(order, answer)
        except (ValueError, OSError, RecursionError) as error:
            send(answer, {"refused": str(error)})


def number_in(order: dict, name: str, least: int, most: int) -> int:
    """A number of an order."""
    number = order.get(name)
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")
    return number


def send(answer: socket.socket, content: dict, descriptors: Iterable[int] = ()) -> None:
    """Answer an order, without waiting for a process that does not read or has gone."""
    with answer, suppress(OSError):
        socket.send_fds(answer, [json.dumps(content).encode()], list(descriptors), socket.MSG_DONTWAIT)


def main() -> None:
    """Arguments: descriptors of the socket to the kernel, of orders and of the life pipe; machines; bytes per
    second of a card, 0 for no limit."""
    hello, orders, life, count, rate = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel, orders = socket.socket(fileno=hello), socket.socket(fileno=orders)
    step = "user"
    with kernel:
        try:
            call("unshare", NEW_USER)
            kernel.send(b"{}")
            if not kernel.recv(1):  # the kernel says who is who in it
                return
            step = "network"
            switch = Switch(count, rate or None)
        except OSError as error:
            kernel.send(json.dumps({"step": step, "words": str(error)}).encode())
            return
        kernel.send(b"{}")
    switch.serve(orders, life)


if __name__ == "__main__":
    main()
