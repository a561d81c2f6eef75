"""Ports on which ranks meet, where they must be known before anything can listen on them."""

import socket

FIRST, COUNT = 15_000, 15_000  # below the ports that systems hand out to connections


def port_for(number: int) -> int:
    """A port for a number that hardly anybody else on the machine has: of a job, or of a process."""
    return FIRST + number % COUNT


def held_port() -> socket.socket:
    """A socket whose port, a free one of this machine, is given to nobody else while it is open.  It does not
    listen: who names the port and sets SO_REUSEADDR, as rank 0's store does, may bind it too."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
