"""Network devices by the kernel's own messages (netlink): what `ip` and `tc` would do where they are missing.

Numbers are those of Linux's <linux/rtnetlink.h>, <linux/if_link.h> and <linux/pkt_sched.h>.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

REQUEST, ACKNOWLEDGE, EXCLUSIVE, CREATE = 1, 4, 0x200, 0x400  # flags of a message
ERROR, NEW_LINK, GET_LINK, NEW_ADDRESS, NEW_QDISC = 2, 16, 18, 20, 36  # its type
NAME, MASTER, INFO, STATISTICS, FAMILIES, NAMESPACE = 3, 10, 18, 23, 26, 28  # attributes of a link
KIND, DATA, PEER, SNOOPING = 1, 2, 1, 23  # within INFO; within DATA of a pair, and of a bridge
UP = 1
AT_THE_ROOT = 0xFFFFFFFF  # of a device's queues
NESTED = 0x8000
ETHERNET = 1
# bytes: more than the 64 KiB that Linux hands to a card at once, which would otherwise be sent as 46 frames
BURST = 70_000


def attribute(kind: int, body: bytes | int) -> bytes:
    """One attribute: length, kind, body, filled up to four bytes."""
    body = body if isinstance(body, bytes) else struct.pack("=I", body)
    return struct.pack("=HH", 4 + len(body), kind) + body + bytes(-len(body) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(attributes))


def attributes(body: bytes) -> dict[int, bytes]:
    """{kind: body} of attributes one after another."""
    bodies = {}
    while body:
        length, kind = struct.unpack_from("=HH", body)
        bodies[kind & ~NESTED] = body[4:length]
        body = body[length + -length % 4 :]
    return bodies


def link(*attributes: bytes, index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """The body of a message about a network device."""
    return struct.pack("=BxHiII", 0, 0, index, flags, change) + b"".join(attributes)


class Netlink:
    """Talks about the devices of the network namespace in which it was made, wherever its process goes."""

    def __init__(self):
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self.socket = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)

    def ask(self, kind: int, body: bytes, flags: int = 0) -> bytes:
        """Send one message: the body of the kernel's answer, b"" where it only agrees, an OSError where it
        refuses."""
        wanted = REQUEST | flags | (0 if kind == GET_LINK else ACKNOWLEDGE)
        self.socket.send(struct.pack("=IHHII", 16 + len(body), kind, wanted, 0, 0) + body)
        answer = self.socket.recv(1 << 16)
        if struct.unpack_from("=IH", answer)[1] != ERROR:
            return answer[16:]
        (number,) = struct.unpack_from("=i", answer, 16)
        if number:
            raise OSError(-number, os.strerror(-number))
        return b""

    def look(self, name: str) -> tuple[int, dict[int, bytes]]:
        """(index, attributes) of a device."""
        answer = self.ask(GET_LINK, link(attribute(NAME, name.encode() + b"\0")))
        return struct.unpack_from("=i", answer, 4)[0], attributes(answer[16:])

    def index(self, name: str) -> int:
        return self.look(name)[0]

    def counters(self, name: str) -> tuple[int, int, int, int]:
        """(bytes sent, bytes received, frames sent, frames received) of a device since it was made, headers
        included."""
        _, told = self.look(name)
        frames_received, frames_sent, received, sent = struct.unpack_from("=4Q", told[STATISTICS])
        return sent, received, frames_sent, frames_received

    def _add(self, name, kind, options):
        info = nested(INFO, attribute(KIND, kind), nested(DATA, options))
        self.ask(NEW_LINK, link(attribute(NAME, name.encode()), info), CREATE | EXCLUSIVE)

    def add_bridge(self, name: str) -> None:
        """A switch, which sends nothing of its own: without the snooping by which it would look for groups of
        listeners."""
        self._add(name, b"bridge", attribute(SNOOPING, b"\0"))

    def add_pair(self, name: str, other: str, namespace: int) -> None:
        """A cable: two devices, each receives what the other sends.  The other one lies in another namespace,
        given as a descriptor."""
        peer = link(attribute(NAME, other.encode()), attribute(NAMESPACE, namespace))
        self._add(name, b"veth", attribute(PEER | NESTED, peer))

    def plug_into(self, name: str, bridge: str) -> None:
        self.ask(NEW_LINK, link(attribute(MASTER, self.index(bridge)), index=self.index(name)))

    def set_up(self, name: str, up: bool = True) -> None:
        """Let a device send and receive, or not; without an IPv6 address, and so without the frames by which
        one is announced."""
        mode = nested(FAMILIES, nested(socket.AF_INET6, attribute(8, b"\1")))
        try:
            self.ask(NEW_LINK, link(mode, index=self.index(name)))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):  # there is no IPv6 here
                raise
        self.ask(NEW_LINK, link(index=self.index(name), flags=UP if up else 0, change=UP))

    def add_address(self, name: str, address: str) -> None:
        """An IPv4 address, in a network of 256."""
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBi", socket.AF_INET, 24, 0, 0, self.index(name))
        self.ask(NEW_ADDRESS, head + attribute(1, packed) + attribute(2, packed), CREATE | EXCLUSIVE)

    def limit(self, name: str, rate: int) -> None:
        """Let a device send at most `rate` bytes per second (a token bucket); 16 MB wait for it, before any
        is lost."""
        head = struct.pack("=BxxxiIII", 0, self.index(name), 0, AT_THE_ROOT, 0)
        speed = struct.pack("=BBHhHI", 0, ETHERNET, 0, 0, 0, min(rate, 0xFFFFFFFF))
        bucket = speed + bytes(12) + struct.pack("=III", 16_000_000, 0, 0)
        options = nested(2, attribute(1, bucket), attribute(4, struct.pack("=Q", rate)), attribute(6, BURST))
        self.ask(NEW_QDISC, head + attribute(1, b"tbf\0") + options, CREATE | EXCLUSIVE)
