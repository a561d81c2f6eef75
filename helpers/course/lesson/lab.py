"""Start JupyterLab at a page, laid out for the course, and say how to reach it from another computer."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_server.serverapp import list_running_servers
from helpers.paths import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_PORT = 8888
SETTINGS = Path(__file__).with_name("jupyterlab")  # the defaults that the course sets; a user's own go before
WORKSPACES = ".workspaces"  # in the learner's folder: JupyterLab's layouts, which are of this course alone
DEFAULT = "default-37a8.jupyterlab-workspace"  # JupyterLab's name for the layout that it opens
OWN = ".jupyter"  # in the learner's folder: what JupyterLab and its kernels keep
RUNTIME = "runtime"
STARTUP = "ipython/profile_default/startup/course.py"  # runs in each kernel of JupyterLab
HINT = '''"""After a restart a cell in the middle knows nothing of those above: say so below the error."""


def say_what_to_run(shell, kind, error, traceback, tb_offset=None):
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
    print(f"This kernel does not know `{error.name}` yet. Run the cells above first: "
          "in the menu *Run*, choose *Run All Above Selected Cell*.")


get_ipython().set_custom_exc((NameError,), say_what_to_run)
'''
CONTENTS = "@jupyterlab/toc:plugin"  # the panel with the headings of what is open
SIDEBAR = 0.2  # of the window: wide enough for the name of a kept copy


def open_lab(folder: Path, page: str) -> None:
    """Replace this process by JupyterLab, serving `folder` and opening `page`; where one serves it already,
    print its link and return."""
    own = folder / OWN
    if link := running(folder, page, own):
        print(f"JupyterLab is running already:\n{link}")
        return
    port, browser = free_port(), has_browser()
    if not browser:
        print(tunnel(port), flush=True)
    lay_out(folder / WORKSPACES / DEFAULT, page)
    replace(own / STARTUP, HINT)
    os.chdir(folder)
    chosen = options(page, port, browser, root=os.geteuid() == 0)
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", *chosen], environment(own))


def environment(own: Path, outside: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of JupyterLab, its kernels and its terminals: what they keep goes into the folder `own`
    and not into the learner's home, and the course's commands are found.  A `make` in a terminal is none that
    another one started."""
    kept = {name: value for name, value in outside.items() if not name.startswith("MAKE")}
    folders = {
        "JUPYTER_CONFIG_DIR": own / "config",
        "JUPYTER_DATA_DIR": own / "data",
        "JUPYTER_RUNTIME_DIR": own / RUNTIME,
        "IPYTHONDIR": own / "ipython",
        "MPLCONFIGDIR": own / "matplotlib",
        "npm_config_cache": own / "npm",  # JupyterLab asks npm for its version
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{outside.get('PATH', os.defpath)}"
    return kept | {name: str(folder) for name, folder in folders.items()} | {"PATH": path}


def options(page: str, port: int, browser: bool, root: bool = False) -> list[str]:
    """Command-line options: the default page is where the link leads that JupyterLab prints and opens; root
    runs it in a container."""
    chosen = [
        f"--port={port}",
        "--log-level=ERROR",  # the last that it prints is then the link
        f"--LabApp.default_url=/lab/tree/{page}",
        f"--LabApp.workspaces_dir={WORKSPACES}",
        f"--LabApp.app_settings_dir={SETTINGS}",
    ]
    return chosen + ["--no-browser"] * (not browser) + ["--allow-root"] * root


def running(folder: Path, page: str, own: Path) -> str | None:
    """The link to a page on the course's server that serves a folder and answers; None where none does."""
    for server in list_running_servers(runtime_dir=str(own / RUNTIME)):
        if server["root_dir"] == str(folder.resolve()):
            try:
                urllib.request.urlopen(f"{server['url']}api", timeout=5).close()
            except urllib.error.HTTPError:
                pass  # it wants a password, and so is there
            except OSError:
                continue
            return f"{server['url']}lab/tree/{page}" + f"?token={server['token']}" * bool(server["token"])
    return None


def lay_out(workspace: Path, page: str) -> None:
    """Write the layout of the first start: contents at the left, the page in the middle.  Later ones are the
    learner's."""
    if workspace.exists():
        return
    name = f"notebook:{page}"
    layout = {
        "main": {"dock": {"type": "tab-area", "currentIndex": 0, "widgets": [name]}, "current": name},
        "left": {
            "collapsed": False,
            "visible": True,
            "current": CONTENTS,
            "widgets": ["filebrowser", "running-sessions", CONTENTS, "extensionmanager.main-view"],
        },
        "right": {"collapsed": True, "visible": True, "widgets": []},
        "relativeSizes": [SIDEBAR, 1 - SIDEBAR, 0],
    }
    opened = {"data": {"path": page, "factory": "Notebook"}}
    data = {"layout-restorer:data": layout, name: opened}
    replace(workspace, json.dumps({"data": data, "metadata": {"id": "default"}}, indent=1) + "\n")


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
