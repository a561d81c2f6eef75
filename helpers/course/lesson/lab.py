"""Start JupyterLab at a page, and say how to reach it from another computer."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import NoReturn

FIRST_PORT = 8888


def open_lab(folder: Path, page: str) -> NoReturn:
    """Replace this process by JupyterLab, serving `folder` and opening `page`."""
    port, browser = free_port(), has_browser()
    if not browser:
        print(tunnel(port), flush=True)
    os.chdir(folder)
    chosen = options(page, port, browser, root=os.geteuid() == 0)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *chosen])


def options(page: str, port: int, browser: bool, root: bool = False) -> list[str]:
    """Command-line options: the default page is where the link leads that JupyterLab prints and opens; root
    runs it in a container."""
    chosen = [f"--port={port}", f"--LabApp.default_url=/lab/tree/{page}"]
    return chosen + ["--no-browser"] * (not browser) + ["--allow-root"] * root


def has_browser(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser that is opened here is seen by the learner: not through ssh, nor without a
    display."""
    if "SSH_CONNECTION" in environment:
        return False
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")
    return platform == "darwin" or any(environment.get(name) for name in displays)


def tunnel(port: int, environment: Mapping[str, str] = os.environ) -> str:
    """What to type on the computer that the learner sits at."""
    client_and_server = environment.get("SSH_CONNECTION", "").split()
    server = client_and_server[2] if len(client_and_server) > 2 else socket.gethostname()
    user = environment.get("USER") or "you"
    return (
        "No browser here: open the link below that begins with http://127.0.0.1. When you sit at "
        "another computer, first type there\n"
        f"    ssh -N -L {port}:localhost:{port} {user}@{server}"
    )


def free_port(first: int = FIRST_PORT) -> int:
    """The first port from `first` on that nobody listens at; JupyterLab itself tries others should it be
    taken in between."""
    for port in range(first, first + 50):
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return port
        except OSError:
            pass
    return first
